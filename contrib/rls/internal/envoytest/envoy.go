// Package envoytest starts real Envoys for tests, with the configuration that we hand out.
package envoytest

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

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// Program returns the real Envoy. TIERED_TEST_ENVOY names one that must be there. Without it, a
// test is skipped if there is none in PATH.
func Program(t *testing.T) string {
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

// Tree is a part of a configuration.
type Tree = map[string]any

// Under returns what is at a path of names and numbers in a configuration.
func Under(t *testing.T, at any, path ...any) Tree {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			at = at.(Tree)[step]
		case int:
			at = at.([]any)[step]
		}
	}
	if at == nil {
		t.Fatalf("the configuration has nothing at %v", path)
	}
	return at.(Tree)
}

// Parsed reads YAML.
func Parsed(t *testing.T, text string) (out any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

// Config is a bootstrap, with its parts that tests change.
type Config struct{ All, Manager, Filter, Host, Cluster Tree }

// HandedOut returns envoy/envoy.yaml, for addresses of this machine: of the replicas, and of what
// is behind Envoy.
func HandedOut(t *testing.T, behind string, replicas ...string) *Config {
	t.Helper()
	text, err := os.ReadFile("../envoy/envoy.yaml") // from ../bench
	if err != nil {
		text, err = os.ReadFile("../../envoy/envoy.yaml") // from ../cmd/tieredd
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &Config{All: Parsed(t, string(text)).(Tree)}
	c.Manager = Under(t, c.All, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	c.Filter = Under(t, c.Manager, "http_filters", 0, "typed_config")
	c.Host = Under(t, c.Manager, "route_config", "virtual_hosts", 0)
	c.Cluster = Under(t, c.All, "static_resources", "clusters", 0)
	c.Cluster["load_assignment"] = Assignment(replicas...)
	Under(t, c.All, "static_resources", "clusters", 1)["load_assignment"] = Assignment(behind)
	admin := Tree{}
	c.All["admin"] = admin
	for _, part := range []Tree{admin, Under(t, c.All, "static_resources", "listeners", 0)} {
		part["address"] = socket("127.0.0.1:0") // Envoy chooses a port and tells it
	}
	return c
}

func socket(address string) Tree {
	host, port, _ := strings.Cut(address, ":")
	n, _ := strconv.Atoi(port)
	return Tree{"socket_address": Tree{"address": host, "port_value": n}}
}

// costs are those of a gateway for language models: it asks with 0 hits at first, and with the cost
// when the answer has ended. Only a route's own configuration may have them.
const costs = `
envoy.filters.http.ratelimit:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
  rate_limits:
    - actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
      hits_addend: {number: 0}
    - actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
      hits_addend: {format: "%DYNAMIC_METADATA(cost:tokens)%"}
      apply_on_stream_done: true
`

const costOfAnswer = `
name: envoy.filters.http.header_to_metadata
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
  response_rules:
    - header: x-cost
      on_header_present: {metadata_namespace: cost, key: tokens, type: NUMBER}
`

// CountCosts makes requests for /cost count by x-user, with the x-cost of the answer, when that has
// ended.
func (c *Config) CountCosts(t *testing.T) {
	t.Helper()
	routes := c.Host["routes"].([]any)
	cost := Tree{"match": Tree{"prefix": "/cost"}, "route": Tree{"cluster": "shop"}, "typed_per_filter_config": Parsed(t, costs)}
	c.Host["routes"] = append([]any{cost}, routes...)
	filters := c.Manager["http_filters"].([]any)
	c.Manager["http_filters"] = []any{filters[0], Parsed(t, costOfAnswer), filters[1]}
}

// behind is a listener of Envoy itself that answers, so that nothing else has to run behind it.
// x-cost of an answer is x-costs of the request.
const behind = `
name: behind
filter_chains:
  - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: behind
          http_filters:
            - name: envoy.filters.http.router
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
              - name: behind
                domains: ["*"]
                routes:
                  - match: {prefix: /}
                    direct_response: {status: 200}
                    response_headers_to_add:
                      - header: {key: x-cost, value: "%REQ(x-costs)%"}
`

// AnswerItself puts the listener behind into the Envoy, at an address.
func (c *Config) AnswerItself(t *testing.T, address string) {
	t.Helper()
	l := Parsed(t, behind).(Tree)
	l["address"] = socket(address)
	all := c.All["static_resources"].(Tree)
	all["listeners"] = append(all["listeners"].([]any), l)
	Under(t, all, "clusters", 1)["load_assignment"] = Assignment(address)
}

// Assignment is the endpoints of a cluster.
func Assignment(addresses ...string) Tree {
	var endpoints []any
	for _, a := range addresses {
		endpoints = append(endpoints, Tree{"endpoint": Tree{"address": socket(a)}})
	}
	return Tree{"cluster_name": "tieredd", "endpoints": []any{Tree{"lb_endpoints": endpoints}}}
}

// Envoy is a real Envoy.
type Envoy struct {
	*exec.Cmd
	Address, Admin string
	Client         *http.Client
}

// Start starts an Envoy, which ends with the test.
func Start(t *testing.T, c *Config) *Envoy {
	t.Helper()
	e := &Envoy{Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}}
	text, err := json.Marshal(c.All)
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
	e.Cmd = exec.Command(Program(t), "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warn")
	e.Stdout, e.Stderr, e.SysProcAttr = &log, &log, redistest.DieWithParent()
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Client.CloseIdleConnections()
		_ = e.Process.Kill()
		_ = e.Wait()
		if t.Failed() {
			t.Logf("Envoy: %.4000s", log.String())
		}
	})
	redistest.WaitFor(t, "Envoy is not ready", func() bool {
		text, _ := os.ReadFile(admin)
		e.Admin = string(text)
		answer, err := e.Client.Get("http://" + e.Admin + "/ready")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	answer, err := e.Client.Get("http://" + e.Admin + "/listeners") // name::address
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	listeners, err := io.ReadAll(answer.Body)
	_, at, ok := strings.Cut("\n"+string(listeners), "\nweb::")
	if err != nil || !ok {
		t.Fatalf("Envoy listens at %q: %v", listeners, err)
	}
	at, _, _ = strings.Cut(at, "\n")
	e.Address = at
	return e
}

// Counts are Envoy's own counters about the calls. They are the judge.
type Counts struct{ OK, Over, Failed, Allowed int }

// Add returns c + o.
func (c Counts) Add(o Counts) Counts {
	return Counts{c.OK + o.OK, c.Over + o.Over, c.Failed + o.Failed, c.Allowed + o.Allowed}
}

// Sub returns c - o.
func (c Counts) Sub(o Counts) Counts {
	return Counts{c.OK - o.OK, c.Over - o.Over, c.Failed - o.Failed, c.Allowed - o.Allowed}
}

// Stats returns Envoy's statistics whose names match a regular expression.
func (e *Envoy) Stats(t *testing.T, names string) map[string]int {
	t.Helper()
	answer, err := e.Client.Get("http://" + e.Admin + "/stats?format=json&filter=" + url.QueryEscape(names))
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

// Counts returns what Envoy has counted.
func (e *Envoy) Counts(t *testing.T) Counts {
	t.Helper()
	s := e.Stats(t, `^cluster\.shop\.ratelimit\.`)
	return Counts{
		s["cluster.shop.ratelimit.ok"], s["cluster.shop.ratelimit.over_limit"], s["cluster.shop.ratelimit.error"],
		s["cluster.shop.ratelimit.failure_mode_allowed"],
	}
}

// Ask sends a request, and returns the answer without its body.
func (e *Envoy) Ask(t *testing.T, path string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := e.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return answer
}

// Flood asks n times for a path, by several clients of each Envoy, and returns the statuses.
func Flood(t *testing.T, envoys []*Envoy, n, clients int, path string, headers ...string) map[int]int {
	t.Helper()
	var next atomic.Int64
	results := make(chan map[int]int)
	for i := range clients * len(envoys) {
		go func() {
			statuses := map[int]int{}
			defer func() { results <- statuses }()
			for next.Add(1) <= int64(n) && !t.Failed() {
				r, err := http.NewRequest(http.MethodGet, "http://"+envoys[i%len(envoys)].Address+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for i := 0; i < len(headers); i += 2 {
					r.Header.Set(headers[i], headers[i+1])
				}
				answer, err := envoys[i%len(envoys)].Client.Do(r)
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

// Upstream starts what is behind Envoy. It answers what it is asked, and x-cost of an answer is
// that of the request.
func Upstream(t *testing.T) string {
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
