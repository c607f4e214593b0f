package rls_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
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
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`env:"([A-Z_]+)"`).FindAllStringSubmatch(string(settings), -1) {
		known[m[1]] = true
		if !strings.Contains(tables, "`"+m[1]+"`") {
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

// The page has each line that the service logs, and Envoy knows the block about TLS.
func TestPageOfOperators(t *testing.T) {
	page := bytes.Join([][]byte{documents(t, "../../docs/service-operate.md")[0], documents(t, "../../docs/service-reference.md")[0]}, nil)
	lines := 0
	for _, name := range []string{"main.go", "configuration.go", "settings.go", "xds.go", "calls.go"} {
		source := documents(t, "cmd/tieredd/"+name)[0]
		for _, m := range regexp.MustCompile(`log\.(?:Info|Warn|Error)\("([^"]+)"`).FindAllSubmatch(source, -1) {
			lines++
			if !bytes.Contains(page, fmt.Appendf(nil, "| `%s` |", m[1])) {
				t.Errorf("the page has not the line %q", m[1])
			}
		}
	}
	if lines < 8 {
		t.Errorf("%d lines", lines)
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
