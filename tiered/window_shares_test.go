package tiered_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// windowPolicy has standing shares of windows that begin with the minute.
func windowPolicy(tokens int64, standing float64) tiered.Policy {
	return tiered.Policy{
		Name: "api", Algorithm: tiered.FixedWindow, Limit: tiered.PerMinute(tokens), Calendar: true, Standing: standing,
	}
}

// nextMinute waits until a window begins.
func nextMinute() { time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) }

// Rarely used keys of windows are decided without Redis, from the begin of a window on.
func TestWindowSharesDecideWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fleetOf(t, remote.NewMemory(), 4, windowPolicy(1000, 1./2))
		nextMinute()
		time.Sleep(time.Second)
		before := calls(all...)
		for i := range 5000 {
			d := limiterOf(t, all[i%4], "api").Allow(ctx, fmt.Sprint("user ", i))
			if !d.Allowed || d.Tier != tiered.Local || d.Burst != 1000 || d.Remaining > 999 || d.ResetAfter > time.Minute {
				t.Fatalf("user %d: %+v", i, d)
			}
		}
		if n := calls(all...) - before; n > 20 {
			t.Errorf("%d calls for 5000 users", n)
		}
	})
}

// windowCount counts what all processes admit of a key in each window that begins with a minute.
type windowCount struct {
	begin time.Time
	n     int64
}

// admit fails the test where a window has more than most tokens, and returns how many it has.
func (w *windowCount) admit(t *testing.T, most int64) int64 {
	t.Helper()
	if begin := time.Now().Truncate(time.Minute); !begin.Equal(w.begin) {
		*w = windowCount{begin: begin}
	}
	if w.n++; w.n > most {
		t.Fatalf("%d of %d tokens in the window of %v", w.n, most, w.begin)
	}
	return w.n
}

// A user who meets all processes has the whole limit in each window, and never more, and one who
// meets the same of four has the part of Redis and that of one process.
func TestWindowSharesKeepTheLimit(t *testing.T) {
	for _, row := range []struct {
		processes   int // that the user meets
		least, most int64
	}{{4, 392, 400}, {1, 246, 250}} {
		synctest.Test(t, func(t *testing.T) {
			all := fleetOf(t, remote.NewMemory(), 4, windowPolicy(400, 1./2))
			nextMinute()
			var w windowCount
			random := rand.New(rand.NewPCG(1, 9))
			for window := range 3 {
				for end := time.Now().Truncate(time.Minute).Add(time.Minute); time.Until(end) > 0; time.Sleep(10 * time.Millisecond) {
					if limiterOf(t, all[random.IntN(row.processes)], "api").Allow(ctx, "user").Allowed {
						w.admit(t, row.most)
					}
				}
				if w.n < row.least {
					t.Errorf("%d processes, window %d: %d tokens, want %d", row.processes, window, w.n, row.least)
				}
			}
		})
	}
}

// drain takes all that processes have of a key now, one by one in turn, and returns how many.
func drain(t *testing.T, all []*program, key string) (n int64) {
	t.Helper()
	for refused := 0; refused < 3*len(all); {
		refused++
		for _, p := range all {
			if limiterOf(t, p, "api").Allow(ctx, key).Allowed {
				n, refused = n+1, 0
			}
		}
	}
	return n
}

// A token of a share that is given back after its window is over is not one of the next window.
func TestCancelledTokenOfAShareDoesNotCountInTheNextWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fleetOf(t, remote.NewMemory(), 1, windowPolicy(400, 1./2))
		l := limiterOf(t, all[0], "api")
		nextMinute()
		time.Sleep(time.Second)
		r := l.ReserveN(ctx, "user", 50)
		if !r.Allowed || r.Tier != tiered.Local {
			t.Fatalf("%+v", r.Decision)
		}
		nextMinute()
		time.Sleep(time.Second)
		n := drain(t, all, "user")
		r.Cancel()
		time.Sleep(6 * time.Second)
		n += drain(t, all, "user")
		if n > 400 {
			t.Errorf("%d of 400 tokens in a window", n)
		}
	})
}

// A window has shares only if they can use all of their tokens: as many as the places tell apart.
func TestWindowOfManyTokens(t *testing.T) {
	p := windowPolicy(1, 1./2)
	p.Limit, p.Calendar = tiered.PerSecond(32_000_002), true
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "must be at most 16000000") {
		t.Error(err)
	}
	p.Limit = tiered.PerSecond(32_000_000)
	synctest.Test(t, func(t *testing.T) {
		all := fleetOf(t, remote.NewMemory(), 1, p)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second + 500*time.Millisecond)))
		n := 0
		for limiterOf(t, all[0], "api").AllowN(ctx, "user", 500_000).Allowed {
			n++
		}
		if n < 63 {
			t.Errorf("%d of 64 times half a million tokens", n)
		}
	})
}

// Until shares are used nobody has less than the whole limit but for some seconds, and no deploy
// that turns them on, changes them, changes the limit or turns them off exceeds a window's limit,
// though the processes of before are gone.
func TestWindowSharesComeAndGo(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			store := remote.NewMemory()
			var all []*program
			for range 3 {
				all = append(all, run(t, store, "", windowPolicy(400, 0)))
			}
			random := rand.New(rand.NewPCG(seed, 9))
			var w windowCount
			requests := func(d time.Duration) {
				for end := time.Now().Add(d); time.Until(end) > 0; time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond)))) {
					if limiterOf(t, all[random.IntN(len(all))], "api").Allow(ctx, "user").Allowed {
						w.admit(t, 400)
					}
				}
			}
			requests(time.Minute)
			for _, standing := range []float64{1. / 2, 1. / 8, 0, 3. / 4, 0} {
				p := windowPolicy(400, standing)
				switch random.IntN(3) {
				case 0: // a rolling deploy
					for i := range all {
						_ = all[i].Close(ctx)
						all[i] = run(t, store, "", p)
						requests(time.Duration(random.Int64N(int64(5 * time.Second))))
					}
				case 1: // all at once
					for i := range all {
						_ = all[i].Close(ctx)
						all[i] = run(t, store, "", p)
					}
				default: // a reload
					for i := range all {
						if err := limiterOf(t, all[i], "api").SetPolicy(p); err != nil {
							t.Fatal(err)
						}
						requests(time.Duration(random.Int64N(int64(2 * time.Second))))
					}
				}
				requests(time.Duration(random.Int64N(int64(4 * time.Minute))))
			}
			requests(4 * time.Minute)
			if nextMinute(); true {
				requests(59 * time.Second)
			}
			if w.n != 400 {
				t.Errorf("seed %d: without shares again, a window has %d of 400 tokens", seed, w.n)
			}
		})
	}
}

// A service whose users have 1000 per minute in fixed windows, over a dozen replicas, decides most
// requests in memory. redis_rate makes one call for each.
func TestWindowSharesOfAService(t *testing.T) {
	notUnderRace(t)
	const replicas, users, perSecond = 12, 20_000, 600
	for _, row := range []struct{ shared, least, most float64 }{{0, 0.8, 1}, {1. / 8, 0, 0.4}, {1. / 2, 0, 0.3}} {
		synctest.Test(t, func(t *testing.T) {
			p := windowPolicy(1000, row.shared)
			p.Calendar = false
			var all []*program
			store := remote.NewMemory()
			for range replicas {
				all = append(all, run(t, store, "", p))
			}
			time.Sleep(settleShares + time.Minute)
			random := rand.New(rand.NewPCG(1, 2))
			zipf := rand.NewZipf(random, 1.1, 1, users-1)
			before, n := calls(all...), 0
			for start := time.Now(); time.Since(start) < 2*time.Minute; n++ {
				limiterOf(t, all[random.IntN(replicas)], "api").Allow(ctx, fmt.Sprint("user ", zipf.Uint64()))
				time.Sleep(time.Second / perSecond)
			}
			calling := float64(calls(all...)-before) / float64(n)
			t.Logf("Standing %v: %.2f calls per request", row.shared, calling)
			if calling < row.least || calling > row.most {
				t.Errorf("Standing %v: %.2f calls per request, want %v to %v", row.shared, calling, row.least, row.most)
			}
		})
	}
}

// After shares are turned off, the first window that is whole says what it has, and admits a request
// that costs most of it.
func TestWindowIsWholeAfterSharesAreTurnedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := windowPolicy(400, 1./2)
		p.Limit = tiered.PerHour(400)
		all := fleetOf(t, remote.NewMemory(), 2, p)
		time.Sleep(30 * time.Minute)
		p.Standing = 0
		for i := range all {
			ok(t, limiterOf(t, all[i], "api").SetPolicy(p))
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 5*time.Minute)))
		l := limiterOf(t, all[0], "api")
		if n := drain(t, all, "user"); n != 400 {
			t.Errorf("%d of 400 tokens", n)
		}
		if d := l.Allow(ctx, "another"); !d.Allowed || d.Remaining != 399 {
			t.Errorf("%v", d)
		}
		if d := l.AllowN(ctx, "third", 300); !d.Allowed {
			t.Errorf("300 of 400: %v", d)
		}
	})
}

// A policy that comes to use its shares does not cost the keys of another what their windows have.
func TestSharesOfAnotherPolicyLeaveAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tiered.Policy{Name: "api", Algorithm: tiered.FixedWindow, Limit: tiered.PerHour(400), Calendar: true, Standing: 1. / 2}
		other := standingPolicy("other")
		other.Standing = 0
		all := fleetOf(t, remote.NewMemory(), 2, p, other)
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		time.Sleep(time.Minute)
		if n := drain(t, all, "before"); n < 392 {
			t.Errorf("%d of 400 tokens", n)
		}
		other.Standing = 1. / 2
		for i := range all {
			ok(t, limiterOf(t, all[i], "other").SetPolicy(other))
		}
		time.Sleep(2 * time.Minute)
		if n := drain(t, all, "after"); n < 392 {
			t.Errorf("after another policy began to use its shares, %d of 400 tokens", n)
		}
	})
}

// A window keeps its shares' part to its end, also once the shares are turned off. A request that
// wants more than the rest is refused until then, and no fail mode decides over it.
func TestWindowRefusesWhatItsSharesHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := windowPolicy(400, 1./2)
		p.Limit, p.FailMode = tiered.PerHour(400), tiered.FailOpen
		g := fleetOf(t, remote.NewMemory(), 1, p)[0]
		end := time.Now().Truncate(time.Hour).Add(2 * time.Hour)
		time.Sleep(time.Until(end.Add(-55 * time.Minute)))
		p.Standing = 0
		l := limiterOf(t, g, "api")
		ok(t, l.SetPolicy(p))
		time.Sleep(3 * time.Minute)
		peek := func() tiered.Decision { return l.PeekN(ctx, "user", 300) }
		for _, ask := range []func() tiered.Decision{peek, func() tiered.Decision { return l.AllowN(ctx, "user", 300) }} {
			d, left := ask(), time.Until(end)
			if d.Allowed || d.Reason != tiered.Limited || d.RetryAfter < left || d.RetryAfter > left+time.Second {
				t.Errorf("%+v with %v left", d, left)
			}
		}
		if d := l.AllowN(ctx, "user", 200); !d.Allowed {
			t.Errorf("the rest: %v", d)
		}
		time.Sleep(time.Until(end.Add(time.Second)))
		if d := l.AllowN(ctx, "user", 300); !d.Allowed {
			t.Errorf("in the next window: %v", d)
		}
	})
}
