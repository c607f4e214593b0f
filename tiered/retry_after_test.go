package tiered_test

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A client that is alone and comes back when it was told is admitted: also if its process gave a
// lease back meanwhile, which is whole tokens and leaves the part of one that the refill brought,
// and if a standing share was renewed 40 times.
func TestComeBackAfterAWhile(t *testing.T) {
	type ask struct {
		cost  int64
		times int
	}
	for name, c := range map[string]struct {
		policy tiered.Policy
		asks   []ask // each until it is refused; then the client comes back
	}{
		"returned lease": {tiered.Policy{Limit: tiered.Per(30, 2*time.Second).WithBurst(60)}, []ask{{1, 40}, {2, 1}, {
			60, 40,
		}}},
		"standing": {tiered.Policy{Limit: tiered.PerHour(30).WithBurst(20), Standing: 1.0 / 8}, []ask{{
			1, 40,
		}, {5, 40}, {1, 40}}},
	} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), c.policy, &tiered.Options{Random: func() float64 { return 0.5 }})
			time.Sleep(82 * time.Second) // until shares are in use
			for _, a := range c.asks {
				var d tiered.Decision
				for range a.times {
					if d = l.AllowN(ctx, "k", a.cost); !d.Allowed {
						break
					}
				}
				if d.Allowed {
					time.Sleep(30 * ms)
					continue
				}
				time.Sleep(d.RetryAfter)
				if e := l.AllowN(ctx, "k", a.cost); !e.Allowed {
					t.Errorf("%d: told %v, came back then, and is told %v", a.cost, d.RetryAfter, e.RetryAfter)
				}
			}
		})
	}
}

// A refusal is believed for 5 s at most, whatever the random numbers and whenever the tokens are
// due: then a process sees what others gave to the key.
func TestARefusalIsBelievedFor5Seconds(t *testing.T) {
	for _, a := range algorithms {
		for _, random := range []float64{0, 0.5, 0.999999} {
			for _, per := range []time.Duration{4900 * time.Millisecond, time.Hour} { // of a token
				synctest.Test(t, func(t *testing.T) {
					store, ctx := remote.NewMemory(), context.Background()
					of := func() *tiered.Limiter {
						l := limiter(t, store, tiered.Policy{Algorithm: a, Limit: tiered.Per(1, per)}, &tiered.Options{
							Logger: slog.New(slog.DiscardHandler), Random: func() float64 { return random },
						})
						return l
					}
					l, other := of(), of()
					time.Sleep(time.Second)
					l.Allow(ctx, "ann")
					l.Allow(ctx, "ann")
					if d := l.Allow(ctx, "ann"); d.Allowed || d.Tier != tiered.Local {
						t.Fatalf("%+v, want a refusal that is known", d)
					}
					start := time.Now()
					ok(t, other.Reset(ctx, "ann"))
					for !l.Allow(ctx, "ann").Allowed {
						time.Sleep(10 * time.Millisecond)
					}
					if took := time.Since(start); took > 5010*time.Millisecond {
						t.Errorf("%v, %v, random %v: a reset is seen after %v", a, per, random, took)
					}
				})
			}
		}
	}
}

// told makes a Limiter on a Memory, which is closed at the end.
func told(t *testing.T, p tiered.Policy) (*tiered.Limiter, *remote.Memory) {
	t.Helper()
	store := remote.NewMemory()
	l := limiter(t, store, p, nil)
	time.Sleep(time.Second)
	return l, store
}

// A client that is refused, and comes back exactly when it was told, is admitted, whatever was
// refused, charged or given back before. Package answers draws what nobody thought of here.
func TestComeBackWhenTold(t *testing.T) {
	use := func(n, gap int64) func(*testing.T, *tiered.Limiter) {
		return func(t *testing.T, l *tiered.Limiter) {
			for l.AllowN(ctx, "k", n).Allowed {
				time.Sleep(time.Duration(gap))
			}
		}
	}
	for name, c := range map[string]struct {
		policy tiered.Policy
		before func(*testing.T, *tiered.Limiter) // the last of it may be refused, and is remembered
		cost   int64
	}{
		"a log, dearer than what was refused": {
			tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.SlidingLog}, use(1, int64(4*time.Minute)), 5,
		},
		"a window, dearer": {
			tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.SlidingWindow}, use(1, int64(4*time.Minute)), 5,
		},
		"several limits, dearer": {
			tiered.Policy{Limit: tiered.PerMinute(10).And(tiered.PerHour(30))}, use(1,
				int64(time.Second)), 5,
		},
		"a rate that does not divide":      {tiered.Policy{Limit: tiered.PerMinute(7)}, use(1, 0), 1},
		"a rate that does not divide, one": {tiered.Policy{Limit: tiered.PerDay(86399).WithBurst(1)}, use(1, 0), 1},
		"a fixed window that is leased": {
			tiered.Policy{Limit: tiered.PerSecond(409), Algorithm: tiered.FixedWindow}, use(33, 0), 33,
		},
		"a sliding window that is leased": {
			tiered.Policy{Limit: tiered.PerSecond(409), Algorithm: tiered.SlidingWindow}, use(33, 0), 33,
		},
		"a charge after the refusal": {
			tiered.Policy{Limit: tiered.PerSecond(10).WithBurst(100), MaxDebt: 1000, Lease: neverLeased}, charged, 7,
		},
		"tokens that came back with a request": {
			tiered.Policy{Limit: tiered.Per(274, 10*time.Second), Lease: neverLeased}, settled, 7,
		},
	} {
		bubble(t, name, func(t *testing.T) {
			l, _ := told(t, c.policy)
			for range 3 {
				c.before(t, l)
				d := l.AllowN(ctx, "k", c.cost)
				if d.Allowed {
					t.Fatal("nothing was refused: this shows nothing")
				}
				time.Sleep(d.RetryAfter)
				if e := l.AllowN(ctx, "k", c.cost); !e.Allowed {
					t.Fatalf("told %v by %v, came back then, and is told %v", d.RetryAfter, d.Tier, e.RetryAfter)
				}
			}
		})
	}
}

func charged(t *testing.T, l *tiered.Limiter) {
	for l.AllowN(ctx, "k", 100).Allowed {
	}
	l.Allow(ctx, "k")
	ok(t, l.For("k").N(100).Charge())
	time.Sleep(100 * time.Millisecond) // Redis has heard of it
}

func settled(t *testing.T, l *tiered.Limiter) {
	time.Sleep(20 * time.Second)
	r := l.ReserveN(ctx, "k", 64)
	time.Sleep(3 * time.Second)
	r.Settle(18)
	l.AllowN(ctx, "k", 273)
}

// ResetAfter of a key that owes is when it is full, whatever is refused and whether a Peek or a
// request tells it.
func TestResetAfterOfADebt(t *testing.T) {
	for name, c := range map[string]struct {
		policy tiered.Policy
		full   time.Duration // after 60 tokens were taken
	}{
		"one limit":      {tiered.Policy{Limit: tiered.PerMinute(10)}, 6 * time.Minute},
		"several limits": {tiered.Policy{Limit: tiered.PerMinute(10).And(tiered.PerHour(30))}, 2 * time.Hour},
	} {
		c.policy.MaxDebt, c.policy.Lease = 100, neverLeased
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), c.policy, nil)
			begin := time.Now()
			l.AllowN(ctx, "k", 10)
			ok(t, l.For("k").N(50).Charge())
			for _, cost := range []int64{1, 4, 10} {
				time.Sleep(100 * time.Millisecond) // Redis has heard of it
				for _, d := range []tiered.Decision{l.PeekN(ctx, "k", cost), l.AllowN(ctx, "k", cost)} {
					if at := time.Since(begin) + d.ResetAfter; d.Reason != tiered.Limited || (at-c.full).Abs() > 10*time.Microsecond {
						t.Errorf("%d by %v: %v: full %v after the beginning, want %v", cost, d.Tier, d, at, c.full)
					}
				}
			}
		})
	}
}

// A hold-off, in which a process leaves to others what comes, makes nobody wait longer for a full
// key.
func TestResetAfterInAHoldOff(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(1000)}, nil)
		longest := time.Duration(0)
		for range 5000 {
			time.Sleep(100 * time.Microsecond)
			d := l.Allow(ctx, "k")
			if longest = max(longest, d.RetryAfter); d.ResetAfter > time.Second {
				t.Fatalf("%v", d)
			}
		}
		if longest < 100*time.Millisecond {
			t.Errorf("refused for %v at most: there was no hold-off", longest)
		}
	})
}

// A request that carries a limit beside a larger one of its key is told when its own would be full.
func TestResetAfterOfACarriedLimit(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(20), MaxDebt: 100, Lease: neverLeased}, nil)
		l.AllowN(ctx, "k", 10)
		carrying := l.For("k").WithLimit(tiered.PerMinute(10))
		if d := carrying.N(3).Allow(ctx); !d.Allowed || d.Burst != 10 || d.Remaining != 7 || d.ResetAfter != 18*time.Second {
			t.Errorf("%v", d)
		}
		ok(t, l.For("k").N(50).Charge())
		time.Sleep(100 * time.Millisecond)                                                  // Redis has heard of it
		larger := 10*time.Second + time.Second + 25*time.Millisecond - 100*time.Millisecond // a hold, a lease, and when it was charged
		full := larger + 2*(44*3*time.Second-100*time.Millisecond-larger) + 9*6*time.Second
		if d := carrying.Allow(ctx); d.Reason != tiered.Limited || (d.ResetAfter-full).Abs() > 10*time.Microsecond {
			t.Errorf("%v, want to be full in %v", d, full)
		}
	})
}

// 300 years, of which the first 200 pay a debt, are more than a time.Duration can tell.
func TestResetAfterOfADebtOfCenturies(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		p := tiered.Policy{Limit: tiered.Per(1, 100*365*24*time.Hour).WithBurst(2), MaxDebt: 10, Lease: neverLeased}
		l := limiter(t, remote.NewMemory(), p, nil)
		l.AllowN(ctx, "k", 2)
		ok(t, l.For("k").Charge())
		time.Sleep(100 * time.Millisecond) // Redis has heard of it
		if d := l.Allow(ctx, "k"); d.RetryAfter < 199*365*24*time.Hour || d.ResetAfter != math.MaxInt64 {
			t.Errorf("%v", d)
		}
	})
}

// With several limits ResetAfter is that of the limit that is named, and never less than
// RetryAfter.
func TestResetIsOfTheLimitThatIsNamed(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.SlidingWindow} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := told(t, tiered.Policy{
				Algorithm: a, Limit: tiered.PerMinute(5).And(tiered.Per(1000, 30*24*time.Hour)),
			})
			d := l.Allow(ctx, "k")
			for d.Allowed {
				d = l.Allow(ctx, "k")
			}
			if d.LimitNumber != 1 || d.ResetAfter > 63*time.Second || d.ResetAfter < d.RetryAfter {
				t.Errorf("%v: refused by limit %d, come back in %v, and it is full in %v", a, d.LimitNumber, d.RetryAfter,
					d.ResetAfter)
			}
		})
	}
}

// A limit that was lowered decides once nobody has used the larger one for ten seconds. A refusal
// tells when the tokens come by the larger until then, and by the smaller from then on, however the
// limit was lowered. A wait that this is too late for ends at once.
func TestComeBackAfterALimitWasLowered(t *testing.T) {
	high, low := tiered.PerHour(1000), tiered.PerHour(100)
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.SlidingLog, tiered.SlidingWindow} {
		for _, how := range []string{"SetLimit", "plan", "carried"} {
			bubble(t, a.String()+" "+how, func(t *testing.T) {
				p := tiered.Policy{Limit: high, Algorithm: a, Plans: map[string]tiered.Limit{"low": low}}
				l := limiter(t, remote.NewMemory(), p, nil)
				for l.Allow(ctx, "k").Allowed {
					time.Sleep(map[bool]time.Duration{true: 1400 * ms}[a != tiered.TokenBucket])
				}
				use := l.For("k").N(5)
				switch how {
				case "SetLimit":
					ok(t, l.SetLimit(low))
				case "plan":
					use = use.WithPlan("low")
				case "carried":
					use = use.WithLimit(low)
				}
				for range 2 { // the second is known here
					d := use.Allow(ctx)
					if d.Allowed || d.RetryAfter < time.Minute {
						t.Fatal(d)
					}
					late, cancel := context.WithTimeout(ctx, d.RetryAfter-time.Second)
					begin := time.Now()
					if err := use.Wait(late); err == nil || time.Since(begin) > time.Second {
						t.Errorf("told %v, a wait ended after %v: %v", d.RetryAfter, time.Since(begin), err)
					}
					cancel()
				}
				d := use.Allow(ctx)
				time.Sleep(d.RetryAfter)
				if e := use.Allow(ctx); !e.Allowed {
					t.Errorf("told %v, came back then, and is told %v", d.RetryAfter, e.RetryAfter)
				}
			})
		}
	}
}

// A request with a shorter sliding window than its key had is told when it is admitted by that, and
// not the time of the longer one.
func TestComeBackAfterAShorterWindow(t *testing.T) {
	for _, random := range []float64{0, 0.5, 0.999} {
		bubble(t, "", func(t *testing.T) {
			p := tiered.Policy{Limit: tiered.PerHour(100), Algorithm: tiered.SlidingWindow}
			l := limiter(t, remote.NewMemory(), p, &tiered.Options{Random: func() float64 { return random }})
			for l.Allow(ctx, "k").Allowed {
			}
			use := l.For("k").WithLimit(tiered.PerSecond(10))
			d := use.Allow(ctx)
			if d.Allowed || d.RetryAfter > 15*time.Second {
				t.Error(d)
			}
			time.Sleep(d.RetryAfter)
			if e := use.Allow(ctx); !e.Allowed {
				t.Errorf("told %v, came back then, and is told %v", d.RetryAfter, e.RetryAfter)
			}
		})
	}
}

// What is leased, and spent since, has no room in Redis before it is told. So a request for the
// whole burst is told by Redis when it is admitted, also in a hold-off.
func TestComeBackForTheWholeBurst(t *testing.T) {
	for _, cost := range []int64{98, 99, 100} {
		bubble(t, "", func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(100)}, &tiered.Options{Random: func() float64 { return 0.5 }})
			d := l.Allow(ctx, "k")
			for d.Allowed {
				d = l.Allow(ctx, "k")
			}
			time.Sleep(d.RetryAfter)
			l.Allow(ctx, "k")
			d = l.AllowN(ctx, "k", cost)
			time.Sleep(d.RetryAfter)
			if e := l.AllowN(ctx, "k", cost); d.Allowed || !e.Allowed {
				t.Errorf("%d: told %v, came back then, and is told %v", cost, d.RetryAfter, e.RetryAfter)
			}
		})
	}
}

// Requests of several costs that are refused at once are each told their own time, where no single
// refill tells all.
func TestRefusedInACrowd(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"sliding window": {Limit: tiered.PerMinute(100), Algorithm: tiered.SlidingWindow},
		"sliding log":    {Limit: tiered.PerMinute(100), Algorithm: tiered.SlidingLog},
		"two limits":     {Limit: tiered.PerMinute(60).WithBurst(100).And(tiered.PerHour(1000))},
		"not leased":     {Limit: tiered.PerMinute(60).WithBurst(100).And(tiered.PerHour(1000)), Lease: neverLeased},
	} {
		costs := []int64{50, 3, 80, 10, 1, 100}
		crowd := func(t *testing.T) (*tiered.Limiter, []tiered.Decision) {
			l := limiter(t, remote.NewMemory(), p, nil)
			for range 100 {
				l.Allow(ctx, "k")
				time.Sleep(100 * ms)
			}
			for l.Allow(ctx, "k").Allowed {
			}
			all := make([]tiered.Decision, len(costs))
			var wait sync.WaitGroup
			for i, n := range costs {
				wait.Go(func() { all[i] = l.AllowN(ctx, "k", n) })
			}
			wait.Wait()
			return l, all
		}
		for i, cost := range costs {
			bubble(t, name, func(t *testing.T) {
				l, all := crowd(t)
				time.Sleep(all[i].RetryAfter)
				if d := l.AllowN(ctx, "k", cost); all[i].Allowed || !d.Allowed {
					t.Errorf("%d: told %v, came back then, and is told %v", cost, all[i].RetryAfter, d.RetryAfter)
				}
			})
			bubble(t, name, func(t *testing.T) {
				const early = 4 * time.Second // more than a token's time, and than a block
				l, all := crowd(t)
				if time.Sleep(all[i].RetryAfter - early); all[i].RetryAfter > early && l.AllowN(ctx, "k", cost).Allowed {
					t.Errorf("%d: told %v, and was admitted %v sooner", cost, all[i].RetryAfter, early)
				}
			})
		}
	}
}

// After a charge a refusal that Redis did not see tells when the tokens come: also if the debt is
// as low as it may be, which is whole tokens, and if the bucket is full before Redis hears of it.
func TestComeBackAfterACharge(t *testing.T) {
	for what, c := range map[string]struct {
		limit  tiered.Limit
		charge int64
		pause  time.Duration
	}{
		"as low as it may be": {tiered.PerMinute(30), 90, 30 * ms}, "full soon": {tiered.PerSecond(64).WithBurst(1), 2, 0},
	} {
		bubble(t, what, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: c.limit}, &tiered.Options{Random: func() float64 { return 0.5 }})
			d := l.Allow(ctx, "k")
			for d.Allowed {
				d = l.Allow(ctx, "k")
			}
			time.Sleep(d.RetryAfter)
			l.Allow(ctx, "k")
			l.Allow(ctx, "k")
			ok(t, l.For("k").N(c.charge).Charge())
			time.Sleep(c.pause)
			d = l.Allow(ctx, "k")
			time.Sleep(d.RetryAfter)
			if e := l.Allow(ctx, "k"); d.Allowed || !e.Allowed {
				t.Errorf("told %v, came back then, and is told %v", d.RetryAfter, e.RetryAfter)
			}
		})
	}
}

// Redis counts in microseconds, and a process in nanoseconds. A renewal that is refused in between
// tells the same end of a window.
func TestComeBackAtTheEndOfAWindow(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		p := tiered.Policy{Limit: tiered.Per(274, 2*time.Second), Algorithm: tiered.FixedWindow, Calendar: true}
		l := limiter(t, remote.NewMemory(), p, &tiered.Options{Processes: 1, Random: func() float64 { return 0.5 }})
		time.Sleep(70 * time.Second)
		l.AllowN(ctx, "k", 205)
		l.Allow(ctx, "k")
		time.Sleep(ms)
		for range 40 {
			l.Allow(ctx, "k")
		}
		time.Sleep(300*ms + 263)
		d := l.AllowN(ctx, "k", 2)
		for d.Allowed {
			d = l.AllowN(ctx, "k", 2)
		}
		time.Sleep(d.RetryAfter)
		if e := l.AllowN(ctx, "k", 2); !e.Allowed {
			t.Errorf("told %v, came back then, and is told %v", d.RetryAfter, e.RetryAfter)
		}
	})
}
