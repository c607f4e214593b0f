package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// paneled is what the panels are about: a configuration as Envoy Gateway sends it, and the one of
// what is counted.
var paneled = []string{`domain: default/eg/http
descriptors:
  - key: httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    value: httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: masked_remote_address
        value: 0.0.0.0/0
        descriptors:
          - key: remote_address
            rate_limit: {unit: year, requests_per_unit: 2}
      - key: header_x-user-id
        value: one
        rate_limit: {unit: year, requests_per_unit: 2}
      - key: user
        rate_limit: {unit: year, requests_per_unit: 2}
`, behavior.Counted}

// asked are the requests, each as often as it says.
var asked = []struct {
	times   int
	request string
}{
	{13, "default/eg/http | R=R rule-0-match-0=rule-0-match-0"},
	{3, "default/eg/http | R=R masked_remote_address=0.0.0.0/0 remote_address=10.1.2.3"},
	{3, "default/eg/http | R=R header_x-user-id=one"},
	{3, "default/eg/http | R=R user=ann | R=R user=bob"},
	{2, "default/eg/http | R=R user=cid limit=1/year"},
	{1, "shop +7 | user=a"},
	{1, "shop +2 | user=a"},
	{1, "shop +3 | user=a"},
	{2, "shop | user=a"},
	{1, "shop | user=b +0"},
	{1, "shop | user=vip"},
	{1, "shop | tried=a"},
	{1, "shop +3 | tried=a"},
	{1, "shop | tried=a"},
	{2, "shop | each=a"},
	{1, "shop | each="},
	{1, "shop | each=10.0.0.1:80"},
	{1, "shop | tenant=x path=/z"},
	{1, "shop | tenant=x path=/b1"},
	{1, "shop | tenant=x path=/c1"},
	{2, "shop | tenant=x path=/d1"},
	{1, "shop | tenant= path=/z"},
	{1, "shop | tenant=x path=/e1"},
	{1, "shop | tenant= path=/e2"},
	{1, "shop | tenant=x path=/v1.2/a"},
	{1, "shop | free=a | color=a | cheap=a | dear=a"},
	{2, "Shop | user=a | user=b"},
}

// route stands for R above: the name that Envoy Gateway gives a route.
const route = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example"

// panels are what dashboards and alerts ask: the panels of Envoy Gateway's "Global Ratelimit" and
// the queries of its end-to-end tests, the one that envoyproxy/ratelimit asks in its own, and what
// operators make of the same series.
var panels = []string{
	`ratelimit_service_rate_limit_total_hits{domain="default/eg/http", key1="` + route + "_" + route + `", key2="rule-0-match-0_rule-0-match-0"}`,
	`ratelimit_service_rate_limit_near_limit{domain="default/eg/http", key1="` + route + "_" + route + `", key2="rule-0-match-0_rule-0-match-0"}`,
	`ratelimit_service_rate_limit_over_limit{domain="default/eg/http", key1="` + route + "_" + route + `", key2="rule-0-match-0_rule-0-match-0"}`,
	`(go_memstats_gc_cpu_fraction)*1000000`,
	`count by (job) ((process_resident_memory_bytes)/1000000)`,
	`count by (job) ((process_virtual_memory_bytes)/1000000)`,
	`ratelimit_service_rate_limit_over_limit{key2="masked_remote_address_0_0_0_0/0"}`,
	`ratelimit_service_rate_limit_over_limit{key2="header_x-user-id_one"}`,
	`ratelimit_service_rate_limit_over_limit{key2="user"}`,
	`ratelimit_service_rate_limit_over_limit{key1="user"}`,
	`sum by (job, domain) (ratelimit_service_rate_limit_over_limit) / sum by (job, domain) (ratelimit_service_rate_limit_total_hits)`,
	`sum by (job, key1) (ratelimit_service_rate_limit_shadow_mode)`,
	`{__name__=~"ratelimit_service_rate_limit_.*"}`,
	`ratelimit_service_should_rate_limit_error`,
	`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`,
	`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}`,
	`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit", le="10"}`,
	`ratelimit_service_config_load_success`,
	`count by (job) (ratelimit_service_total_requests{grpc_method="Check"})`,
}

// recordedPanels has what envoyproxy/ratelimit answered.
const recordedPanels = "testdata/panels.txt"

// A real Prometheus scrapes a service after the same requests, and answers what dashboards ask. It
// is compared with what it answers of envoyproxy/ratelimit: of one that is started here with
// TIERED_TEST_RLS_BENCH, and otherwise of what was recorded then. TIERED_TEST_RECORD records it.
func TestPanels(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the service, and starts a real Prometheus")
	}
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not in PATH: install Debian's package prometheus, or run sh scripts/install-prometheus.sh")
	}
	var programs []program
	if os.Getenv("TIERED_TEST_RLS_BENCH") != "" {
		ours, theirs := build(t)
		programs = []program{ours, theirs}
	} else {
		programs = []program{buildOurs(t)}
	}
	targets := map[string]string{}
	for _, p := range programs {
		at := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
		p.env = append(slices.Clip(p.env), "DISABLE_STATS=false", "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+at,
			"STATS_FLUSH_INTERVAL=100ms", "LOCAL_CACHE_SIZE_IN_BYTES=0")
		client := p.start(t, 1, paneled...).replicas[0].client
		for _, a := range asked {
			for range a.times {
				r := behavior.Request(strings.ReplaceAll(a.request, "R=R", route+"="+route))
				fatal.Get(client.ShouldRateLimit(t.Context(), r))(t)
			}
		}
		_, err := client.ShouldRateLimit(t.Context(), behavior.Request(" | user=a"))
		if err == nil {
			t.Errorf("%s: a call without a domain is answered", p.name)
		}
		targets[p.name] = at
	}
	server := startPrometheus(t, prometheus, targets)
	all := 0
	for _, a := range asked {
		all += a.times
	}
	done := fmt.Sprintf(`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} == %d`, all+1)
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if is := server.query(t, done); len(is) == len(targets) {
			break
		} else if time.Since(begin) > time.Minute {
			t.Fatalf("of %s %v", done, is)
		}
	}
	recorded := fatal.Get(os.ReadFile(recordedPanels))(t)
	var is, want string
	for begin := time.Now(); ; time.Sleep(300 * time.Millisecond) { // a scrape may have met the middle of a flush
		if is, want = server.answers(t); len(programs) == 1 {
			want = string(recorded)
		}
		if is == want || time.Since(begin) > 20*time.Second {
			break
		}
	}
	if len(programs) > 1 && os.Getenv("TIERED_TEST_RECORD") != "" {
		fatal.If(t, os.MkdirAll(filepath.Dir(recordedPanels), 0o755))
		fatal.If(t, os.WriteFile(recordedPanels, []byte(want), 0o644))
	}
	if strings.Count(want, "\n  ") < 50 {
		t.Errorf("theirs are too few:\n%s", want)
	}
	if is != want {
		t.Errorf("ours are\n%s\nand theirs\n%s", is, want)
	}
}

// prometheusServer is a running Prometheus.
type prometheusServer struct{ url string }

// startPrometheus starts a Prometheus that scrapes targets by their name as job.
func startPrometheus(t *testing.T, path string, targets map[string]string) prometheusServer {
	t.Helper()
	dir := t.TempDir()
	text := "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\nscrape_configs:\n"
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		text += fmt.Sprintf("  - {job_name: %q, static_configs: [{targets: [%q]}]}\n", name, targets[name])
	}
	fatal.If(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(text), 0o600))
	log := fatal.Get(os.Create(filepath.Join(dir, "log")))(t)
	at := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	c := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+at)
	c.Stdout, c.Stderr, c.SysProcAttr = log, log, redistest.DieWithParent()
	fatal.If(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = log.Close()
		if said, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("prometheus: %.3000s", said)
		}
	})
	return prometheusServer{"http://" + at}
}

// answers returns what both services answer to all panels.
func (p prometheusServer) answers(t *testing.T) (ours, theirs string) {
	t.Helper()
	for _, q := range panels {
		ours, theirs = ours+q+"\n", theirs+q+"\n"
		is := p.query(t, q)
		for _, line := range is["tieredd"] {
			ours += "  " + line + "\n"
		}
		for _, line := range is["envoyproxy/ratelimit"] {
			theirs += "  " + line + "\n"
		}
	}
	return ours, theirs
}

// query returns the answer by job: a line for each series, in order, without instance. While
// Prometheus starts there is none.
func (p prometheusServer) query(t *testing.T, q string) map[string][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r := fatal.Get(http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/query?query="+url.QueryEscape(q), nil))(t)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	var is struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&is); err != nil {
		return nil
	}
	all := map[string][]string{}
	for _, series := range is.Data.Result {
		job := series.Metric["job"]
		delete(series.Metric, "job")
		delete(series.Metric, "instance")
		labels := fatal.Get(json.Marshal(series.Metric))(t)
		all[job] = append(all[job], fmt.Sprintf("%s %v", labels, series.Value[1]))
	}
	for _, lines := range all {
		slices.Sort(lines)
	}
	return all
}
