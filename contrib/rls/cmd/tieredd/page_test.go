package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// page returns the pages of the service, and the block of YAML in them that begins with some text.
func page(t *testing.T, begins string) (all, block string) {
	t.Helper()
	var text []byte
	for _, name := range []string{"service.md", "service-operate.md", "service-reference.md"} {
		text = append(text, fatal.Get(os.ReadFile("../../../../docs/"+name))(t)...)
	}
	_, block, _ = strings.Cut(string(text), "```yaml\n"+begins)
	block, _, found := strings.Cut(block, "```")
	if begins != "" && !found {
		t.Fatalf("the page has no block %s", begins)
	}
	return string(text), begins + block
}

// A user who changes over finds on the page what Redis must be, and how to go on without
// Kubernetes: both with the names that the service has.
func TestPageOfMigration(t *testing.T) {
	all, block := page(t, "services:\n")
	steps, _, _ := strings.Cut(all, "\n## What differs")
	for _, want := range []string{"Redis ≥ 6.2", "Valkey ≥ 8.0", "(redis.md#redis-user)", "NOPERM", "twemproxy"} {
		if !strings.Contains(steps, want) {
			t.Errorf("the steps do not say %q", want)
		}
	}
	var compose struct {
		Services map[string]struct {
			Image       string            `json:"image"`
			Grace       string            `json:"stop_grace_period"`
			Memory      string            `json:"mem_limit"`
			Ports       []string          `json:"ports"`
			Volumes     []string          `json:"volumes"`
			Environment map[string]string `json:"environment"`
		} `json:"services"`
	}
	fatal.If(t, yaml.UnmarshalStrict([]byte(block), &compose))
	service := compose.Services["ratelimit"]
	known := map[string]bool{}
	for f := range reflect.TypeFor[tieredd.Settings]().Fields() {
		known[f.Tag.Get("env")] = true
	}
	read := func(env map[string]string) tieredd.Settings {
		for name, value := range env {
			if !known[name] {
				t.Errorf("%s is not a setting", name)
			}
			t.Setenv(name, value)
		}
		s, err := tieredd.ReadSettings()
		if err != nil {
			t.Error(err)
		}
		return s
	}
	s := read(service.Environment)
	if at := strings.Split(service.Volumes[0], ":"); at[1] != s.Directory() || !strings.Contains(all, "docker push "+service.Image) {
		t.Errorf("%v is mounted, and %s is read; the image is %s", at, s.Directory(), service.Image)
	}
	if grace, err := time.ParseDuration(service.Grace); err != nil || grace <= s.Drain+tieredd.ReturnTime {
		t.Errorf("a grace period of %v (%v) for %v and %v", grace, err, s.Drain, tieredd.ReturnTime)
	}
	if mib, err := strconv.Atoi(strings.TrimSuffix(service.Memory, "m")); err != nil || mib < 256 { // see TestMemoryOfAFlood
		t.Errorf("a limit of %s of memory", service.Memory)
	}
	for name := range service.Environment {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}

	m := regexp.MustCompile(`\n    go build -C (\S+) -o \S+/tieredd (\S+)\n    (.*) tieredd\n`).FindStringSubmatch(all)
	if m == nil {
		t.Fatal("the page does not say how to build and start the program")
	}
	fatal.Get(os.Stat(filepath.Join("../../../..", m[1], m[2], "main.go")))(t)
	env := map[string]string{}
	for pair := range strings.FieldsSeq(m[3]) {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	if s := read(env); !strings.Contains(strings.Join(strings.Fields(all), " "), "in `"+s.Directory()+"`") {
		t.Errorf("it reads %s", s.Directory())
	}
}

// Each of the four ways to change over is at most ten lines, and Envoy Gateway's names the image
// that is built.
func TestPageOfWays(t *testing.T) {
	all, block := page(t, "provider:\n")
	for _, way := range []string{"Envoy Gateway", "AI Gateway", "Istio", "Plain"} {
		_, text, found := strings.Cut(all, "\n### "+way+"\n")
		text, _, _ = strings.Cut(text, "\n### ")
		lines := 0
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "```") {
				lines++
			}
		}
		if !found || lines < 2 || lines > 10 {
			t.Errorf("%s has %d lines", way, lines)
		}
	}
	var c struct {
		Provider struct {
			Type       string `json:"type"`
			Kubernetes struct {
				RateLimitDeployment struct {
					Container struct {
						Image string `json:"image"`
					} `json:"container"`
				} `json:"rateLimitDeployment"`
			} `json:"kubernetes"`
		} `json:"provider"`
	}
	fatal.If(t, yaml.UnmarshalStrict([]byte(block), &c))
	if image := c.Provider.Kubernetes.RateLimitDeployment.Container.Image; c.Provider.Type != "Kubernetes" || !strings.Contains(all, "docker push "+image+"\n") {
		t.Errorf("the image is %q", image)
	}
}

// With a Redis user that has the rights of envoyproxy/ratelimit only, it does as the page says.
func TestNarrowUser(t *testing.T) {
	redis := redistest.StartOpen(t)
	client := redis.Client()
	defer client.Close()
	user := []any{"ACL", "SETUSER", "theirs", "on", ">x", "~*", "+get", "+incrby", "+expire", "+ping", "+exists"}
	fatal.If(t, client.Do(t.Context(), user...).Err())
	p := start(t, limits)
	p.terminate(t)
	p.env = append(p.env, "REDIS_URL=redis://theirs:x@"+redis.Addr)
	p.launch(t)
	eventually(t, "the log says NOPERM", func() bool {
		return regexp.MustCompile("not ready until it does.*NOPERM").MatchString(p.log())
	})
	if code, _ := p.get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz answers %d", code)
	}
}

// With the address of a node of a Cluster, and no word of that, it does not get ready, and says
// what to set.
func TestNodeOfACluster(t *testing.T) {
	c := redistest.StartCluster(t, 2)
	p := start(t, limits)
	p.terminate(t)
	p.env = append(p.env, "REDIS_URL=redis://"+c.Servers[0].Addr)
	p.launch(t)
	eventually(t, "the log says what to set", func() bool {
		return regexp.MustCompile("not ready until it does.*node of a Cluster.*REDIS_TYPE").MatchString(p.log())
	})
	if code, _ := p.get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz answers %d", code)
	}
}

// tokenOfPage is what the page makes Envoy send to a service whose token is "secret".
func tokenOfPage(t *testing.T) string {
	t.Helper()
	_, block := page(t, "grpc_service:\n")
	text := string(fatal.Get(yaml.YAMLToJSONStrict([]byte(block)))(t))
	var filter core.GrpcService
	fatal.If(t, protojson.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(text, `{"grpc_service":`), "}")), &filter))
	if err := filter.ValidateAll(); err != nil || len(filter.GetInitialMetadata()) != 1 || filter.GetInitialMetadata()[0].GetKey() != "authorization" {
		t.Fatal(err, &filter)
	}
	return filter.GetInitialMetadata()[0].GetValue()
}

// The page links to each manifest.
func TestPageOfManifests(t *testing.T) {
	all, _ := page(t, "")
	files, err := filepath.Glob("../../kubernetes/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if name := filepath.Base(f); !strings.Contains(all, "["+name+"](../contrib/rls/kubernetes/"+name+")") {
			t.Errorf("the page has not %s", name)
		}
	}
}
