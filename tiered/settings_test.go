package tiered

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
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
				free := several(t, store, nil, policy(Unlimited()))[0]
				shut := several(t, store, nil, policy(Blocked()))[0]
				ctx := t.Context()
				time.Sleep(time.Second)
				calls, start := store.calls.Load(), time.Now()
				for range 100 {
					d := free.AllowN(ctx, "k", 1000)
					if want(t, d, Granted); d.Burst != math.MaxInt64 || d.Remaining != math.MaxInt64 ||
						d.ResetAfter != 0 || d.Tier != Local {
						t.Fatalf("%+v", d)
					}
					d = shut.Allow(ctx, "k")
					if want(t, d, ExceedsBurst); d.Burst != 0 || d.Remaining != 0 || d.RetryAfter != 0 ||
						d.Policy != "api" || d.Key != "k" {
						t.Fatalf("%+v", d)
					}
				}
				r := free.ReserveN(ctx, "k", 7)
				want(t, r.Decision, Granted)
				r.Settle(9)
				r = shut.ReserveN(ctx, "k", 7)
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
				want(t, All(free.For("k"), free.For("j")).Allow(ctx), Granted)
				want(t, All(free.For("k"), shut.For("j")).Allow(ctx), ExceedsBurst)
				for _, l := range []*Limiter{free, shut} {
					want(t, l.AllowN(ctx, "k", 0), InvalidCost)
					want(t, l.Allow(ctx, ""), InvalidKey)
				}
				time.Sleep(time.Second)
				if n := store.calls.Load() - calls; n != 0 || time.Since(start) != time.Second {
					t.Errorf("%d calls, %v", n, time.Since(start)-time.Second)
				}
				if s := free.group.Stats().Policies["api"]; s.Unlimited != 100_000+7+1+2 || s.Spent != 0 ||
					s.Limited != 0 {
					t.Errorf("%+v", s)
				}
				if s := shut.group.Stats().Policies["api"]; s.Blocked != 100+7+1+1 || s.Limited != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
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
			if !d.Allowed || i < 3 && d.Reason != Granted ||
				i >= 3 && (d.Reason != Shadowed || d.Err() != nil || d.RetryAfter != 0) {
				t.Fatalf("number %d: %+v", i, d)
			}
		}
		for _, d := range []Decision{
			shadow.Allow(ctx, ""), shadow.AllowN(ctx, "k", 0), shadow.AllowN(ctx, "k", 4),
			shadow.Peek(ctx, "k"),
		} {
			if !d.Allowed || d.Reason != Shadowed {
				t.Errorf("%+v", d)
			}
		}
		// What was not taken is neither given back nor charged.
		shadow.ReserveN(ctx, "k", 2).Cancel()
		shadow.ReserveN(ctx, "k", 2).Settle(3)
		if err := shadow.Wait(ctx, "k"); err != nil {
			t.Error(err)
		}
		if s := shadow.group.Stats().Policies["api"]; s.Spent != 3 || s.Shadowed != 2+1+4+2+2+1 ||
			s.Limited != 2+2+2+1 {
			t.Errorf("%+v", s)
		}
		// It neither refuses for others nor speaks for them.
		uses := All(shadow.For("k"), real.For("k"))
		d := uses.Allow(ctx)
		if want(t, d, Granted); d.Policy != "real" || d.Remaining != 4 {
			t.Errorf("%+v", d)
		}
		r := uses.Reserve(ctx)
		want(t, r.Decision, Granted)
		r.Cancel()
		if d := All(shadow.For("k"), shadow.For("")).Allow(ctx); !d.Allowed || d.Reason != Shadowed {
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

// While limits change back and forth under load, a key is admitted no more than the largest of them allows.
func TestLimitsChangeUnderLoad(t *testing.T) {
	for seed := range 2 * seeds(4) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			memory := remote.NewMemory()
			limits := []Limit{
				PerSecond(200).WithBurst(40), PerSecond(50).WithBurst(10),
				PerSecond(1000).WithBurst(100), PerSecond(100).WithBurst(1000),
			}
			largest := PerSecond(1000).WithBurst(1000)
			var l []*Limiter
			for range 3 {
				l = append(l, several(t, &distant{Memory: memory, trip: ms}, nil,
					Policy{Name: "api", Limit: limits[0], FailMode: FailClosed})[0])
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
							p.Limit = Blocked()
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
								as = append(as, ideal.Admission{
									Before: before.UnixNano(),
									After:  time.Now().UnixNano(), Tokens: int64(1 + n%3),
								})
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
				l = append(l, several(t, open(t, server.URL()), patientOptions(nil), p)[0])
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
							as = append(as, ideal.Admission{
								Before: before.UnixNano(), After: time.Now().UnixNano(),
								Tokens: 1,
							})
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
			// Half a second before any changed the one limit holds, and a lease's life after the last did a larger one does.
			// A smaller one would ten seconds later.
			if e := bound(c.old, 0, 500*ms); e.Over > 1 {
				t.Errorf("over the old one: %v", e)
			}
			if e := bound(c.next, 3200*ms, time.Hour); e.Over > 1 && c.next == large {
				t.Errorf("over the new one: %v", e)
			}
			t.Logf("%d admitted in 4 s; over the larger by %.1f, over the smaller by %.1f", len(as),
				bound(large, 0, time.Hour).Over, bound(small, 0, time.Hour).Over)
			if bound(small, 0, time.Hour).Over < 10 {
				t.Error("the larger was never used: this shows nothing")
			}
		})
	}
}
