package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// set changes a policy's limit.
func set(t *testing.T, l *Limiter, change func(*Policy)) {
	t.Helper()
	p := l.Policy()
	change(&p)
	if err := l.SetPolicy(p); err != nil {
		t.Fatal(err)
	}
}

func limitTo(limit Limit) func(*Policy) { return func(p *Policy) { p.Limit = limit } }

func TestUnlimitedAndBlockedAskNobody(t *testing.T) {
	for name, policy := range map[string]func(Limit) Policy{
		"by the policy": func(l Limit) Policy { return Policy{Name: "api", Limit: l} },
		"by the key": func(l Limit) Policy {
			return Policy{Name: "api", Limit: PerDay(1), PerKey: func(string) Limit { return l }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newDistant(ms)
				free := several(t, store, nil, policy(Unlimited))[0]
				shut := several(t, store, nil, policy(Blocked))[0]
				ctx := t.Context()
				time.Sleep(time.Second)
				calls, start := store.calls.Load(), time.Now()
				for range 100 {
					d := free.AllowN(ctx, "k", 1000)
					if want(t, d, Granted); d.Limit != math.MaxInt64 || d.Remaining != math.MaxInt64 || d.ResetAfter != 0 || d.Tier != Local {
						t.Fatalf("%+v", d)
					}
					d = shut.Allow(ctx, "k")
					if want(t, d, ExceedsBurst); d.Limit != 0 || d.Remaining != 0 || d.RetryAfter != 0 || d.Policy != "api" || d.Key != "k" {
						t.Fatalf("%+v", d)
					}
				}
				r := free.Reserve(ctx, "k", 7)
				want(t, r.Decision, Granted)
				r.Settle(9)
				r = shut.Reserve(ctx, "k", 7)
				want(t, r.Decision, ExceedsBurst)
				r.Cancel()
				want(t, free.Peek(ctx, "k"), Granted)
				want(t, shut.Peek(ctx, "k"), ExceedsBurst)
				if err := errors.Join(free.Wait(ctx, "k"), free.Reset(ctx, "k"), shut.Reset(ctx, "k")); err != nil {
					t.Error(err)
				}
				if err := shut.Wait(ctx, "k"); !errors.Is(err, ErrExceedsBurst) {
					t.Errorf("%v", err)
				}
				want(t, Strictest(free.For("k"), free.For("j")).Allow(ctx), Granted)
				want(t, Strictest(free.For("k"), shut.For("j")).Allow(ctx), ExceedsBurst)
				for _, l := range []*Limiter{free, shut} {
					want(t, l.AllowN(ctx, "k", 0), InvalidCost)
					want(t, l.Allow(ctx, ""), InvalidKey)
				}
				time.Sleep(time.Second)
				if n := store.calls.Load() - calls; n != 0 || time.Since(start) != time.Second {
					t.Errorf("%d calls, %v", n, time.Since(start)-time.Second)
				}
				if s := free.group.Stats().Policies["api"]; s.Unlimited != 100_000+7+1+3 || s.Spent != 0 || s.Limited != 0 {
					t.Errorf("%+v", s)
				}
				if s := shut.group.Stats().Policies["api"]; s.Blocked != 100+7+1+1 || s.Limited != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestPerKeyIsAskedOncePerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked sync.Map
		count := func(key string) int64 {
			n, _ := asked.LoadOrStore(key, new(atomic.Int64))
			return n.(*atomic.Int64).Load()
		}
		gold := atomic.Bool{}
		long := strings.Repeat("x", 5000) // has another name in Redis
		p := Policy{Name: "api", Limit: PerDay(1).WithBurst(2), PerKey: func(key string) Limit {
			n, _ := asked.LoadOrStore(key, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			time.Sleep(10 * ms) // long enough for all to meet here
			switch {
			case key == "gold", key == "ann" && gold.Load(), key == long:
				return PerDay(1).WithBurst(5)
			case key == "default":
				return Limit{}
			}
			return PerDay(1).WithBurst(3)
		}}
		store := newDistant(ms)
		l := several(t, store, &Options{MaxKeys: 16}, p)[0]
		ctx := t.Context()
		admitted := func(key string, most int64) {
			t.Helper()
			var n atomic.Int64
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					if d := l.Allow(ctx, key); d.Allowed {
						n.Add(1)
					} else if d.Limit != most {
						t.Errorf("%+v, want the limit %d", d, most)
					}
				})
			}
			all.Wait()
			if n.Load() != most || count(key) != 1 {
				t.Errorf("%d of %q admitted after %d look-ups, want %d after one", n.Load(), key[:1], count(key), most)
			}
		}
		admitted("gold", 5)
		admitted("ann", 3)
		admitted(long, 5)
		admitted("default", 2)

		gold.Store(true)
		want(t, l.Allow(ctx, "ann"), Limited)
		l.Refresh("ann")
		l.Refresh("ann")
		l.Refresh("nobody")
		l.Refresh("")
		// The level is absolute: a better plan is no gift.
		if d := l.Allow(ctx, "ann"); d.Reason != Limited || d.Limit != 5 || count("ann") != 2 {
			t.Errorf("%+v after %d look-ups", d, count("ann"))
		}
		if n := l.Peek(ctx, "gold").Limit; n != 5 || count("gold") != 1 {
			t.Errorf("Peek: %d", n)
		}
		if d := l.Peek(ctx, "new"); d.Limit != 3 || count("new") != 1 {
			t.Errorf("Peek of a new key: %+v", d)
		}
		for i := range 100 { // they push the others out
			l.Allow(ctx, fmt.Sprint("flood", i))
		}
		time.Sleep(2 * time.Second)
		if l.Allow(ctx, "gold"); count("gold") != 2 {
			t.Errorf("%d look-ups of a key that was forgotten, want 2", count("gold"))
		}
		set(t, l, func(p *Policy) { p.Lease.Size = NoLease })
		if l.Allow(ctx, "gold"); count("gold") != 3 {
			t.Errorf("%d look-ups after SetPolicy, want 3", count("gold"))
		}
		set(t, l, func(p *Policy) { p.PerKey = nil })
		if d := l.Allow(ctx, "gold"); d.Limit != 2 || count("gold") != 3 {
			t.Errorf("%+v without PerKey", d)
		}
	})
}

// What PerKey answers after a Refresh, or a SetPolicy, that came while it was under way, is not kept.
func TestLookUpThatWasOvertakenIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		burst := atomic.Int64{}
		burst.Store(3)
		p := Policy{Name: "api", Limit: PerDay(1), PerKey: func(string) Limit {
			n := burst.Load()
			time.Sleep(10 * ms)
			return PerDay(1).WithBurst(n)
		}}
		l := several(t, newDistant(ms), nil, p)[0]
		decide := func() (d Decision) {
			done := make(chan Decision)
			go func() { done <- l.Allow(t.Context(), "k") }()
			time.Sleep(5 * ms)
			burst.Add(1)
			if burst.Load() == 4 {
				l.Refresh("k")
			} else {
				set(t, l, func(*Policy) {})
			}
			return <-done
		}
		if d := decide(); d.Limit != 4 {
			t.Errorf("%+v after Refresh", d)
		}
		l.Refresh("k")
		if d := decide(); d.Limit != 5 {
			t.Errorf("%+v after SetPolicy", d)
		}
	})
}

func TestPerKeyThatFailsMeansThePolicysLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines text
		p := Policy{Name: "api", Limit: PerDay(1).WithBurst(2), PerKey: func(key string) Limit {
			switch key {
			case "panic", "panic too":
				panic("secret " + key + "\n")
			case "invalid":
				return Limit{Tokens: -5, Per: time.Second}
			case "exit":
				runtime.Goexit()
			}
			return PerDay(1).WithBurst(3)
		}}
		l := several(t, newDistant(ms), &Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))}, p)[0]
		for _, key := range []string{"panic", "panic too", "invalid"} {
			for range 2 {
				if d := l.Allow(t.Context(), key); d.Reason != Granted || d.Limit != 2 {
					t.Fatalf("%q: %+v", key, d)
				}
			}
			want(t, l.Allow(t.Context(), key), Limited)
		}
		for range 2 { // a test that fails within PerKey ends its goroutine: others must not wait for it
			done := make(chan struct{})
			go func() { defer close(done); l.Allow(t.Context(), "exit") }()
			<-done
		}
		if d := l.Allow(t.Context(), "well"); d.Limit != 3 {
			t.Errorf("%+v", d)
		}
		time.Sleep(2 * time.Second)
		if n := l.group.Stats().Policies["api"].PerKeyFaults; n != 3 {
			t.Errorf("%d faults, want 3", n)
		}
		if log := lines.String(); strings.Count(log, "PerKey") != 1 || strings.Count(log, "\n") != 1 || !strings.Contains(log, "policy=api") {
			t.Errorf("log: %s", log)
		}
	})
}

// text is a log in memory.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *text) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *text) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestSetPolicyRefuses(t *testing.T) {
	l := several(t, remote.NewMemory(), nil, direct("api", 10))[0]
	before := l.Policy()
	for name, p := range map[string]Policy{
		"another name":  direct("other", 10),
		"no limit":      {Name: "api"},
		"a bad limit":   {Name: "api", Limit: Limit{Tokens: -1, Per: time.Second}},
		"nearly none":   {Name: "api", Limit: Unlimited.WithBurst(5)},
		"a big lease":   {Name: "api", Limit: PerSecond(10), Lease: Lease{Size: 4}},
		"no such mode":  {Name: "api", Limit: PerSecond(10), FailMode: 9},
		"blocked twice": {Name: "api", Limit: Blocked.WithBurst(1)},
	} {
		if err := l.SetPolicy(p); err == nil || !strings.Contains(err.Error(), "Policy.") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := l.Policy(); after.Limit != before.Limit || after.Lease != before.Lease {
		t.Errorf("%+v, was %+v", after, before)
	}
	want(t, l.AllowN(context.Background(), "k", 10), Granted)
}

// stores are both kinds: what is shown of limits that change is the script's doing.
func stores(t *testing.T, f func(t *testing.T, s remote.Store)) {
	t.Run("memory", func(t *testing.T) { f(t, remote.NewMemory()) })
	t.Run("redis", func(t *testing.T) { f(t, open(t, redistest.Start(t).URL())) })
}

func TestRaisingMintsNothing(t *testing.T) {
	stores(t, func(t *testing.T, s remote.Store) {
		p := direct("api", 10)
		l := several(t, s, &Options{Budget: second, Timeout: second}, p)[0]
		ctx := context.Background()
		want(t, l.AllowN(ctx, "used", 10), Granted)
		want(t, l.AllowN(ctx, "half", 5), Granted)
		want(t, l.Allow(ctx, "used"), Limited)
		set(t, l, limitTo(PerDay(1).WithBurst(1000)))
		for _, c := range []struct {
			key  string
			left int64
		}{{"used", 0}, {"half", 5}, {"new", 1000}} {
			d := l.AllowN(ctx, c.key, c.left+1)
			if c.left < 1000 && (d.Reason != Limited || d.Limit != 1000) || c.left == 1000 && d.Reason != ExceedsBurst {
				t.Errorf("%s: %+v, want no more than %d", c.key, d, c.left)
			}
			if c.left > 0 {
				want(t, l.AllowN(ctx, c.key, c.left), Granted)
			}
		}
		// A higher rate counts from now on, and is seen at once although the key was known to be denied for a day.
		set(t, l, limitTo(Limit{Tokens: 1000, Per: second, Burst: 1000}))
		soon(t, "the new rate brings tokens", 10*second, func() bool { return l.AllowN(ctx, "used", 5).Allowed })
	})
}

func TestRaisedLimitShowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, direct("api", 10))[0]
		want(t, l.AllowN(t.Context(), "k", 10), Granted)
		want(t, l.Allow(t.Context(), "k"), Limited) // and is known to be, for the next five seconds
		set(t, l, limitTo(PerSecond(1000)))
		want(t, l.Allow(t.Context(), "other"), Granted)
		time.Sleep(10 * ms)
		want(t, l.Allow(t.Context(), "k"), Granted)
	})
}

func TestLoweringClamps(t *testing.T) {
	stores(t, func(t *testing.T, s remote.Store) {
		p := direct("api", 1000)
		l := several(t, s, &Options{Budget: second, Timeout: second}, p)[0]
		ctx := context.Background()
		want(t, l.AllowN(ctx, "k", 100), Granted) // 900 are left
		set(t, l, limitTo(PerDay(1).WithBurst(10)))
		want(t, l.AllowN(ctx, "k", 11), ExceedsBurst)
		want(t, l.AllowN(ctx, "k", 10), Granted)
		want(t, l.Allow(ctx, "k"), Limited)
		// What was clamped off does not come back.
		set(t, l, limitTo(PerDay(1).WithBurst(1000)))
		want(t, l.Allow(ctx, "k"), Limited)
	})
}

// A process that is blocked, or let go, gives its lease back by the numbers that it was taken by, and the key goes on from there
// when it is limited again.
func TestLeaseOfAKeyWithoutALimitGoesBack(t *testing.T) {
	for name, rule := range map[string]Limit{"blocked": Blocked, "unlimited": Unlimited} {
		for _, perKey := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", by PerKey ", perKey), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newTape()
					limit := PerHour(10_000)
					var now atomic.Pointer[Limit]
					now.Store(&limit)
					p := Policy{Name: "api", Limit: limit}
					if perKey {
						p.Limit, p.PerKey = PerDay(1), func(string) Limit { return *now.Load() }
					}
					l := several(t, store, nil, p)[0]
					b := leased(t, l)
					change := func(to Limit) {
						if now.Store(&to); perKey {
							l.Refresh("k")
						} else {
							set(t, l, limitTo(to))
						}
					}
					spent := l.group.Stats().Policies["api"].Spent
					change(rule)
					for range 10 {
						if d := l.Allow(t.Context(), "k"); d.Allowed != (rule == Unlimited) {
							t.Fatalf("%+v", d)
						}
						time.Sleep(100 * ms)
					}
					time.Sleep(5 * time.Second)
					if held, _ := b.Look(l.group.now()); held != 0 {
						t.Errorf("%d held", held)
					}
					s := l.group.Stats().Policies["api"]
					if s.Spent != spent || s.Burnt != 0 || s.Returned == 0 {
						t.Errorf("%+v, %d spent before", s, spent)
					}
					change(limit)
					left := l.Peek(t.Context(), "k").Remaining
					if gone := 10_000 - spent; left < gone || left > gone+30 { // 30 for what came back in ten seconds
						t.Errorf("%d left, want about %d", left, gone)
					}
					books(t, l.group)
				})
			})
		}
	}
}

// Who waits in line for Redis' answer when the limit changes is decided by the new one.
func TestSetPolicyWhileSomebodyWaits(t *testing.T) {
	for name, c := range map[string]struct {
		to   Limit
		want Reason
	}{
		"lowered": {PerDay(1).WithBurst(3), ExceedsBurst}, "blocked": {Blocked, ExceedsBurst},
		"unlimited": {Unlimited, Granted}, "raised": {PerDay(1).WithBurst(30), Granted},
	} {
		for _, strictest := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", Strictest ", strictest), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := several(t, newDistant(10*ms), nil, direct("api", 10))[0]
					time.Sleep(time.Second)
					done := make(chan Decision)
					go func() {
						if strictest {
							done <- Strictest(l.ForN("k", 5)).Allow(t.Context())
						} else {
							done <- l.AllowN(t.Context(), "k", 5)
						}
					}()
					time.Sleep(3 * ms)
					set(t, l, limitTo(c.to))
					want(t, <-done, c.want)
					time.Sleep(200 * ms)
					books(t, l.group)
				})
			})
		}
	}
}

func TestFailModeIsChangedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("api", 3))[0]
		time.Sleep(time.Second)
		outage(t, store, l) // asks for another key, and is admitted by its share
		mode := func(m FailMode) { set(t, l, func(p *Policy) { p.FailMode = m }) }
		before := l.group.Stats().Policies["api"]
		ctx := t.Context()
		for range 3 {
			if d := l.Allow(ctx, "k"); d.Reason != Shared {
				t.Fatalf("%+v", d)
			}
		}
		mode(FailOpen)
		for range 100 {
			if d := l.Allow(ctx, "k"); d.Reason != Open {
				t.Fatalf("%+v", d)
			}
		}
		mode(FailClosed)
		for range 10 {
			want(t, l.Allow(ctx, "k"), Unavailable)
		}
		mode(FailLocal)
		want(t, l.Allow(ctx, "k"), ShareSpent) // neither mode filled it
		s := l.group.Stats().Policies["api"]
		if s.Shared-before.Shared != 3 || s.Open != 100 || s.Unavailable != 10 || s.ShareSpent-before.ShareSpent != 1 {
			t.Errorf("%+v, before %+v", s, before)
		}
		store.loseRequests.Store(false)
		n := 0
		soonInBubble(t, func() bool { n++; return l.Allow(ctx, fmt.Sprint("probe", n)).Reason == Granted })
		want(t, l.Allow(ctx, "k"), Limited) // all of it is charged
		time.Sleep(time.Second)
		if s := l.group.Stats().Policies["api"]; s.Settled < 103 {
			t.Errorf("%+v: 103 were admitted for k alone", s)
		}
	})
}

func TestShadowAdmitsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := direct("api", 3)
		p.Shadow = true
		var mu sync.Mutex
		var told []Reason
		l := several(t, store, &Options{Trace: &Trace{Decision: func(d Decision) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, d.Reason)
		}}}, p, direct("real", 5))
		shadow, real := l[0], l[1]
		ctx := t.Context()
		for i := range 5 {
			d := shadow.Allow(ctx, "k")
			if !d.Allowed || i < 3 && d.Reason != Granted || i >= 3 && (d.Reason != Shadowed || d.Err() != nil || d.RetryAfter == 0) {
				t.Fatalf("number %d: %+v", i, d)
			}
		}
		for _, d := range []Decision{shadow.Allow(ctx, ""), shadow.AllowN(ctx, "k", 0), shadow.AllowN(ctx, "k", 4), shadow.Peek(ctx, "k")} {
			if !d.Allowed || d.Reason != Shadowed {
				t.Errorf("%+v", d)
			}
		}
		// What was not taken is neither given back nor charged.
		shadow.Reserve(ctx, "k", 2).Cancel()
		shadow.Reserve(ctx, "k", 2).Settle(3)
		if err := shadow.Wait(ctx, "k"); err != nil {
			t.Error(err)
		}
		if s := shadow.group.Stats().Policies["api"]; s.Spent != 3 || s.Shadowed != 2+1+4+2+2+1 || s.Limited != 2+2+2+1 {
			t.Errorf("%+v", s)
		}
		// It neither refuses for others nor speaks for them.
		uses := Strictest(shadow.For("k"), real.For("k"))
		d := uses.Allow(ctx)
		if want(t, d, Granted); d.Policy != "real" || d.Remaining != 4 {
			t.Errorf("%+v", d)
		}
		r := uses.Reserve(ctx)
		want(t, r.Decision, Granted)
		r.Cancel()
		if d := Strictest(shadow.For("k"), shadow.For("")).Allow(ctx); !d.Allowed || d.Reason != Shadowed {
			t.Errorf("%+v", d)
		}
		time.Sleep(200 * ms)
		if n := level(t, store.Memory, shadow, "k"); n != 0 {
			t.Errorf("%d left of the shadow's, want 0", n)
		}
		if n := level(t, store.Memory, real, "k"); n != 4 {
			t.Errorf("%d left, want 4", n)
		}
		synctest.Wait()
		mu.Lock()
		if told[0] != Granted || told[3] != Shadowed {
			t.Errorf("the hook heard %v", told)
		}
		mu.Unlock()
		set(t, shadow, func(p *Policy) { p.Shadow = false })
		want(t, shadow.Allow(ctx, "k"), Limited)
		books(t, shadow.group)
	})
}

func TestPerKeyAllocatesNothing(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	ctx := context.Background()
	l := hot(t, "k")
	set(t, l, func(p *Policy) { p.PerKey = func(string) Limit { return PerSecond(1 << 35) } })
	for deadline := time.Now().Add(10 * time.Second); l.Allow(ctx, "k").Tier != Local || l.Allow(ctx, "k").Limit != 1<<35; {
		if time.Now().After(deadline) {
			t.Fatal("no lease within 10 s")
		}
	}
	time.Sleep(300 * ms)
	for range 100_000 {
		l.Allow(ctx, "k")
	}
	if n := testing.AllocsPerRun(10_000, func() {
		if !l.Allow(ctx, "k").Allowed {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations per decision with PerKey", n)
	}
	free := several(t, remote.NewMemory(), nil, Policy{Name: "api", Limit: Unlimited})[0]
	if n := testing.AllocsPerRun(1000, func() { free.Allow(ctx, "k") }); n != 0 {
		t.Errorf("%v allocations per decision without a limit", n)
	}
}

// While limits change to and fro under load, a key is admitted what the largest of them allows, and no more.
func TestLimitsChangeUnderLoad(t *testing.T) {
	for seed := range 2 * seeds(4) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			memory := remote.NewMemory()
			limits := []Limit{PerSecond(200).WithBurst(40), PerSecond(50).WithBurst(10), PerSecond(1000).WithBurst(100), PerSecond(100).WithBurst(1000)}
			largest := PerSecond(1000).WithBurst(1000)
			var l []*Limiter
			for range 3 {
				l = append(l, several(t, &distant{Memory: memory, trip: ms}, nil, Policy{Name: "api", Limit: limits[0], FailMode: FailClosed})[0])
			}
			var mu sync.Mutex
			var as []ideal.Admission
			start := time.Now()
			var all sync.WaitGroup
			for i, l := range l {
				all.Go(func() {
					for time.Since(start) < 10*time.Second {
						mu.Lock()
						pause, to := time.Duration(random.IntN(int(300*ms))), limits[random.IntN(len(limits))]
						how := random.IntN(6)
						mu.Unlock()
						time.Sleep(pause)
						p := Policy{Name: "api", Limit: to, FailMode: FailClosed}
						switch how {
						case 0:
							p.Limit, p.PerKey = limits[1], func(string) Limit { return to }
						case 1:
							p.Limit = Blocked
						}
						if err := l.SetPolicy(p); err != nil {
							t.Error(err)
						}
						if how == 0 {
							l.Refresh("k")
						}
					}
				})
				for range 2 {
					all.Go(func() {
						for n := 0; time.Since(start) < 10*time.Second; n++ {
							before := time.Now()
							if l.AllowN(t.Context(), "k", int64(1+n%3)).Allowed {
								mu.Lock()
								as = append(as, ideal.Admission{Before: before.UnixNano(), After: time.Now().UnixNano(), Tokens: int64(1 + n%3)})
								mu.Unlock()
							}
							time.Sleep(time.Duration(1+i) * ms)
						}
					})
				}
			}
			all.Wait()
			e := ideal.Worst(as, largest.Tokens, largest.Per, largest.burst())
			if e.Over > tolerance(largest) {
				t.Errorf("seed %d: %v", seed, e)
			}
			if len(as) < 500 {
				t.Errorf("seed %d: only %d admitted", seed, len(as))
			}
			for _, l := range l {
				books(t, l.group)
			}
		})
	}
}

// A deploy: processes of the old limit and of the new one take from the same keys on a real Redis, one after the other
// changes over, and what is admitted stays within the larger limit, whichever of them is the old.
func TestTwoLimitsDuringADeployOnRedis(t *testing.T) {
	t.Parallel()
	small, large := PerSecond(50).WithBurst(20), PerSecond(200).WithBurst(60)
	for name, c := range map[string]struct{ old, next Limit }{"raised": {small, large}, "lowered": {large, small}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			var l []*Limiter
			for range 4 {
				p := Policy{Name: "api", Limit: c.old, FailMode: FailClosed}
				l = append(l, several(t, open(t, server.URL()), &Options{Budget: second, Timeout: second}, p)[0])
			}
			var mu sync.Mutex
			var as []ideal.Admission
			var all sync.WaitGroup
			start := time.Now()
			for i, l := range l {
				all.Go(func() {
					for changed := false; time.Since(start) < 4*second; time.Sleep(2 * ms) {
						before := time.Now()
						if !changed && before.Sub(start) > time.Duration(1+i)*500*ms {
							set(t, l, limitTo(c.next))
							changed = true
						}
						before = time.Now()
						if l.Allow(context.Background(), "k").Allowed {
							mu.Lock()
							as = append(as, ideal.Admission{Before: before.UnixNano(), After: time.Now().UnixNano(), Tokens: 1})
							mu.Unlock()
						}
					}
				})
			}
			all.Wait()
			bound := func(l Limit, from, to time.Duration) ideal.Excess {
				var some []ideal.Admission
				for _, a := range as {
					if a.Before >= start.Add(from).UnixNano() && a.After < start.Add(to).UnixNano() {
						some = append(some, a)
					}
				}
				return ideal.Worst(some, l.Tokens, l.Per, l.burst())
			}
			// The clock of Redis and the callers' is the same here; a millisecond is for its resolution and theirs.
			if e := bound(large, 0, time.Hour); e.Over > 1 {
				t.Errorf("over the larger: %v", e)
			}
			// Half a second before any changed, and a lease's life after the last did, the one limit holds.
			if e := bound(c.old, 0, 500*ms); e.Over > 1 {
				t.Errorf("over the old one: %v", e)
			}
			if e := bound(c.next, 3200*ms, time.Hour); e.Over > 1 {
				t.Errorf("over the new one: %v", e)
			}
			t.Logf("%d admitted in 4 s; over the larger by %.1f, over the smaller by %.1f", len(as), bound(large, 0, time.Hour).Over, bound(small, 0, time.Hour).Over)
			if bound(small, 0, time.Hour).Over < 10 {
				t.Error("the larger was never used: this shows nothing")
			}
		})
	}
}
