package main_test

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ranclock"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// fleet is three replicas with one Redis, and a client that goes from one to the other.
type fleet struct {
	replicas []*process
	client   pb.RateLimitServiceClient
}

func startFleet(t *testing.T, config, redis string, env ...string) *fleet {
	t.Helper()
	f := &fleet{}
	to := manual.NewBuilderWithScheme("fleet")
	var addresses []resolver.Address
	for range 3 {
		p := start(t, config, append([]string{"REDIS_URL=" + redis, "TIERED_PROCESSES=3"}, env...)...)
		f.replicas = append(f.replicas, p)
		addresses = append(addresses, resolver.Address{Addr: p.address})
	}
	to.InitialState(resolver.State{Addresses: addresses})
	conn := fatal.Get(grpc.NewClient("fleet:///", grpc.WithResolvers(to),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`)))(t)
	t.Cleanup(func() { _ = conn.Close() })
	f.client = pb.NewRateLimitServiceClient(conn)
	return f
}

// load is what a fleet answered.
type load struct {
	asked, admitted, failed atomic.Int64
	longest                 longest
	idle                    longest      // of calls that meet no limit: they pass the same processes
	failure                 atomic.Value // one of them
}

// longest is the longest of some times, in ns.
type longest struct{ atomic.Int64 }

func (l *longest) note(took time.Duration) {
	for most := l.Load(); int64(took) > most && !l.CompareAndSwap(most, int64(took)); most = l.Load() {
	}
}

// offer asks again and again while f runs. In the request, # is the number of the call.
func (f *fleet) offer(t *testing.T, request string, during func()) *load {
	t.Helper()
	l := &load{}
	clock := ranclock.New(t) // the callers' part of a call is in this process
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				begin := clock.Now()
				_, _ = f.client.ShouldRateLimit(context.Background(), behavior.Request("other | user=a"))
				l.idle.note(clock.Since(begin))
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	for range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				number := strconv.FormatInt(l.asked.Add(1), 10)
				begin := clock.Now()
				answer, err := f.client.ShouldRateLimit(context.Background(), behavior.Request(strings.ReplaceAll(request, "#", number)))
				l.longest.note(clock.Since(begin))
				if err != nil {
					l.failed.Add(1)
					l.failure.Store(err)
				} else if answer.GetOverallCode() == pb.RateLimitResponse_OK {
					l.admitted.Add(1)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	during()
	stop()
	all.Wait()
	return l
}

// checkLongest demands that no call waited for Redis for longer than it may. On a busy machine all
// calls take longer, so it allows for what calls took meanwhile that meet no limit.
func (l *load) checkLongest(t *testing.T, when string) {
	t.Helper()
	took, idle := time.Duration(l.longest.Load()), time.Duration(l.idle.Load())
	t.Logf("%s: %d calls, %d admitted, %d failed, the longest took %v, and without a limit %v", when, l.asked.Load(),
		l.admitted.Load(), l.failed.Load(), took, idle)
	if most := defaults.Budget + 10*time.Millisecond + 2*idle; took > most {
		t.Errorf("%s: a call took %v, want at most %v", when, took, most)
	}
}

// decided matches the metrics of a replica that has decided something.
var decided = regexp.MustCompile(`(?m)^tiered_decisions_total{.*} [1-9]`)

// Each of three replicas is deployed anew under load. No call fails, and the limit is used to the
// last hit, and not beyond: each replica gives back what it holds.
func TestRollingDeploy(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds of real time")
	}
	const limit = 2000
	f := startFleet(t, "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 2000}}\n",
		redistest.Start(t).URL(), patient)
	l := f.offer(t, "shop | user=a", func() {
		for _, p := range f.replicas {
			p.terminate(t)
			p.run(t)
			eventually(t, "the client has come back to it", func() bool {
				_, metrics := p.get("/metrics")
				return decided.MatchString(metrics)
			})
		}
	})
	if l.failed.Load() > 0 || l.admitted.Load() > limit {
		t.Errorf("%d calls of %d failed (%v), and %d hits were admitted of %d", l.failed.Load(), l.asked.Load(),
			l.failure.Load(), l.admitted.Load(), limit)
	}
	rest := f.offer(t, "shop | user=a", func() {
		eventually(t, "the limit is used up", func() bool {
			answer, err := f.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a +0"))
			return err == nil && answer.GetStatuses()[0].GetLimitRemaining() == 0
		})
		time.Sleep(time.Second)
	})
	t.Logf("%d and %d calls, the longest took %v", l.asked.Load(), rest.asked.Load(), time.Duration(l.longest.Load()))
	if all := l.admitted.Load() + rest.admitted.Load(); all != limit || rest.failed.Load() > 0 {
		t.Errorf("%d hits were admitted, want %d; %d calls failed", all, limit, rest.failed.Load())
	}
}

// Redis is killed or frozen under load. The fail mode of each rule decides, and no call waits for
// long.
func TestRedisFailsUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	const config = `domain: shop
descriptors:
  - {key: local, rate_limit: {unit: year, requests_per_unit: 300}}
  - {key: open, rate_limit: {unit: year, requests_per_unit: 300}, tiered: {fail_mode: fail-open}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 300}, tiered: {fail_mode: fail-closed}}
`
	for name, fails := range map[string]func(*redistest.Server){"killed": (*redistest.Server).Kill, "frozen": (*redistest.Server).Pause} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t)
			f := startFleet(t, config, redis.URL())
			modes := []string{"local", "open", "closed"}
			loads := make([]*load, len(modes))
			var all sync.WaitGroup
			for i, mode := range modes { // each call asks Redis, because it has a key of its own
				all.Go(func() { loads[i] = f.offer(t, "shop | "+mode+"=#", func() { time.Sleep(2 * time.Second) }) })
			}
			time.Sleep(time.Second)
			fails(redis)
			all.Wait()
			for i, l := range loads {
				l.checkLongest(t, modes[i]+", when it fails")
				if closed := modes[i] == "closed"; l.admitted.Load()+l.failed.Load() != l.asked.Load() || closed != (l.failed.Load() > 0) {
					t.Errorf("%s: %d of %d admitted, %d failed: %v", modes[i], l.admitted.Load(), l.asked.Load(), l.failed.Load(),
						l.failure.Load())
				}
			}
			for _, c := range []struct {
				mode     string
				right    func(l *load) bool
				question string
			}{
				{"local", func(l *load) bool { return l.failed.Load() == 0 && l.admitted.Load() <= 300 && l.admitted.Load() > 0 }, "its shares"},
				{"open", func(l *load) bool { return l.failed.Load() == 0 && l.admitted.Load() == l.asked.Load() }, "all"},
				{"closed", func(l *load) bool { return l.admitted.Load() == 0 && l.failed.Load() == l.asked.Load() }, "none"},
			} {
				l := f.offer(t, "shop | "+c.mode+"=a", func() { time.Sleep(2 * time.Second) })
				l.checkLongest(t, c.mode+", after that")
				if !c.right(l) {
					t.Errorf("%s: %d of %d admitted, %d failed: want %s", c.mode, l.admitted.Load(), l.asked.Load(), l.failed.Load(), c.question)
				}
			}
		})
	}
}
