package rls_test

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlssocket "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// The configuration of docs/service-reference.md is valid, and the page has each name of the
// environment, and only these in the tables.
func TestPage(t *testing.T) {
	text := fatal.Get(os.ReadFile("../../docs/service-reference.md"))(t)
	page := string(text)
	_, block, _ := strings.Cut(page, "## Settings of a rule that are new\n\n```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	if c, err := rls.Parse(rls.File{Name: "docs/service-reference.md", Text: []byte(block)}); err != nil || len(c.Policies()) != 4 ||
		!strings.Contains(page, c.Policies()[0].Name[:len("shop.user.second-token-bucket")]) {
		t.Errorf("%+v, %v", c, err)
	}
	settings := fatal.Get(os.ReadFile("cmd/tieredd/settings.go"))(t)
	_, tables, _ := strings.Cut(page, "## Environment")
	tables, _, _ = strings.Cut(tables, "These of envoyproxy/ratelimit are ignored")
	families := regexp.MustCompile("`([A-Z_]+_)\\*`").FindAllStringSubmatch(tables, -1)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`env:"([A-Z_]+)"`).FindAllStringSubmatch(string(settings), -1) {
		known[m[1]] = true
		if !strings.Contains(tables, "`"+m[1]+"`") && !slices.ContainsFunc(families, func(f []string) bool { return strings.HasPrefix(m[1], f[1]) }) {
			t.Errorf("the page has not %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile("`([A-Z_]{4,})`").FindAllStringSubmatch(tables, -1) {
		if !known[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
	}
	if len(known) < 50 {
		t.Errorf("%d names", len(known))
	}
}

// The service logs each line that the page explains, and Envoy knows the block about TLS.
func TestPageOfOperators(t *testing.T) {
	page := bytes.Join([][]byte{documents(t, "../../docs/service-operate.md")[0], documents(t, "../../docs/service-reference.md")[0]}, nil)
	var sources []byte
	for _, name := range []string{
		"cmd/tieredd/main.go", "cmd/tieredd/configuration.go", "cmd/tieredd/settings.go", "cmd/tieredd/xds.go", "cmd/tieredd/calls.go",
		"calls.go", "../../internal/report/overruns.go", // of the limiter, whose options are settings here
	} {
		sources = append(sources, fatal.Get(os.ReadFile(name))(t)...)
	}
	_, list, _ := bytes.Cut(page, []byte("\n## Log lines that do not say what to do\n"))
	list, _, _ = bytes.Cut(list, []byte("\nLines about"))
	lines := regexp.MustCompile("(?m)^- `([^`]+)`:").FindAllSubmatch(bytes.ReplaceAll(list, []byte("\n  "), []byte(" ")), -1)
	for _, m := range lines {
		if line, _, _ := bytes.Cut(bytes.ReplaceAll(m[1], []byte("TIERED_BUDGET"), []byte("Budget")), []byte(" …")); !bytes.Contains(sources, line) {
			t.Errorf("no line begins with %q", line)
		}
	}
	if len(lines) < 8 {
		t.Errorf("%d lines", len(lines))
	}
	_, block, _ := bytes.Cut(page, []byte("```yaml\ntransport_socket:"))
	block, _, _ = bytes.Cut(block, []byte("```"))
	text := fatal.Get(yaml.YAMLToJSONStrict(append([]byte("name: tieredd\ntransport_socket:"), block...)))(t)
	c := message(t, text, &cluster.Cluster{})
	validate(t, c)
	context := unpack(t, c.GetTransportSocket().GetTypedConfig(), &tlssocket.UpstreamTlsContext{})
	names := context.GetCommonTlsContext().GetValidationContext().GetMatchTypedSubjectAltNames()
	if len(names) != 1 || names[0].GetMatcher().GetExact() != context.GetSni() {
		t.Errorf("%v is asked for, and %v is expected", context.GetSni(), names)
	}
}
