package rls_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
)

// A rule that is valid, and that no descriptor can meet as it is meant, has a warning with its
// place.
func TestWarnings(t *testing.T) {
	value := regexp.MustCompile(`value: ["']?([^"',]+)`)
	for _, c := range []struct{ descriptor, want string }{
		{`{key: path, value: "/part1/.*", rate_limit: {unit: day, requests_per_unit: 3}}`, `3:24: value looks like a regular expression: it`},
		{`{key: path, value: "^/swagger-ui/", rate_limit: {unit: day, requests_per_unit: 3}}`, `3:24: value looks like a regular expression`},
		{`{key: path, value: "/v[12]/x", rate_limit: {unit: day, requests_per_unit: 3}}`, `it is compared as text`},
		{`{key: path, value: '/v\d', rate_limit: {unit: day, requests_per_unit: 3}}`, `it is compared as text`},
		{`{key: path, value: "/(a|b)/c", rate_limit: {unit: day, requests_per_unit: 3}}`, `it is compared as text`},
		{`{key: address, value: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 3}}`, `3:27: value is a range of addresses: it is compared as text`},
		{`{key: address, value: 2001:db8::/32, rate_limit: {unit: day, requests_per_unit: 3}}`, `3:27: value is a range of addresses`},
		{`{key: address, value: 10.0.0.1-10.0.0.9, rate_limit: {unit: day, requests_per_unit: 3}}`, `3:27: value is a range of addresses`},
		{`{key: masked_remote_address, value: 10.0.0.1/8, rate_limit: {unit: day, requests_per_unit: 3}}`, `3:41: value is a range that Envoy never sends`},
		{`{key: masked_remote_address, value: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 3}}`, ""},
		{`{key: path, metadata: {a: 1}, value: x}`, `3:27: metadata is set, but rate_limit is not: no answer has it`},
		{`{key: path, value: " /a", rate_limit: {unit: day, requests_per_unit: 3}}`, `value begins or ends with a space`},
		{`{key: path, value: "/a*", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, value: "/ab*c*", rate_limit: {unit: day, requests_per_unit: 3}}`, `4:24: no descriptor meets this value: a value above, with an asterisk, takes them`},
		{`{key: path}`, `3:5: this descriptor has no rate_limit and no descriptors: it limits nothing`},
		{`{key: path, value: "/ab*", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, value: "/a*", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, value: "/c/*/b", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, value: "/c/*", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, value: /free}
  - {key: path, value: "/a/b.html?x=1+2", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: agent, value: "curl/8.0 (x86_64)", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: address, value: "2001:db8::1", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: id, value: spiffe://cluster.local/ns/a, rate_limit: {unit: day, requests_per_unit: 3}}`, ""},
	} {
		is, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte("domain: d\ndescriptors:\n  - " + c.descriptor + "\n")})
		if err != nil {
			t.Fatal(err)
		}
		got := is.Warnings()
		if c.want == "" && got != nil || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], "a.yaml:") || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.descriptor, got, c.want)
		}
		for _, m := range value.FindAllStringSubmatch(c.descriptor, -1) {
			if strings.Contains(strings.Join(got, ""), m[1]) { // it may be a client's, and the log has the warning
				t.Errorf("%s: %q shows a value", c.descriptor, got)
			}
		}
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "  - {key: k%d}\n", i)
	}
	is, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte("domain: d\ndescriptors:\n" + many.String())})
	if err != nil || len(is.Warnings()) != 100 {
		t.Errorf("%d warnings, %v", len(is.Warnings()), err)
	}
}
