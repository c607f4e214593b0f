package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// open opens a store that is closed at the end of the test, after its limiters.
func open(t *testing.T, url string) *remote.Redis {
	t.Helper()
	s := must(remote.Open(url, nil))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// command executes a command of an operator.
func command(t *testing.T, c *redis.Client, args ...any) {
	t.Helper()
	if err := c.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// soon polls what real processes do, as long as they may take: there is nothing else to wait on. Of what a poll takes it
// counts 20 ms: the machine was busy elsewhere for the rest.
func soon(t *testing.T, what string, within time.Duration, is func() bool) (took time.Duration) {
	t.Helper()
	begun := time.Now()
	ran, last := time.Duration(0), begun
	for ; !is(); time.Sleep(2 * ms) {
		now := time.Now()
		if ran, last = ran+min(now.Sub(last), 20*ms), now; ran > within {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
	return time.Since(begun)
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

// Any number of callers that give up do not count as failures of Redis.
func TestCancelingCallersDoNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(10 * ms)
		l := limiter(t, store, tiered.Policy{
			Limit: tiered.PerSecond(1000), Lease: neverLeased,
			FailMode: tiered.FailClosed,
		}, nil)
		var all sync.WaitGroup
		reasons := make(map[tiered.Reason]int)
		var mu sync.Mutex
		for i := range 2000 {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), ms) // a deadline far below ours
			} else if i%4 == 1 {
				time.AfterFunc(ms, cancel)
			}
			all.Go(func() {
				defer cancel()
				d := l.Allow(ctx, fmt.Sprint(i))
				mu.Lock()
				defer mu.Unlock()
				reasons[d.Reason]++
			})
			time.Sleep(ms)
		}
		all.Wait()
		n := l.Group().Stats().Nodes[string(store.Node(""))]
		t.Logf("%v; %+v", reasons, n)
		if reasons[tiered.Canceled] != 500 || reasons[tiered.Unavailable] != 1000 || reasons[tiered.Granted] != 500 {
			t.Errorf("%v, want each second without an answer in time, and each fourth canceled", reasons)
		}
		if n.Calls.Failed > 0 || n.Outages.Breaker != "closed" {
			t.Errorf("%+v", n)
		}
	})
}

// silent is a store whose presence is never answered, but which heeds its context as a real client does.
type silent struct{ *distant }

func (silent) Presence(ctx context.Context, _ time.Duration, _ remote.Node, _ remote.Process) (remote.Census, error) {
	<-ctx.Done()
	return remote.Census{}, ctx.Err()
}

// A hurried Close while a probe is due does not count as a failure of Redis.
func TestHurriedCloseIsNoFailedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := silent{newDistant(10 * ms)}
		var mu sync.Mutex
		var failed []error
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed},
			&tiered.Options{Trace: &tiered.Trace{State: func(e tiered.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.From == "probing" && e.What == "open" {
					failed = append(failed, e.Err)
				}
			}}}))
		store.loseRequests.Store(true)
		guard := tiered.Dispatch(l.Group()).Node(store.Node(""))
		for i := 0; guard.State() == failover.Closed; i++ {
			l.Allow(t.Context(), fmt.Sprint(i))
		}
		for !guard.ProbeDue(tiered.Engine(l.Group()).Now()) {
			time.Sleep(ms)
		}
		synctest.Wait()
		mu.Lock()
		failed = nil
		mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
		defer cancel()
		tiered.Dispatch(l.Group()).Leave(ctx)
		synctest.Wait()
		mu.Lock()
		if len(failed) != 1 || failed[0] != context.Canceled { //nolint:errorlint // the very same
			t.Errorf("the probe ended with %v", failed)
		}
		mu.Unlock()
		if !guard.ProbeDue(tiered.Engine(l.Group()).Now()) {
			t.Error("the next probe has to wait")
		}
		store.loseRequests.Store(false)
		closeIn(t, l, second)
	})
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

// An invalid request is refused with the policy's limit, or without one if it has none.
func TestLimitOfWhatIsInvalid(t *testing.T) {
	for _, c := range []struct {
		policy tiered.Policy
		limit  int64
	}{
		{tiered.Policy{Limit: tiered.PerSecond(7)}, 7},
		{tiered.Policy{Limit: tiered.PerSecond(7).WithBurst(9)}, 9},
		{tiered.Policy{Limit: tiered.PerSecond(7), PerKey: func(string) tiered.Limit { return tiered.Unlimited() }}, 7},
		{tiered.Policy{Limit: tiered.PerMinute(7), Algorithm: tiered.SlidingLog}, 7},
		{tiered.Policy{Limit: tiered.Unlimited()}, math.MaxInt64},
		{tiered.Policy{Limit: tiered.Blocked()}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.policy.Name = "api"
			l := limiter(t, remote.NewMemory(), c.policy, nil)
			for what, d := range map[string]tiered.Decision{
				"no key":          l.Allow(ctx, ""),
				"a long key":      l.Allow(ctx, strings.Repeat("k", tiered.MaxKeyLength+1)),
				"no cost":         l.AllowN(ctx, "k", 0),
				"no key, All":     tiered.All(l.For("")).Allow(ctx),
				"no key, Reserve": l.ReserveN(ctx, "", 1).Decision,
				"no key, Peek":    l.Peek(ctx, ""),
			} {
				if d.Allowed || d.Burst != c.limit || !errors.Is(d.Err(), tiered.ErrInvalid) {
					t.Errorf("%+v: %s: %v with a limit of %d, want %d", c.policy.Limit, what, d.Reason, d.Burst, c.limit)
				}
			}
		})
	}
}

// A refusal that more tokens could not have prevented still states what this process knows of the key's tokens. It
// makes no call.
func TestRefusalSaysWhatIsLeft(t *testing.T) {
	minute := tiered.PerMinute(10)
	const ever = 96 * time.Hour
	for _, c := range []struct {
		policy      tiered.Policy
		limit       int64         // of which 4 are taken
		least, most time.Duration // until nothing counts
	}{
		{tiered.Policy{Limit: minute}, 10, 24 * second, 24 * second},
		{direct("api", 10), 10, ever, ever},
		{tiered.Policy{
			Limit: tiered.PerHour(10), PerKey: func(string) tiered.Limit { return tiered.PerMinute(20) },
		}, 20, 12 * second, 12 * second},
		{tiered.Policy{Limit: tiered.PerHour(50), Also: []tiered.Limit{minute}}, 10, 24 * second, time.Hour},
		{tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow}, 10, second, time.Minute},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingLog}, 10, 59 * second, time.Minute},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingWindow}, 10, 59 * second, 63 * second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.policy.Name = "api"
			store := newDistant(ms)
			l := limiter(t, store, c.policy, nil)
			time.Sleep(second)
			want(t, l.AllowN(ctx, "k", 4), tiered.Granted)
			calls := store.calls.Load()
			for what, cost := range map[string]int64{
				"one too many": c.limit + 1, "absurd": 1 << 60, "nothing": 0,
				"less": -5,
			} {
				for how, ask := range map[string]func(string) tiered.Decision{
					"AllowN":  func(key string) tiered.Decision { return l.AllowN(ctx, key, cost) },
					"Reserve": func(key string) tiered.Decision { return l.ReserveN(ctx, key, cost).Decision },
					"All":     func(key string) tiered.Decision { return tiered.All(l.For(key).N(cost)).Allow(ctx) },
				} {
					d := ask("k")
					if d.Allowed || d.Burst != c.limit || d.Remaining != c.limit-4 || d.ResetAfter < c.least ||
						d.ResetAfter > c.most || d.RetryAfter != 0 {
						t.Errorf("%v, %s, %s: %+v, want %d of %d left", c.policy.Algorithm, what, how, d, c.limit-4, c.limit)
					}
					if c.policy.PerKey != nil && what != "one too many" {
						continue // whose limit nobody knows yet
					}
					if d := ask(fmt.Sprint(what, how)); d.Burst != c.limit || d.Remaining != c.limit ||
						d.ResetAfter != 0 {
						t.Errorf("%v, %s, %s: %+v, want all that there is to be left", c.policy.Algorithm, what, how, d)
					}
				}
			}
			if n := store.calls.Load(); n != calls {
				t.Errorf("%d calls", n-calls)
			}
		})
	}
}
