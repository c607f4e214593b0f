package main_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
)

const realRules = `domain: shop
descriptors:
  - {key: api_key, rate_limit: {unit: year, requests_per_unit: 60}}
  - {key: path, value: /sale, rate_limit: {unit: year, requests_per_unit: 45}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: each, rate_limit: {unit: year, requests_per_unit: 1000000}}
`

// realLimits are the descriptors that Envoy makes.
const realLimits = `
- actions: [{request_headers: {header_name: x-api-key, descriptor_key: api_key}}]
- actions: [{request_headers: {header_name: ":path", descriptor_key: path}}]
- actions: [{request_headers: {header_name: x-each, descriptor_key: each}}]
`

// world is two Envoys, three replicas and a Redis.
type world struct {
	*replicas
	envoys []*envoytest.Envoy
}

func (w *world) counts(t *testing.T) (sum envoytest.Counts) {
	t.Helper()
	for _, e := range w.envoys {
		sum = sum.Add(e.Counts(t))
	}
	return sum
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{replicas: startReplicas(t, 3, realRules)}
	behind := envoytest.Upstream(t)
	for i := range 2 {
		c := envoytest.HandedOut(t, behind, w.addresses()...)
		c.Filter["timeout"] = "30s" // a busy machine is no outage
		c.Filter["failure_mode_deny"] = i == 1
		c.Filter["enable_x_ratelimit_headers"], c.Filter["enable_retry_after_header"] = "DRAFT_VERSION_03", true
		c.Host["rate_limits"] = envoytest.Parsed(t, realLimits)
		c.CountCosts(t)
		w.envoys = append(w.envoys, envoytest.Start(t, c))
	}
	for _, e := range w.envoys {
		(&stage{w.replicas, e, "tieredd"}).healthy(t, 3)
	}
	return w
}

// Two Envoys, three replicas and a Redis, with the configuration of envoy/envoy.yaml. Envoy's own
// counters are the judge.
func TestRealEnvoy(t *testing.T) {
	envoytest.Program(t)
	w := newWorld(t)
	for _, part := range []struct {
		name string
		play func(*testing.T, *world)
	}{
		{"limits", playLimits},
		{"costs after the answer", playCosts},
		{"Redis is frozen and killed", playRedis},
		{"replicas are gone", playGone},
	} {
		t.Run(part.name, func(t *testing.T) {
			begin := time.Now()
			part.play(t, w)
			t.Logf("%v; Envoys: %+v", time.Since(begin), w.counts(t))
		})
	}
}

// playLimits demands that a limit is used to the last request and not beyond, whatever the
// descriptor is made of, and that a refusal has Envoy's headers. What replicas hold in leases comes
// back within a second or so, so it asks again.
func playLimits(t *testing.T, w *world) {
	for _, c := range []struct {
		name  string
		limit int
		path  string
		more  []string
	}{
		{"a header", 60, "/", []string{"x-api-key", "ann"}},
		{"a path", 45, "/sale", nil},
	} {
		admitted := 0
		ask := func(i int) *http.Response { return w.envoys[i%2].Ask(t, c.path, c.more...) }
		eventually(t, c.name+": the limit is used", func() bool {
			for i := range 40 {
				r := ask(i)
				switch r.StatusCode {
				case http.StatusOK:
					admitted++
				case http.StatusTooManyRequests:
					checkRefusal(t, r.Header, c.limit)
				default:
					t.Fatalf("%s: %s", c.name, r.Status)
				}
			}
			return admitted >= c.limit
		})
		for i := range 60 {
			if ask(i).StatusCode == http.StatusOK {
				admitted++
			}
		}
		if admitted != c.limit {
			t.Errorf("%s: %d are admitted, want %d", c.name, admitted, c.limit)
		}
	}
	if n := w.counts(t); n.Failed+n.Allowed > 0 || n.Over < 100 {
		t.Errorf("%+v: want no call to fail", n)
	}
}

func checkRefusal(t *testing.T, h http.Header, limit int) {
	t.Helper()
	retry, _ := strconv.Atoi(h.Get("Retry-After"))
	reset, _ := strconv.Atoi(h.Get("X-Ratelimit-Reset"))
	if h.Get("X-Envoy-Ratelimited") != "true" || !strings.HasPrefix(h.Get("X-Ratelimit-Limit"), strconv.Itoa(limit)+", "+strconv.Itoa(limit)+";w=31536000") ||
		h.Get("X-Ratelimit-Remaining") != "0" || reset < 1 || reset > 366*24*3600 || retry != reset {
		t.Errorf("the headers of a refusal: %v", h)
	}
}

// playCosts demands that costs count that are known when the answer has ended: no request is
// refused before, and all are after the limit is used.
func playCosts(t *testing.T, w *world) {
	const limit, cost = 1000, 150
	admitted := 0
	for i := 0; ; i++ {
		r := askCost(t, w.envoys[i%2], "x-user", "ann", "x-costs", strconv.Itoa(cost))
		if r.StatusCode == http.StatusTooManyRequests {
			break
		}
		admitted++
		if admitted > 3*limit/cost {
			t.Fatalf("%d are admitted, of %d each", admitted, cost)
		}
		time.Sleep(60 * time.Millisecond) // Redis hears of a cost within 50 ms
	}
	if admitted < limit/cost {
		t.Errorf("%d are admitted before the limit is used", admitted)
	}
	t.Logf("%d answers of %d are admitted with %d", admitted, cost, limit)
	if n := w.counts(t); n.Failed > 0 {
		t.Errorf("%+v: want no call to fail", n)
	}
}

// askCost asks for /cost, and returns when the cost of an admitted request is told.
func askCost(t *testing.T, e *envoytest.Envoy, headers ...string) *http.Response {
	t.Helper()
	calls := func() map[string]int { return e.Stats(t, `^cluster\.tieredd\.upstream_rq_(total|active)`) }
	before := calls()["cluster.tieredd.upstream_rq_total"]
	answer := e.Ask(t, "/cost", headers...)
	if answer.StatusCode == http.StatusOK {
		eventually(t, "the cost is told", func() bool { // ratelimit.ok does not count that call
			n := calls()
			return n["cluster.tieredd.upstream_rq_total"] == before+2 && n["cluster.tieredd.upstream_rq_active"] == 0
		})
	}
	return answer
}

// playRedis demands that no call fails while Redis is away: each has a key of its own, so each asks
// Redis.
func playRedis(t *testing.T, w *world) {
	before := w.counts(t)
	for name, fails := range map[string]struct{ begin, end func() }{
		"frozen": {w.redis.Pause, w.redis.Resume}, "killed": {w.redis.Kill, w.redis.Restart},
	} {
		fails.begin()
		for i := range 10 {
			for status, n := range envoytest.Flood(t, w.envoys, 30, 3, "/", "x-each", name+strconv.Itoa(i)) {
				if status != http.StatusOK {
					t.Errorf("%s: %d answers %d", name, n, status)
				}
			}
		}
		fails.end()
	}
	if n := w.counts(t).Sub(before); n.Failed > 0 || n.OK != 600 {
		t.Errorf("%+v: want no call to fail", n)
	}
}

// playGone demands that failure_mode_deny decides where no replica is left.
func playGone(t *testing.T, w *world) {
	for _, p := range w.all {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
	for i, e := range w.envoys {
		before := e.Counts(t)
		want := map[int]int{http.StatusOK: 30}
		if i == 1 {
			want = map[int]int{http.StatusInternalServerError: 30}
		}
		if got := envoytest.Flood(t, []*envoytest.Envoy{e}, 30, 3, "/"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("failure_mode_deny is %t: the answers are %v, want %v", i == 1, got, want)
		}
		is, wants := e.Counts(t).Sub(before), envoytest.Counts{Failed: 30, Allowed: 30}
		if i == 1 {
			wants.Allowed = 0
		}
		if is != wants {
			t.Errorf("failure_mode_deny is %t: %+v, want %+v", i == 1, is, wants)
		}
	}
}
