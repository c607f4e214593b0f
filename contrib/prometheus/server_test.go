package promlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A real Prometheus scrapes a service whose real Redis is killed. It answers the queries of the
// dashboard, and an alert fires. Another one does not scrape native histograms, and answers the
// dashboard too.
func TestRealPrometheus(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 seconds with a real Prometheus and a real Redis")
	}
	redis := redistest.StartOpen(t)
	store := fatal.Get(remote.Open(redis.URL(), nil))(t)
	defer store.Close()
	g := testgroup.New(t, store, &tiered.Options{Processes: 1, Logger: silent})
	l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "api", Limit: tiered.PerSecond(50), FailMode: tiered.FailClosed})
	service := httptest.NewServer(promhttp.HandlerFor(register(t, promlimit.NewCollector(g)), promhttp.HandlerOpts{}))
	defer service.Close()
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan struct{})
	defer func() { cancel(); <-asked }()
	go func() {
		defer close(asked)
		for ctx.Err() == nil {
			l.Allow(ctx, "key-ann")
			time.Sleep(5 * time.Millisecond)
		}
	}()
	p := startPrometheus(t, strings.TrimPrefix(service.URL, "http://"), "--enable-feature=native-histograms")
	classic := startPrometheus(t, strings.TrimPrefix(service.URL, "http://"))

	p.until(t, `tiered_breaker_state{state="closed"} == 1`)
	p.until(t, `rate(tiered_decisions_total{reason="granted",tier="local"}[5s]) > 0`)
	p.until(t, `histogram_count(rate(tiered_redis_round_trip_seconds[5s])) > 0`) // native
	p.until(t, `histogram_quantile(0.5, rate(tiered_redis_wait_seconds[5s])) < 1`)
	classic.until(t, `histogram_quantile(0.5, rate(tiered_redis_wait_seconds_bucket[5s])) < 1`)
	redis.Kill()
	p.until(t, `tiered_breaker_state{state="closed"} == 0`)
	p.until(t, `rate(tiered_decisions_total{reason="unavailable",tier="failover"}[5s]) > 0`)
	p.until(t, `ALERTS{alertname="LimiterRefusesAllWithoutRedis",alertstate="firing",severity="page",policy="api"}`)
	redis.Restart()
	p.until(t, `tiered_breaker_state{state="closed"} == 1`)
	for title, queries := range dashboard(t) {
		for _, q := range queries {
			if strings.HasSuffix(q, " > 0") { // what must not be
				continue
			}
			if p.query(t, q) == 0 || classic.query(t, q) == 0 {
				t.Errorf("%s: no answer to %s", title, q)
			}
		}
	}
	if n := classic.query(t, `{__name__=~"tiered_.*"}`); n != 67+43+10 {
		t.Errorf("%d series", n)
	}
}

// server is a running Prometheus.
type server struct{ url string }

func startPrometheus(t *testing.T, target string, args ...string) server {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not in PATH: install Debian's package prometheus, or run sh scripts/install-prometheus.sh")
	}
	rules := fatal.Get(filepath.Abs("alerts.yaml"))(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf(`global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs: [{job_name: api, static_configs: [{targets: [%q]}]}]
`, rules, target)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err == nil {
		err = os.WriteFile(config, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	cmd := exec.Command(path, append(args, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr)...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, redistest.DieWithParent()
	fatal.If(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if said, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("prometheus: %s", said)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return server{"http://" + addr}
}

// until waits until a query has an answer.
func (s server) until(t *testing.T, query string) {
	t.Helper()
	for deadline := time.Now().Add(40 * time.Second); s.query(t, query) == 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) { // a real server is waited for
			t.Fatalf("not within 40 s: %s", query)
		}
	}
}

// query returns how many series an answer has: 0 while the server does not listen yet.
func (s server) query(t *testing.T, query string) int {
	t.Helper()
	r, err := http.Get(s.url + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	body := fatal.Get(io.ReadAll(r.Body))(t)
	var answer struct {
		Status string
		Data   struct{ Result []any }
	}
	if r.StatusCode == http.StatusServiceUnavailable { // it starts
		return 0
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v, %s", query, err, body)
	}
	return len(answer.Data.Result)
}
