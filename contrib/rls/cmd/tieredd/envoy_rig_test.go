package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
)

// envoyProgram returns the real Envoy. TIERED_TEST_ENVOY names one that must be there. Without it, a test is skipped if
// there is none in PATH.
func envoyProgram(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("real time, through a real Envoy")
	}
	name := os.Getenv("TIERED_TEST_ENVOY")
	path, err := exec.LookPath(cmp.Or(name, "envoy"))
	switch {
	case err == nil:
		return path
	case name == "":
		t.Skip("no Envoy asks the service: TIERED_TEST_ENVOY names none, and there is none in PATH (make test-long fetches one)")
	}
	t.Fatalf("TIERED_TEST_ENVOY is %q: must be an Envoy: %v", name, err)
	return ""
}

// tree is a part of a configuration.
type tree = map[string]any

// under returns what is at a path of names and numbers in a configuration.
func under(t *testing.T, at any, path ...any) tree {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			at = at.(tree)[step]
		case int:
			at = at.([]any)[step]
		}
	}
	if at == nil {
		t.Fatalf("the configuration has nothing at %v", path)
	}
	return at.(tree)
}

// parsed reads YAML.
func parsed(t *testing.T, text string) (out any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

// envoyConfig is a bootstrap, with its parts that tests change.
type envoyConfig struct{ all, manager, filter, host, cluster tree }

// handedOut returns envoy/envoy.yaml, for addresses of this machine: of the replicas, and of what is behind Envoy.
func handedOut(t *testing.T, behind string, replicas ...string) *envoyConfig {
	t.Helper()
	text, err := os.ReadFile("../../envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := &envoyConfig{all: parsed(t, string(text)).(tree)}
	c.manager = under(t, c.all, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	c.filter = under(t, c.manager, "http_filters", 0, "typed_config")
	c.host = under(t, c.manager, "route_config", "virtual_hosts", 0)
	c.cluster = under(t, c.all, "static_resources", "clusters", 0)
	c.cluster["load_assignment"] = assignment(replicas...)
	under(t, c.all, "static_resources", "clusters", 1)["load_assignment"] = assignment(behind)
	admin := tree{}
	c.all["admin"] = admin
	for _, part := range []tree{admin, under(t, c.all, "static_resources", "listeners", 0)} {
		part["address"] = socket("127.0.0.1:0") // Envoy chooses a port and tells it
	}
	return c
}

func socket(address string) tree {
	host, port, _ := strings.Cut(address, ":")
	n, _ := strconv.Atoi(port)
	return tree{"socket_address": tree{"address": host, "port_value": n}}
}

// assignment is the endpoints of a cluster.
func assignment(addresses ...string) tree {
	var endpoints []any
	for _, a := range addresses {
		endpoints = append(endpoints, tree{"endpoint": tree{"address": socket(a)}})
	}
	return tree{"cluster_name": "tieredd", "endpoints": []any{tree{"lb_endpoints": endpoints}}}
}

// envoy is a real Envoy.
type envoy struct {
	*exec.Cmd
	address, admin string
	client         *http.Client
}

// startEnvoy starts an Envoy, which ends with the test.
func startEnvoy(t *testing.T, c *envoyConfig) *envoy {
	t.Helper()
	e := &envoy{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}}
	text, err := json.Marshal(c.all)
	if err != nil {
		t.Fatal(err)
	}
	file, admin := filepath.Join(t.TempDir(), "envoy.json"), filepath.Join(t.TempDir(), "admin")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // or Envoy would die with the thread
	t.Cleanup(runtime.UnlockOSThread)
	var log bytes.Buffer
	e.Cmd = exec.Command(envoyProgram(t), "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warn")
	e.Stdout, e.Stderr, e.SysProcAttr = &log, &log, redistest.DieWithParent()
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.client.CloseIdleConnections()
		_ = e.Process.Kill()
		_ = e.Wait()
		if t.Failed() {
			t.Logf("Envoy: %.4000s", log.String())
		}
	})
	eventually(t, "Envoy is ready", func() bool {
		text, _ := os.ReadFile(admin)
		e.admin = string(text)
		answer, err := e.client.Get("http://" + e.admin + "/ready")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	answer, err := e.client.Get("http://" + e.admin + "/listeners") // name::address
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	listeners, err := io.ReadAll(answer.Body)
	_, at, ok := strings.Cut(strings.TrimSpace(string(listeners)), "::")
	if err != nil || !ok {
		t.Fatalf("Envoy listens at %q: %v", listeners, err)
	}
	e.address = at
	return e
}

// counts are Envoy's own counters about the calls. They are the judge.
type counts struct{ OK, Over, Failed, Allowed int }

func (c counts) sub(o counts) counts {
	return counts{c.OK - o.OK, c.Over - o.Over, c.Failed - o.Failed, c.Allowed - o.Allowed}
}

// stats returns Envoy's statistics whose names match a regular expression.
func (e *envoy) stats(t *testing.T, names string) map[string]int {
	t.Helper()
	answer, err := e.client.Get("http://" + e.admin + "/stats?format=json&filter=" + url.QueryEscape(names))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var out struct {
		Stats []struct {
			Name  string
			Value any
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, s := range out.Stats {
		if n, ok := s.Value.(float64); ok {
			all[s.Name] = int(n)
		}
	}
	return all
}

func (e *envoy) counts(t *testing.T) counts {
	t.Helper()
	s := e.stats(t, `^cluster\.shop\.ratelimit\.`)
	return counts{
		s["cluster.shop.ratelimit.ok"], s["cluster.shop.ratelimit.over_limit"], s["cluster.shop.ratelimit.error"],
		s["cluster.shop.ratelimit.failure_mode_allowed"],
	}
}

// ask sends a request, and returns the answer without its body.
func (e *envoy) ask(t *testing.T, path string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := e.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return answer
}

// flood asks n times for a path, by several clients of each Envoy, and returns the statuses.
func flood(t *testing.T, envoys []*envoy, n, clients int, path string, headers ...string) map[int]int {
	t.Helper()
	var next atomic.Int64
	results := make(chan map[int]int)
	for i := range clients * len(envoys) {
		go func() {
			statuses := map[int]int{}
			defer func() { results <- statuses }()
			for next.Add(1) <= int64(n) && !t.Failed() {
				r, err := http.NewRequest(http.MethodGet, "http://"+envoys[i%len(envoys)].address+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for i := 0; i < len(headers); i += 2 {
					r.Header.Set(headers[i], headers[i+1])
				}
				answer, err := envoys[i%len(envoys)].client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				statuses[answer.StatusCode]++
			}
		}()
	}
	all := map[int]int{}
	for range clients * len(envoys) {
		for status, k := range <-results {
			all[status] += k
		}
	}
	return all
}

// upstream starts what is behind Envoy. It answers what it is asked, and x-cost of an answer is that of the request.
func upstream(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cost := r.Header.Get("x-costs"); cost != "" {
			w.Header().Set("x-cost", cost)
		}
		w.Header().Set("x-path", r.URL.EscapedPath())
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// replicas are replicas of tieredd with one Redis.
type replicas struct {
	redis *redistest.Server
	all   []*process
}

func startReplicas(t *testing.T, n int, config string, env ...string) *replicas {
	t.Helper()
	f := &replicas{redis: redistest.Start(t)}
	env = append([]string{"REDIS_URL=" + f.redis.URL(), "TIERED_PROCESSES=" + strconv.Itoa(n)}, env...)
	for range n {
		f.all = append(f.all, start(t, config, env...))
	}
	return f
}

func (f *replicas) addresses() (all []string) {
	for _, p := range f.all {
		all = append(all, p.address)
	}
	return all
}
