package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// theirCases are what a user of envoyproxy/ratelimit f2fb157 may rely on and package behavior does
// not play: what a process does, and not one request. What differs on purpose names its line of the
// page.
var theirCases = []struct {
	name    string
	env     []string
	config  string // more descriptors
	play    func(t *testing.T, p *process)
	differs string
}{
	{name: "a descriptor without entries meets no limit", play: func(t *testing.T, p *process) {
		p.play(t, [2]string{"shop |  | user=a", "OK | OK | OK 99/100"})
	}},
	{name: "500 descriptors are answered", play: func(t *testing.T, p *process) {
		answer := fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request("shop"+strings.Repeat(" | user=many", 500))))(t)
		if n := len(answer.GetStatuses()); n != 500 || answer.GetStatuses()[99].GetLimitRemaining() != 0 || answer.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%d statuses", n)
		}
	}},
	{name: "1001 descriptors", differs: "more than 1000 descriptors", play: func(t *testing.T, p *process) {
		answer := fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request("shop"+strings.Repeat(" | user=more", 1001))))(t)
		if answer.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT || answer.GetStatuses()[0].GetCode() != pb.RateLimitResponse_OVER_LIMIT {
			t.Error("they are answered")
		}
	}},
	{name: "a value of 100 kB counts", play: func(t *testing.T, p *process) {
		long := strings.Repeat("x", 100_000)
		p.play(t, [2]string{"shop | user=" + long, "OK | OK 99/100"}, [2]string{"shop | user=" + long, "OK | OK 98/100"}, [2]string{"shop | user=y" + long, "OK | OK 99/100"})
	}},
	{name: "the root is watched", env: []string{"RUNTIME_WATCH_ROOT=true"}, play: isLimited},
	{name: "the directory is watched", env: []string{"RUNTIME_WATCH_ROOT=false"}, play: isLimited},
	{
		name: "no RUNTIME_SUBDIRECTORY", env: []string{"RUNTIME_SUBDIRECTORY="}, differs: "no file, no directory, no `RUNTIME_SUBDIRECTORY`, names that begin with a dot",
		play: isLimited,
	},
	{
		name: "names that begin with a dot", env: []string{"RUNTIME_IGNOREDOTFILES=false"}, differs: "no file, no directory, no `RUNTIME_SUBDIRECTORY`, names that begin with a dot",
		play: func(t *testing.T, p *process) {
			fatal.If(t, os.WriteFile(filepath.Join(filepath.Dir(p.file), ".limits.yaml"), []byte(limits), 0o600)) // the domain twice
			p.write(t, strings.Replace(limits, "100}", "101}", 1))
			eventually(t, "the change is used", func() bool { return p.limitOf(t, "dot") == 101 })
		},
	},
	{
		name: "all files are removed", differs: "no file, no directory, no `RUNTIME_SUBDIRECTORY`, names that begin with a dot",
		play: func(t *testing.T, p *process) {
			fatal.If(t, os.Remove(p.file))
			eventually(t, "it is told", func() bool { return strings.Contains(p.log(), "has no file: must have one at least") })
			isLimited(t, p)
		},
	},
	{
		name: "there is no directory", differs: "no file, no directory, no `RUNTIME_SUBDIRECTORY`, names that begin with a dot",
		play: func(t *testing.T, p *process) {
			p.terminate(t)
			p.env = append(p.env, "RUNTIME_APPDIRECTORY=none")
			p.launch(t)
			eventually(t, "it is told", func() bool { return strings.Contains(p.log(), "the configuration is not used") })
			_, err := p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a"), grpc.WaitForReady(true))
			if code, _ := p.get("/readyz"); code != http.StatusServiceUnavailable || err == nil {
				t.Errorf("/readyz answers %d, %v", code, err)
			}
		},
	},
	{name: "GET, PUT and POST of /json", play: func(t *testing.T, p *process) {
		for i, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
			body := `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"json"}]}]}`
			r := fatal.Get(http.NewRequestWithContext(t.Context(), method, p.public+"/json", strings.NewReader(body)))(t)
			answer := fatal.Get(p.http.Do(r))(t)
			var is pb.RateLimitResponse
			text := make([]byte, 4096)
			n, _ := answer.Body.Read(text)
			_ = answer.Body.Close()
			if err := protojson.Unmarshal(text[:n], &is); err != nil || answer.StatusCode != http.StatusOK || behavior.Show(&is) != fmt.Sprintf("OK | OK %d/100", 99-i) {
				t.Errorf("%s: %s: %s: %v", method, answer.Status, text[:n], err)
			}
		}
	}},
	{name: "gRPC health", differs: "`/healthcheck`, and gRPC health", play: func(t *testing.T, p *process) {
		conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		defer conn.Close()
		for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} { // theirs has not the last
			answer, err := health.NewHealthClient(conn).Check(t.Context(), &health.HealthCheckRequest{Service: name})
			if err != nil || answer.GetStatus() != health.HealthCheckResponse_SERVING {
				t.Errorf("%q: %v, %v", name, answer, err)
			}
		}
	}},
	{name: "LOG_FORMAT in capitals", env: []string{"LOG_FORMAT=JSON"}, play: func(t *testing.T, p *process) {
		if !strings.HasPrefix(p.log(), "{") {
			t.Errorf("%.100s", p.log())
		}
	}},
	{name: "LOG_FORMAT of another word", env: []string{"LOG_FORMAT=yaml"}, play: isLimited},
	{name: "SIGHUP ends it in order", play: func(t *testing.T, p *process) {
		isLimited(t, p)
		p.hangUp(t)
	}},
	{
		name: "shadow_mode within rate_limit changes nothing", config: "  - {key: odd, rate_limit: {unit: year, requests_per_unit: 0, shadow_mode: true}}\n",
		play: func(t *testing.T, p *process) {
			p.play(t, [2]string{"shop | odd=a", "OVER | OVER 0/0"})
			if !strings.Contains(p.log(), "shadow_mode is within rate_limit, so it is ignored: must stand beside it") {
				t.Error("it is not told")
			}
		},
	},
	{name: "is_negative_hits of a window", differs: "`is_negative_hits`", play: func(t *testing.T, p *process) {
		r := behavior.Request("shop | user=back +3")
		r.Descriptors[0].IsNegativeHits = true
		p.play(t, [2]string{"shop | user=back +5", "OK | OK 95/100"})
		if is := behavior.Show(fatal.Get(p.client.ShouldRateLimit(t.Context(), r))(t)); is != "OK | OK 95/100" { // theirs: 92
			t.Error(is)
		}
	}},
	{
		name: "a second Redis for seconds", env: []string{"REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=nowhere:1"}, differs: "memcached, and a second Redis for seconds",
		config: "  - {key: fast, rate_limit: {unit: second, requests_per_unit: 5}}\n",
		play: func(t *testing.T, p *process) {
			p.play(t, [2]string{"shop | fast=a", "OK | OK 4/5"})
			if p.told("REDIS_PERSECOND is ignored: one Redis has all limits; size REDIS_URL for all") != 1 {
				t.Error("it is not told")
			}
		},
	},
}

func isLimited(t *testing.T, p *process) {
	p.play(t, [2]string{"shop | user=limited", "OK | OK 99/100"})
}

func TestTheirBehavior(t *testing.T) {
	lines := differences(t)
	for _, c := range theirCases {
		t.Run(c.name, func(t *testing.T) {
			if c.differs != "" && !slices.Contains(lines, strings.ToLower(c.differs)) {
				t.Errorf("the page has no line for %s", c.differs)
			}
			c.play(t, start(t, limits+c.config, c.env...))
		})
	}
}

// differences are the subjects of the list of docs/service.md, which it sets in bold. At most
// fifteen are on purpose, and each says what, why, and what to do.
func differences(t *testing.T) (all []string) {
	t.Helper()
	text := string(fatal.Get(os.ReadFile("../../../../docs/service.md"))(t))
	_, list, found := strings.Cut(text, "\n## What differs\n")
	list = strings.ReplaceAll(list, "\n  ", " ")
	for _, m := range regexp.MustCompile(`(?m)^- \*\*(.+?)\*\*`).FindAllStringSubmatch(list, -1) {
		all = append(all, strings.ToLower(m[1]))
	}
	if !found || len(all) < 10 || len(all) > 15 {
		t.Errorf("%d differences", len(all))
	}
	return all
}
