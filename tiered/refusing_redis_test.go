package tiered_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const errFull = replied("OOM command not allowed when used memory > 'maxmemory'.")

// full is a store that may refuse to write: it answers what writes nothing, as a server does that is full, or a
// replica.
type full struct {
	*distant
	is atomic.Bool

	mu       sync.Mutex
	together bool // a pipeline held a denial and a refused write
}

func (s *full) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if !s.is.Load() {
		s.distant.Run(ctx, timeout, calls, results)
		return
	}
	time.Sleep(s.trip)
	denied, refused := false, false
	for i := range calls {
		s.Memory.Clone().Run(ctx, timeout, calls[i:i+1], results[i:i+1]) // what it would do is forgotten
		if r := results[i].Reply; calls[i].Lease != "" && r.Code <= lua.Denied || r.Grant > 0 {
			results[i], refused = remote.Result{Err: errFull}, true
		} else if r.Code == lua.Denied {
			denied = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.together = s.together || denied && refused
}

func (s *full) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if s.is.Load() {
		time.Sleep(s.trip)
		return remote.Census{}, errFull
	}
	return s.distant.Presence(ctx, timeout, n, p)
}

// A store that cannot write does not decide. It may still deny direct takes, because that writes nothing. The fail mode
// decides those, and they do not count as a healthy answer. The store decides again as soon as it has written.
func TestStoreThatCannotWriteDoesNotDecide(t *testing.T) {
	for mode, reason := range map[tiered.FailMode]tiered.Reason{
		tiered.FailOpen:  tiered.Open,
		tiered.FailLocal: tiered.Fallback, tiered.FailClosed: tiered.Unavailable,
	} {
		for _, together := range []bool{true, false} {
			bubble(t, fmt.Sprintf("%v, in one pipeline %t", mode, together), func(t *testing.T) {
				store := &full{distant: newDistant(ms)}
				p := tiered.Policy{Name: "api", Limit: tiered.PerDay(10), FailMode: mode, Lease: neverLeased}
				other := limiter(t, store, p, nil)
				for i := range 20 {
					want(t, other.AllowN(t.Context(), fmt.Sprint("used up ", i), 10), tiered.Granted)
				}
				l := limiter(t, store, p, nil) // which knows nothing of that
				want(t, l.Allow(t.Context(), "k"), tiered.Granted)
				time.Sleep(10 * ms)
				guard := tiered.Dispatch(l.Group()).Nodes()[0]
				asked := 0
				exhausted := func() {
					t.Helper()
					d := l.Allow(t.Context(), fmt.Sprint("used up ", asked))
					if asked++; d.Reason != reason {
						t.Errorf("%+v, want %v", d, reason)
					}
				}

				store.is.Store(true)
				if together {
					if d := tiered.All(l.For("fresh"),
						l.For("used up 18")).Allow(t.Context()); d.Reason != reason || !store.together {
						t.Errorf("%+v, in one pipeline %t", d, store.together)
					}
					exhausted()
				} else {
					l.Allow(t.Context(), "fresh")
					exhausted()
				}
				exhausted()
				exhausted()
				if guard.State() == failover.Closed {
					t.Error("the breaker is closed")
				}
				for range 100 {
					if time.Sleep(20 * ms); guard.State() == failover.Closed {
						t.Fatal("the breaker closed")
					}
					l.Allow(t.Context(), "used up 0")
				}

				store.is.Store(false)
				time.Sleep(5 * second) // the next presence at the latest
				want(t, l.Allow(t.Context(), "used up 19"), tiered.Limited)
				books(t, l.Group())
			})
		}
	}
}

// One refused write is forgotten after the next successful one.
func TestStoreThatWritesAgainDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &full{distant: newDistant(ms)}
		p := direct("api", 10)
		p.FailMode = tiered.FailOpen
		other := limiter(t, store, p, nil)
		want(t, other.AllowN(t.Context(), "used up", 10), tiered.Granted)
		l := limiter(t, store, p, nil)
		want(t, l.Allow(t.Context(), "k"), tiered.Granted)
		store.is.Store(true)
		if d := l.Allow(t.Context(), "a"); d.Reason != tiered.Open {
			t.Errorf("%+v", d)
		}
		store.is.Store(false)
		want(t, l.Allow(t.Context(), "b"), tiered.Granted)
		want(t, l.Allow(t.Context(), "used up"), tiered.Limited)
		if guard := tiered.Dispatch(l.Group()).Nodes()[0]; guard.State() != failover.Closed {
			t.Errorf("the breaker is %v", guard.State())
		}
	})
}

// everyScript is a policy of each algorithm, and so of each script that decides. They admit nothing by themselves.
func everyScript(lease tiered.Lease) (all []tiered.Policy) {
	for i, p := range []tiered.Policy{
		{Algorithm: tiered.TokenBucket},
		{Algorithm: tiered.TokenBucket, Also: []tiered.Limit{tiered.PerHour(20_000)}},
		{Algorithm: tiered.FixedWindow},
		{Algorithm: tiered.SlidingWindow},
		{Algorithm: tiered.SlidingLog},
	} {
		p.Name, p.Limit, p.Lease, p.FailMode = fmt.Sprintf("p%d", i), tiered.PerMinute(10_000), lease, tiered.FailClosed
		if p.Algorithm == tiered.SlidingLog {
			p.Lease = tiered.Lease{}
		}
		all = append(all, p)
	}
	return all
}

// A healthy Redis that has lost its scripts, or does not have them yet, refuses no request, also if a request needs
// several scripts, and if they are lost again and again under load. Nothing counts as a failure of Redis.
func TestForgottenScriptsRefuseNobody(t *testing.T) {
	for name, lease := range map[string]tiered.Lease{"direct": {Size: tiered.NoLease}, "leased": {}} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			admin := server.Client()
			l := several(t, open(t, server.URL()), patientOptions(nil), everyScript(lease)...)
			together := func(key string, first, n int) tiered.Decision {
				uses := make([]tiered.Use, n)
				for i := range uses {
					uses[i] = l[(first+i)%len(l)].For(key)
				}
				return tiered.All(uses...).Allow(context.Background())
			}
			for first := range l {
				for n := 1; n <= len(l); n++ {
					command(t, admin, "SCRIPT", "FLUSH")
					if d := together(fmt.Sprint("k", first, "-", n), first, n); d.Reason != tiered.Granted {
						t.Errorf("%d policies from %d on, after SCRIPT FLUSH: %+v", n, first, d)
					}
				}
			}

			const callers, requests, flushes = 8, 50, 20
			var all sync.WaitGroup
			var left, refused atomic.Int64
			left.Store(callers)
			for c := range callers {
				all.Go(func() {
					defer left.Add(-1)
					for i := range requests {
						if d := together(fmt.Sprint(c, "-", i%20), i, 1+i%len(l)); d.Reason != tiered.Granted {
							refused.Add(1)
							t.Logf("%+v", d)
						}
					}
				})
			}
			flushed := 0
			for ; left.Load() > 0 || flushed < flushes; flushed++ {
				command(t, admin, "SCRIPT", "FLUSH")
			}
			all.Wait()
			if refused.Load() > 0 {
				t.Errorf("%d of %d refused during %d times SCRIPT FLUSH", refused.Load(), callers*requests, flushed)
			}
			for node, s := range l[0].Group().Stats().Nodes {
				if s.Calls.Failed > 0 || s.Outages.Count > 0 || s.Outages.Breaker != "closed" {
					t.Errorf("%s: %+v", node, s)
				}
			}
		})
	}
}

// A password that is changed while the process runs: nothing happens until Redis is connected to anew, then the breaker
// opens at the first refusal, says so once, and closes by itself when the password fits again.
func TestPasswordChanged(t *testing.T) {
	for _, c := range []struct {
		name        string
		breaks      []any
		mends       []any
		reconnect   bool
		code        string
		unreachable bool // Redis is away first
	}{
		{
			"password",
			[]any{"ACL", "SETUSER", "app", "resetpass", ">new"},
			[]any{"ACL", "SETUSER", "app", ">old"},
			true, "WRONGPASS", false,
		},
		{
			"password in an outage",
			[]any{"ACL", "SETUSER", "app", "resetpass", ">new"},
			[]any{"ACL", "SETUSER", "app", ">old"},
			true, "WRONGPASS", true,
		},
		{
			"EVALSHA",
			[]any{"ACL", "SETUSER", "app", "-evalsha"},
			[]any{"ACL", "SETUSER", "app", "+evalsha"},
			false,
			"NOPERM", false,
		},
		{
			"command in the script",
			[]any{"ACL", "SETUSER", "app", "-pexpire"},
			[]any{"ACL", "SETUSER", "app", "+pexpire"},
			false, "NOPERM", false,
		},
		{
			"keys",
			[]any{"ACL", "SETUSER", "app", "resetkeys"},
			[]any{"ACL", "SETUSER", "app", "~tl:*"},
			false,
			"NOPERM", false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits for real probes
			server := redistest.Start(t)
			admin := server.Client()
			command(t, admin, "ACL", "SETUSER", "app", "on", ">old", "~tl:*", "+@all")
			var log logged
			store := open(t, "redis://app:old@"+server.Addr)
			policy := tiered.Policy{
				Name: "api", Limit: tiered.PerSecond(1e6), Lease: neverLeased,
				FailMode: tiered.FailClosed,
			}
			var failed atomic.Int64 // probes
			options := patientOptions(&tiered.Trace{State: func(e tiered.Event) {
				if e.From == "probing" && e.What == "open" {
					failed.Add(1)
				}
			}})
			if options.Logger = log.logger(); c.unreachable { // that takes as long as Timeout, a few times
				options.Budget, options.Timeout = second, second
			}
			l := limiter(t, watch.Damaged{Store: store}, policy, options)
			want(t, l.Allow(ctx, "k"), tiered.Granted)
			guard := tiered.Dispatch(l.Group()).Nodes()[0]

			command(t, admin, c.breaks...)
			if c.unreachable {
				server.Pause()
				for i := 0; guard.State() == failover.Closed; i++ {
					l.Allow(ctx, fmt.Sprint(i))
				}
				server.Resume()
			} else if c.reconnect {
				want(t, l.Allow(ctx, "k"), tiered.Granted) // who is connected stays it
			}
			if c.reconnect {
				command(t, admin, "CLIENT", "KILL", "USER", "app")
			}
			failures := l.Group().Stats().Nodes[server.Addr].Calls.Failed
			for i := range 10 { // not one key: each keeps quiet for a while after a failure
				l.Allow(ctx, fmt.Sprint("k", i))
			}
			// A connection that was killed may be noticed by a failure of its own.
			if n := l.Group().Stats().Nodes[server.Addr]; !c.unreachable &&
				(n.Outages.Breaker == "closed" || n.Calls.Failed-failures > 2) {
				t.Errorf("after ten decisions: %+v", n)
			}
			soon(t, "an error in the log", 5*second, func() bool {
				l.Allow(ctx, "k")
				return strings.Contains(strings.Join(log.lines(), "\n"), "level=ERROR")
			})
			before := failed.Load()
			soon(t, "two more probes fail", 8*second, func() bool {
				l.Allow(ctx, "k")
				return failed.Load() >= before+2
			})
			text := strings.Join(log.lines(), "\n")
			if n := strings.Count(text, "level=ERROR"); n != 1 || !strings.Contains(text, c.code) ||
				!strings.Contains(text, "remedy=") {
				t.Errorf("%d errors, want one with %s:\n%s", n, c.code, text)
			}
			if strings.Contains(text, "old") || strings.Contains(text, "=new") {
				t.Errorf("a password in the log:\n%s", text)
			}

			command(t, admin, c.mends...)
			took := soon(t, "it heals", 5*second, func() bool { return l.Allow(ctx, "k").Reason == tiered.Granted })
			t.Logf("healed after %v", took)
			soon(t, "it says so", second, func() bool {
				return strings.Contains(strings.Join(log.lines(), "\n"), "redis answers again")
			})
		})
	}
}

// A Redis that reads and cannot write opens the breaker once, and no probe closes it before it can.
func TestRedisThatCannotWrite(t *testing.T) {
	for _, c := range []struct {
		name          string
		breaks, mends []any
	}{
		{"full", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}},
		{"a replica", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
		{
			"without replicas",
			[]any{"CONFIG", "SET", "min-replicas-to-write", "1"},
			[]any{"CONFIG", "SET", "min-replicas-to-write", "0"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits for real probes
			server := redistest.Start(t)
			admin := server.Client()
			var opens, failed, closes atomic.Int64
			policy := tiered.Policy{
				Name: "api", Limit: tiered.PerSecond(1e6), Lease: neverLeased,
				FailMode: tiered.FailOpen,
			}
			l := limiter(t, open(t, server.URL()), policy, patientOptions(&tiered.Trace{State: func(e tiered.Event) {
				switch {
				case e.From == "closed":
					opens.Add(1)
				case e.What == "closed":
					closes.Add(1)
				case e.What == "open":
					failed.Add(1)
				}
			}}))
			want(t, l.Allow(ctx, "k"), tiered.Granted)
			command(t, admin, c.breaks...)
			i := 0
			soon(t, "three probes fail", 10*second, func() bool {
				i++
				l.Allow(ctx, fmt.Sprint("k", i%100))
				if d := l.Peek(ctx, "k"); i > 100 && d.Tier == tiered.Remote {
					t.Fatalf("the breaker is open, and it was looked: %+v", d)
				}
				return failed.Load() >= 3
			})
			if opens.Load() != 1 || closes.Load() > 0 {
				t.Errorf("opened %d times, closed %d times", opens.Load(), closes.Load())
			}
			command(t, admin, c.mends...)
			took := soon(t, "it heals", 5*second, func() bool { return l.Allow(ctx, "k").Reason == tiered.Granted })
			t.Logf("%d decisions, healed after %v", i, took)
		})
	}
}
