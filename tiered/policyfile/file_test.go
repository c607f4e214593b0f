package policyfile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A file that says all it can, and the same as JSON.
func TestWholeFile(t *testing.T) {
	data := fatal.Get(os.ReadFile("testdata/whole.yaml"))(t)
	var content map[string]any
	fatal.If(t, yaml.Unmarshal(data, &content))
	asJSON := fatal.Get(json.MarshalIndent(content, "", "\t"))(t)
	for name, data := range map[string][]byte{"whole.yaml": data, "whole.json": asJSON} {
		f := fatal.Get(policyfile.Parse(name, data))(t)
		want := []tiered.Policy{
			{
				Name: "per-user", Limit: tiered.PerSecond(100).WithBurst(200), Standing: 1.0 / 8, MaxDebt: 2000,
				Lease: tiered.Lease{Size: 20, Period: 500 * time.Millisecond},
			},
			{
				Name: "per-address", Limit: tiered.PerMinute(1000).And(tiered.PerHour(5000)),
				FailMode: tiered.FailOpen, Shadow: true,
			},
			{Name: "mails", Limit: tiered.PerDay(3), Algorithm: tiered.FixedWindow, Calendar: true, FailMode: tiered.FailClosed},
			{Name: "tenants", Limit: tiered.PerSecond(10000), Lease: tiered.Lease{Size: tiered.NoLease}},
			{
				Name: "customers", Limit: tiered.PerMinute(100),
				Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000).WithBurst(2000), "staff": tiered.Unlimited()},
			},
		}
		perKey := f.Policies[0].PerKey
		f.Policies[0].PerKey = nil
		for i, p := range f.Policies {
			if got := fmt.Sprintf("%+v", p); got != fmt.Sprintf("%+v", want[i]) {
				t.Errorf("%s: policy %d is %s", name, i, got)
			}
		}
		for key, l := range map[string]tiered.Limit{
			"ann": tiered.PerSecond(1000), "mallory": tiered.Blocked(), "anna": {}, "": {}, "internal": {},
			"internal-x": tiered.Unlimited(), "internal-batch-7": tiered.PerSecond(10).WithBurst(20),
		} {
			if got := perKey(key); got != l {
				t.Errorf("%s: key %q has %v, want %v", name, key, got, l)
			}
		}
		if len(f.HTTP) != 3 || f.HTTP[2].Limits[0].Plan.String() != "header X-Plan" || len(f.HTTP[0].Ranges) != 3 || f.HTTP[0].Match != "/api/" || len(f.HTTP[0].Limits) != 2 || f.HTTP[1].Limits[0].Cost != 2 {
			t.Errorf("%s: routes %+v", name, f.HTTP)
		}
		calls := []policyfile.Method{
			{Match: "/", Limits: []policyfile.Limit{{
				Policy: "per-address", Missing: httplimit.Refuse, Cost: 1,
				Key: []policyfile.Key{{Kind: "forwarded-for", Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
			}}},
			{Match: "/shop.Orders/", Limits: []policyfile.Limit{{
				Policy: "per-user", Key: []policyfile.Key{{Kind: "metadata", Name: "x-user"}},
				Missing: httplimit.Exempt, Cost: 1,
			}}},
			{Match: "/shop.Orders/Export", Limits: []policyfile.Limit{{
				Policy: "tenants", Key: []policyfile.Key{{Kind: "metadata", Name: "x-tenant"}, {Kind: "method"}},
				Missing: httplimit.Together, Cost: 20,
			}}},
			{Match: "/shop.Carts/", Limits: []policyfile.Limit{{
				Policy: "customers", Key: []policyfile.Key{{Kind: "credential", Name: "authorization"}},
				Missing: httplimit.Refuse, Cost: 1, Plan: policyfile.Key{Kind: "metadata", Name: "x-plan"},
			}}, Exceptions: policyfile.Exceptions{
				Address: policyfile.Key{Kind: "ip"}, Ranges: []policyfile.Range{{Addresses: netip.MustParsePrefix("10.0.0.0/8")}},
			}},
		}
		if !reflect.DeepEqual(f.GRPC, calls) {
			t.Errorf("%s: calls %+v", name, f.GRPC)
		}
	}
}

// A field that is there twice hides no mistake in either of its values.
func TestMistakesOfFieldsThatAreThereTwice(t *testing.T) {
	const text = `version: 1
policies:
  - {name: a, limit: 1/x, limit: 2/x, keys: {vip: 3/x, vip: 4/x}}
policies:
  - {name: b, limit: 5/x}
http:
  - {match: x, limits: []}
http:
  - {match: y, limits: []}
`
	_, err := policyfile.Parse("p.yaml", []byte(text))
	for _, want := range []string{
		`3:22: policies[0].limit: limit "1/x"`, `3:27: policies[0].limit is there twice`, `3:34: policies[0].limit: limit "2/x"`,
		`3:51: policies[0].keys: limit "3/x"`, `3:56: policies[0].keys: a key is there twice`,
		`3:61: policies[0].keys: limit "4/x"`, `4:1: policies is there twice`, `5:22: policies[0].limit: limit "5/x"`,
		`7:13: http[0].match: `, `8:1: http is there twice`, `9:13: http[0].match: `,
	} {
		if err == nil || strings.Count(err.Error(), "p.yaml:"+want) != 1 {
			t.Errorf("not told: %s", want)
		}
	}
	if n := strings.Count(fmt.Sprint(err), "\n") + 1; n != 11 {
		t.Errorf("%d mistakes: %v", n, err)
	}
}

// What a file as a whole must not be.
func TestBadFiles(t *testing.T) {
	bomb := "a: &a [x]\n"
	for i := range 30 {
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c]\n", 'b'+rune(i%20), 'b'+rune(i%20), 'a'+rune(i%20), 'a'+rune(i%20))
	}
	for want, text := range map[string]string{
		"p.yaml is empty":         "",
		"did not find expected":   "version: 1\npolicies: [",
		"version is missing":      "policies: []",
		"policies is missing":     "version: 1",
		"has a second document":   "version: 1\npolicies: []\n---\nversion: 1\n",
		"must be a mapping":       "just a text",
		"more than 4194304 bytes": strings.Repeat("#", policyfile.MaxSize+1),
		"aliases are not read":    "version: 1\npolicies: [&p {name: a, limit: 1/s}, *p]",
		"must be one of version":  bomb,
		"and 950 more mistakes":   "version: 1\npolicies: [" + strings.Repeat("5, ", 1000) + "]",
		"control characters":      "version: 1\npolicies: [{name: \"a\x00\", limit: 1/s}]",
	} {
		began := time.Now()
		_, err := policyfile.Parse("p.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("%.60q took %v", text, d)
		}
		if err != nil && len(err.Error()) > 20_000 {
			t.Errorf("%.60q: an error of %d bytes", text, len(err.Error()))
		}
	}
}

func route(match string) string {
	return "  - {match: " + match + ", limits: [{policy: a, key: ip}]}\n"
}

// Parse never panics, and what it accepts a Group can have.
func FuzzParse(f *testing.F) {
	data := fatal.Get(os.ReadFile("testdata/whole.yaml"))(f)
	f.Add(data)
	f.Add([]byte("version: 1\npolicies: [{name: a, limit: 1/s, keys: {x: blocked}}]\nhttp:\n" + route("/")))
	f.Add(bytes.Repeat([]byte("["), 1000))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := policyfile.Parse("p", data)
		if err != nil {
			return
		}
		for _, p := range file.Policies {
			if p.PerKey != nil {
				p.PerKey("key")
			}
		}
		g := testgroup.New(t, remote.NewMemory(), nil)
		err = g.SetPolicies(file.Policies)
		if err == nil {
			_, err = file.Middleware(g, nil)
		}
		if err != nil {
			t.Errorf("a file that is accepted cannot be used: %v\n%s", err, data)
		}
	})
}
