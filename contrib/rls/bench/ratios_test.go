package bench_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

const config = `domain: bench
descriptors:
  - key: user
    rate_limit:
      unit: minute
      requests_per_unit: 10000000
  - key: edge
    rate_limit:
      unit: second
      requests_per_unit: 300
  - key: member
    rate_limit:
      unit: minute
      requests_per_unit: 10000000
  - key: visitor
    rate_limit:
      unit: minute
      requests_per_unit: 1000
`

// shared is what only our file says, of the last two descriptors.
func shared(config string) string {
	const standing = "    tiered: {algorithm: token bucket, standing: 1/8}\n"
	visitor := strings.Index(config, "  - key: visitor")
	return config[:visitor] + standing + config[visitor:] + standing
}

// A line is the median of this many rounds. In a round each service is offered the load for a time,
// one after the other.
const (
	rounds = 7
	turn   = 2 * time.Second
	rate   = 3000 // calls per second: half of what two processors can do with the generator on them

	firstShares = 70 * time.Second // a new table has its first shares after 65 s
)

// TestRatios prints the lines of `make rls-bench`. The processor time of the generator does not
// count.
func TestRatios(t *testing.T) {
	if os.Getenv("TIERED_TEST_RLS_BENCH") == "" {
		t.Skip("takes two minutes, and builds envoyproxy/ratelimit: make rls-bench, or TIERED_TEST_RLS_BENCH=1")
	}
	ours, theirs := build(t)
	a, b := ours.start(t, 1, config), theirs.start(t, 1, config)
	withShares := ours.start(t, 1, shared(config))
	begins := time.Now().Add(firstShares)
	bound := func(name string, value, bound float64, least bool) {
		l := ratio.Line{Name: name, Value: value, Bound: bound, Least: least}
		fmt.Println(l)
		if !l.Holds() {
			t.Errorf("%s is %v, which misses its bound", name, value)
		}
	}
	var shown used
	compare := func(l load) (quotients func(of func(used) float64) float64) {
		var us, them []used
		for i := range rounds {
			if l.zipf == 0 {
				l.first += l.keys * i // keys that neither has seen
			}
			turns := []func(){
				func() { us = append(us, a.offer(t, l, turn)) },
				func() { them = append(them, b.offer(t, l, turn)) },
			}
			if i%2 == 1 {
				slices.Reverse(turns)
			}
			for _, f := range turns {
				f()
			}
		}
		t.Logf("%+v", l)
		for i := range us {
			t.Logf("ours   %v", us[i])
			t.Logf("theirs %v", them[i])
		}
		shown = us[rounds-1] // when its keys are known
		return func(of func(used) float64) float64 {
			var q []float64
			for i := range us {
				q = append(q, of(us[i])/of(them[i]))
			}
			slices.Sort(q)
			return q[rounds/2]
		}
	}
	processor := func(u used) float64 { return u.per((u.replicas + u.redis).Seconds()) }
	p99 := func(u used) float64 { return u.p99.Seconds() }
	commands := func(u used) float64 { return u.per(u.commands) }

	hot := compare(load{descriptor: "user", rate: rate, keys: 1})
	if shown.admitted != shown.calls {
		t.Errorf("%d of %d calls were admitted: must be all", shown.admitted, shown.calls)
	}
	bound("hot descriptor: calls per second of processor, service and Redis: ours ÷ theirs", 1/hot(processor), 2, true)
	bound("hot descriptor: p99: ours ÷ theirs", hot(p99), 0.5, false)
	bound("hot descriptor: Redis commands per call: ours ÷ theirs", hot(commands), 0.01, false)
	rare := compare(load{descriptor: "user", rate: rate, keys: 100_000, first: 1000})
	bound("rarely used descriptors: calls per second of processor, service and Redis: ours ÷ theirs", 1/rare(processor), 1, true)
	bound("rarely used descriptors: p99: ours ÷ theirs", rare(p99), 1.1, false)
	visitors := load{descriptor: "visitor", rate: rate, keys: 100_000, zipf: 1.1}
	zipf := compare(visitors)
	bound("Zipf 1.1, 1000 per minute: calls per second of processor, service and Redis: ours ÷ theirs", 1/zipf(processor), 1.05, true)
	bound("Zipf 1.1, 1000 per minute: p99: ours ÷ theirs", zipf(p99), 1, false)
	time.Sleep(time.Until(begins)) // the lines before may take less
	a = withShares
	members := compare(visitors)
	bound("Zipf 1.1, 1000 per minute, standing shares: calls per second of processor: ours ÷ theirs", 1/members(processor), 1.8, true)
	bound("Zipf 1.1, 1000 per minute, standing shares: p99: ours ÷ theirs", members(p99), 1, false)
	bound("Zipf 1.1, 1000 per minute, standing shares: Redis commands per call", commands(shown), 0.15, false)
	shares := compare(load{descriptor: "member", rate: rate, keys: 100_000, first: 1000})
	bound("rarely used descriptors, standing shares: calls per second of processor: ours ÷ theirs", 1/shares(processor), 1.5, true)
	bound("rarely used descriptors, standing shares: p99: ours ÷ theirs", shares(p99), 1, false)
	bound("rarely used descriptors, standing shares: Redis commands per call: ours ÷ theirs", shares(commands), 0.02, false)

	t.Logf("theirs: %d hits over the limit at the edges of windows", overAdmission(t, theirs))
	bound("four replicas, edges of windows: hits over the limit", float64(overAdmission(t, ours)), 0, false)
}

// overAdmission offers more than the limit to four replicas for whole windows, and returns how many
// hits more than the limit were admitted in them. No call is made near the beginning of the first
// window and the end of the last.
func overAdmission(t *testing.T, p program) int64 {
	t.Helper()
	const windows, limit, margin = 4, 300, 100 * time.Millisecond
	s := p.start(t, 4, config)
	r := request("edge", "one")
	now := time.Now()
	begin := now.Truncate(time.Second).Add(time.Second + margin)
	end := begin.Add(windows*time.Second - 2*margin)
	time.Sleep(time.Until(begin))
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for time.Now().Before(end) {
				answer, err := s.replicas[i%4].client.ShouldRateLimit(context.Background(), r)
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
					return
				}
				if answer.GetOverallCode() == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n < windows*limit*8/10 {
		t.Errorf("%s admitted %d hits in %d windows of %d", s.name, n, windows, limit)
	}
	return max(admitted.Load()-windows*limit, 0)
}
