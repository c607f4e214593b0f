package main_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// stage is what a scenario is played on: an Envoy with a file that we hand out, and three replicas
// that it asks.
type stage struct {
	*replicas
	envoy   *envoytest.Envoy
	cluster string // of the replicas
}

// stat returns a statistic of the cluster.
func (s *stage) stat(t *testing.T, name string) int {
	t.Helper()
	for key, n := range s.envoy.Stats(t, `\.`+name+"$") {
		if strings.HasPrefix(key, "cluster."+s.cluster+".") {
			return n
		}
	}
	return 0
}

// healthy waits until Envoy takes so many replicas for healthy.
func (s *stage) healthy(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas are healthy for Envoy", n), func() bool {
		return s.stat(t, "membership_healthy") == n
	})
}

// unanswered plays an outage: what begins it, requests, and what ends it. It returns how many calls
// were not answered.
func (s *stage) unanswered(t *testing.T, requests int, begin, end func()) int {
	t.Helper()
	s.healthy(t, 3)
	envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, 100, 4, "/")
	before := s.envoy.Counts(t)
	begin()
	envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, requests, 4, "/")
	is := s.envoy.Counts(t).Sub(before)
	end()
	return is.Failed
}

// kill kills replicas at once, and signal sends them a signal. again starts those that have ended.
func (s *stage) kill(n int) func() { return s.signal(n, syscall.SIGKILL) }

func (s *stage) signal(n int, what syscall.Signal) func() {
	return func() {
		for _, p := range s.all[:n] {
			_ = p.Process.Signal(what)
		}
	}
}

func (s *stage) again(t *testing.T, n int) func() {
	return func() {
		for _, p := range s.all[:n] {
			_ = p.Wait()
			p.run(t)
		}
	}
}

// few is how many calls an outage may cost: about two for each client and each replica.
const few = 12

// scenarios are what an Envoy meets. Each returns what is wrong, or "".
var scenarios = map[string]func(*testing.T, *stage) string{
	"a replica is killed": func(t *testing.T, s *stage) string {
		if n := s.unanswered(t, 600, s.kill(1), s.again(t, 1)); n > few {
			return fmt.Sprintf("%d of 600 calls are not answered", n)
		}
		return ""
	},
	another: func(t *testing.T, s *stage) string {
		n := s.unanswered(t, 600, func() {
			s.kill(1)()
			s.healthy(t, 2)
			_ = s.all[1].Process.Kill()
		}, s.again(t, 2))
		if n > few {
			return fmt.Sprintf("%d of 600 calls are not answered", n)
		}
		return ""
	},
	"a replica is frozen": func(t *testing.T, s *stage) string {
		if n := s.unanswered(t, 200, s.signal(1, syscall.SIGSTOP), s.signal(1, syscall.SIGCONT)); n > few {
			return fmt.Sprintf("%d of 200 calls are not answered", n)
		}
		return ""
	},
	"a replica ends": func(t *testing.T, s *stage) string {
		n := s.unanswered(t, 100, func() {
			s.signal(1, syscall.SIGTERM)()
			ended := make(chan error, 1)
			go func() { ended <- s.all[0].Wait() }()
			for {
				select {
				case <-ended:
					return
				default:
					envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, 20, 2, "/")
					time.Sleep(10 * time.Millisecond)
				}
			}
		}, func() { s.all[0].run(t) })
		if n > 0 {
			return fmt.Sprintf("%d calls are not answered", n)
		}
		return ""
	},
	"a rule with fail-closed, and Redis is away": func(t *testing.T, s *stage) string {
		s.healthy(t, 3)
		s.redis.Kill()
		envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, 100, 2, "/closed")
		n := s.stat(t, "ejections_enforced_total")
		s.redis.Restart()
		if n > 0 {
			return fmt.Sprintf("%d replicas are left out, though each answers", n)
		}
		return ""
	},
	// Each of three connections takes 1000, and 1024 may wait for another connection by default.
	// More overflow only if they come within one turn of Envoy's loop, which a busy machine does
	// not manage, so max_pending_requests has no row below.
	"a crowd of 4500": func(t *testing.T, s *stage) string {
		s.healthy(t, 3)
		envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, 100, 4, "/")
		return s.burst(t, 4500)
	},
	"replicas stand still for 40 ms now and then": func(t *testing.T, s *stage) string {
		s.healthy(t, 3)
		envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, 100, 4, "/")
		before := s.envoy.Counts(t)
		for range 10 {
			s.signal(3, syscall.SIGSTOP)()
			asked := make(chan int)
			go func() {
				envoytest.Flood(t, []*envoytest.Envoy{s.envoy}, 4, 4, "/")
				asked <- 0
			}()
			time.Sleep(40 * time.Millisecond)
			s.signal(3, syscall.SIGCONT)()
			<-asked
		}
		if n := s.envoy.Counts(t).Sub(before); n.Failed > 0 {
			return fmt.Sprintf("%d of %d calls are not answered", n.Failed, n.OK+n.Failed)
		}
		return ""
	},
	"a client writes X-Forwarded-For": func(t *testing.T, s *stage) string {
		admitted := 0
		for i := range 12 {
			from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
			conn, err := from.Dial("tcp", s.envoy.Address)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: shop\r\nX-Forwarded-For: 10.0.0.%d\r\nConnection: close\r\n\r\n", i)
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			if answer.StatusCode == http.StatusOK {
				admitted++
			}
		}
		if admitted > 10 {
			return fmt.Sprintf("%d of 12 are admitted, want 10", admitted)
		}
		return ""
	},
	"a path is written in another way": func(t *testing.T, s *stage) string {
		return s.spellings(t, "/./checkout", "/shop/../checkout", "/%63heckout")
	},
	"a path has two slashes": func(t *testing.T, s *stage) string { return s.spellings(t, "//checkout", "/shop/..//checkout") },
	"a path has a slash that is escaped": func(t *testing.T, s *stage) string {
		return s.spellings(t, "/shop%2f..%2fcheckout", "/shop/..%5ccheckout")
	},
}

// burst asks so many times at one time, and returns what Envoy does not ask about.
func (s *stage) burst(t *testing.T, requests int) string {
	t.Helper()
	before := s.envoy.Counts(t)
	s.signal(3, syscall.SIGSTOP)() // so that none is answered before all are there
	client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}, Timeout: time.Minute}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			answer, err := client.Get("http://" + s.envoy.Address + "/")
			if err != nil {
				t.Error(err)
				return
			}
			_ = answer.Body.Close()
		})
	}
	overflow := func() int {
		return s.stat(t, "upstream_rq_active_overflow") + s.stat(t, "upstream_rq_pending_overflow")
	}
	eventually(t, "all are there", func() bool {
		return s.envoy.Stats(t, `^http\.web\.downstream_rq_active`)["http.web.downstream_rq_active"] == requests || overflow() > 0
	})
	s.signal(3, syscall.SIGCONT)()
	all.Wait()
	if over := overflow(); over > 0 {
		return fmt.Sprintf("Envoy does not ask about %d of %d: %+v", over, requests, s.envoy.Counts(t).Sub(before))
	}
	return ""
}

// spellings asks by an API key of its own until a path must be refused, and follows a redirection.
func (s *stage) spellings(t *testing.T, paths ...string) string {
	for i, path := range paths {
		key := fmt.Sprint("key", i, time.Now().UnixNano())
		admitted := 0
		for range 12 {
			at, status := path, 0
			for range 3 {
				var to string
				if status, to = get(t, s.envoy.Address, at, key); to == "" {
					break
				}
				at = to
			}
			if status == http.StatusOK {
				admitted++
			}
		}
		if admitted != 10 {
			return fmt.Sprintf("%s is admitted %d times of 12, want 10", path, admitted)
		}
	}
	return ""
}

// get asks for a path as it is, and returns the status and where the answer redirects to.
func get(t *testing.T, address, path, key string) (status int, to string) {
	t.Helper()
	conn := connectTo(t, address)
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: shop\r\nx-api-key: %s\r\nConnection: close\r\n\r\n", path, key)
	answer := fatal.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	_ = answer.Body.Close()
	to = answer.Header.Get("Location")
	if _, after, ok := strings.Cut(to, "://shop"); ok {
		to = after
	}
	return answer.StatusCode, to
}

// rulesHandedOut are those of kubernetes/limits.yaml for the checkout, and rules that an outage
// meets.
const rulesHandedOut = `domain: shop
descriptors:
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: remote_address, value: 127.0.0.2, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 1000000000}, tiered: {fail_mode: fail-closed}}
  - key: route
    value: checkout
    descriptors:
      - {key: api_key, rate_limit: {unit: year, requests_per_unit: 10}}
`

// protecting are the lines of envoy/envoy.yaml that keep something from passing, and what passes
// without each.
var protecting = []struct {
	line, scenario string
	without        func(*envoytest.Config)
}{
	{"outlier_detection", "a replica is killed", func(c *envoytest.Config) { delete(c.Cluster, "outlier_detection") }},
	{"outlier_detection", "a replica is frozen", func(c *envoytest.Config) { delete(c.Cluster, "outlier_detection") }},
	{"split_external_local_origin_errors", "a replica is killed", ofOutliers("split_external_local_origin_errors")},
	{"consecutive_local_origin_failure", "a replica is frozen", ofOutliers("consecutive_local_origin_failure")},
	{"enforcing_consecutive_5xx", "a rule with fail-closed, and Redis is away", ofOutliers("enforcing_consecutive_5xx")},
	{"max_ejection_percent", another, ofOutliers("max_ejection_percent")},
	{"health_checks", "a replica ends", func(c *envoytest.Config) { delete(c.Cluster, "health_checks") }},
	{"no_traffic_interval", "a replica ends", func(c *envoytest.Config) {
		delete(c.Cluster["health_checks"].([]any)[0].(envoytest.Tree), "no_traffic_interval")
	}},
	{"update_merge_window", another, ofBalancer("update_merge_window")},
	{"healthy_panic_threshold", another, ofBalancer("healthy_panic_threshold")},
	{"circuit_breakers", "a crowd of 4500", func(c *envoytest.Config) { delete(c.Cluster, "circuit_breakers") }},
	{"timeout", "replicas stand still for 40 ms now and then", func(c *envoytest.Config) { delete(c.Filter, "timeout") }},
	{"use_remote_address", "a client writes X-Forwarded-For", ofManager("use_remote_address")},
	{"normalize_path", "a path is written in another way", ofManager("normalize_path")},
	{"merge_slashes", "a path has two slashes", ofManager("merge_slashes")},
	{"path_with_escaped_slashes_action", "a path has a slash that is escaped", ofManager("path_with_escaped_slashes_action")},
}

// Each line of envoy/envoy.yaml that keeps an outage or a client from passing the limits is needed:
// with it all is well, and without it a real Envoy lets calls pass.
func TestEnvoyHandedOut(t *testing.T) {
	envoytest.Program(t)
	f := startReplicas(t, 3, rulesHandedOut, "TIERED_DRAIN_DELAY=2s")
	behind := envoytest.Upstream(t)
	begin := func(t *testing.T, scenario string, without func(*envoytest.Config)) *stage {
		t.Helper()
		c := envoytest.HandedOut(t, behind, f.addresses()...)
		c.Host["rate_limits"] = append(c.Host["rate_limits"].([]any), closedPath(t))
		if !strings.Contains(scenario, "still") && !strings.Contains(scenario, "frozen") {
			c.Filter["timeout"] = "60s" // a busy machine is no outage
		}
		if without != nil {
			without(c)
		}
		return &stage{f, envoytest.Start(t, c), "tieredd"}
	}
	for scenario, play := range scenarios {
		t.Run(scenario, func(t *testing.T) {
			var wrong string
			for range 3 { // a busy machine answers late by itself
				if wrong = play(t, begin(t, scenario, nil)); wrong == "" {
					return
				}
				t.Log(wrong)
			}
			t.Error(wrong)
		})
	}
	for _, c := range protecting {
		t.Run("without "+c.line+": "+c.scenario, func(t *testing.T) {
			for range 3 { // a busy machine may be too late for the outage
				s := begin(t, c.scenario, c.without)
				if c.scenario == another {
					time.Sleep(1100 * time.Millisecond) // without update_merge_window, changes of the first second are merged
				}
				if wrong := scenarios[c.scenario](t, s); wrong != "" {
					t.Log(wrong)
					return
				}
			}
			t.Error("nothing is wrong without it: the line is not needed")
		})
	}
}

// closedPath makes a descriptor of requests for a path, whose rule fails closed.
func closedPath(t *testing.T) any {
	return envoytest.Parsed(t, `actions:
- header_value_match: {descriptor_key: closed, descriptor_value: a, headers: [{name: ":path", string_match: {exact: /closed}}]}`)
}

const another = "one replica is killed, and another right after it"

func ofOutliers(line string) func(*envoytest.Config) {
	return func(c *envoytest.Config) { delete(c.Cluster["outlier_detection"].(envoytest.Tree), line) }
}

func ofBalancer(line string) func(*envoytest.Config) {
	return func(c *envoytest.Config) { delete(c.Cluster["common_lb_config"].(envoytest.Tree), line) }
}

func ofManager(line string) func(*envoytest.Config) {
	return func(c *envoytest.Config) { delete(c.Manager, line) }
}

// structural are lines that Envoy refuses a file without, or older Envoys do, and
// max_pending_requests: see the crowd.
const structural = "name type domain stat_prefix interval timeout unhealthy_threshold healthy_threshold grpc_health_check common_lb_config " +
	"healthy_panic_threshold.value thresholds max_requests max_pending_requests typed_config rate_limit_service grpc_service envoy_grpc cluster_name " +
	"transport_api_version typed_extension_protocol_options envoy.extensions.upstreams.http.v3.HttpProtocolOptions explicit_http_config " +
	"http2_protocol_options load_assignment http_filters route_config @type"

// Each line of envoy/envoy.yaml about the service and about requests is in the table, or Envoy asks
// for it.
func TestEnvoyHandedOutIsShown(t *testing.T) {
	known := map[string]bool{}
	for name := range strings.FieldsSeq(structural) {
		known[name] = true
	}
	for _, c := range protecting {
		known[c.line] = true
	}
	c := envoytest.HandedOut(t, "127.0.0.1:1", "127.0.0.1:2")
	delete(c.Cluster, "load_assignment")
	delete(c.Manager, "route_config")
	delete(c.Manager, "http_filters")
	var walk func(name string, at any)
	walk = func(name string, at any) {
		switch at := at.(type) {
		case envoytest.Tree:
			for key, value := range at {
				if !known[key] && !known[name+"."+key] {
					t.Errorf("nothing shows that %s of %s is needed", key, name)
				}
				walk(key, value)
			}
		case []any:
			for _, value := range at {
				walk(name, value)
			}
		}
	}
	walk("the cluster", c.Cluster)
	walk("the connection manager", c.Manager)
	walk("the filter", c.Filter)
}
