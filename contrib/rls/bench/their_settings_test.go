package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// docs/service-reference.md says of each setting of envoyproxy/ratelimit whether it is read, and
// names no other. Those that are read have the same default, but for REDIS_URL.
func TestTheirSettings(t *testing.T) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit")
	list.Dir, list.Env = "theirs", append(os.Environ(), "GOPROXY=off") // what is not there is not fetched
	out, err := list.Output()
	dir := strings.TrimSpace(string(out))
	if dir == "" && os.Getenv("TIERED_TEST_RLS_BENCH") == "" {
		t.Skip("the module of envoyproxy/ratelimit is not in the module cache")
	}
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text := fatal.Get(os.ReadFile(path))(t)
		return string(text)
	}
	defaults := func(text, pattern string) map[string]string {
		all := map[string]string{}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			if m[2] == "false" {
				m[2] = ""
			}
			all[m[1]] = m[2]
		}
		return all
	}
	theirs := defaults(read(filepath.Join(dir, "src", "settings", "settings.go")), `envconfig:"([A-Z_]+)"(?: default:"([^"]*)")?`)
	ours := defaults(read("../cmd/tieredd/settings.go"), `env:"([A-Z_]+)"(?: envDefault:"([^"]*)")?`)
	if len(theirs) < 100 || len(ours) < 45 {
		t.Errorf("%d of theirs and %d of ours: the pattern is wrong", len(theirs), len(ours))
	}

	_, page, _ := strings.Cut(read("../../../docs/service-reference.md"), "\n## Environment\n")
	page, _, _ = strings.Cut(page, "\n## ")
	// Of versions after the one in theirs/go.mod, of the library of traces, and of Envoy Gateway.
	later := []string{"REDIS_CLUSTER_PIPELINE_PARALLELISM", "REDIS_STARTUP_*", "OTEL_*", "GRPC_SERVER_TLS_CA_CERT"}
	named := map[string]bool{} // whether it is used
	for _, m := range regexp.MustCompile("`([A-Z_]{4,}\\*?)`").FindAllStringSubmatch(page, -1) {
		named[m[1]] = false
	}
	for name, usual := range theirs {
		is := false
		for n := range named {
			if prefix, family := strings.CutSuffix(n, "*"); n == name || family && strings.HasPrefix(name, prefix) {
				is, named[n] = true, true
			}
		}
		if !is {
			t.Errorf("the page does not name %s", name)
		}
		if own, both := ours[name]; both && own != usual && name != "REDIS_URL" {
			t.Errorf("the default of %s is %q, and theirs is %q", name, own, usual)
		}
	}
	for n, used := range named {
		if _, own := ours[n]; !used && !own && !slices.Contains(later, n) && n != "SSL_CERT_FILE" && n != "FILE" {
			t.Errorf("the page names %s, which neither service has", n)
		}
	}
}
