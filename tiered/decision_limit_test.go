package tiered_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// onBoth runs a test over a Memory and over a real Redis; periods of hours make the time that it takes no matter.
func onBoth(t *testing.T, f func(t *testing.T, store remote.Store)) {
	t.Run("memory", func(t *testing.T) { f(t, remote.NewMemory()) })
	t.Run("redis", func(t *testing.T) { f(t, open(t, redistest.Start(t).URL())) })
}

// patientOptions are options under which a slow machine is no outage.
func patientOptions(hooks *tiered.Trace) *tiered.Options {
	return &tiered.Options{Budget: 10 * time.Second, Timeout: 10 * time.Second, Processes: 1, Trace: hooks}
}

// With several limits on a key, a refusal names the limit that refused, with its burst. This holds for each position of
// the limit, for decisions by Redis and by the process, for one key and several, in hooks and in Stats.
func TestWhichLimitRefused(t *testing.T) {
	ctx := context.Background()
	daily := tiered.Limit{Tokens: 100, Per: 24 * time.Hour}
	hourly := tiered.Limit{Tokens: 3, Per: time.Hour}
	monthly := tiered.Limit{Tokens: 1000, Per: 30 * 24 * time.Hour}
	for name, c := range map[string]struct {
		limits []tiered.Limit
		which  uint8
	}{
		"the first": {[]tiered.Limit{hourly, daily, monthly}, 1}, "the second": {[]tiered.Limit{daily, hourly, monthly}, 2},
		"the last": {[]tiered.Limit{daily, monthly, hourly}, 3},
	} {
		for _, algorithm := range []tiered.Algorithm{tiered.TokenBucket, tiered.SlidingWindow} {
			for _, size := range []int64{0, tiered.NoLease} {
				t.Run(name, func(t *testing.T) {
					onBoth(t, func(t *testing.T, store remote.Store) {
						var mu sync.Mutex
						var told []uint8
						g, err := tiered.NewGroup(store, patientOptions(&tiered.Trace{
							Decision: func(d tiered.Decision) {
								mu.Lock()
								told = append(told,
									d.LimitNumber)
								mu.Unlock()
							},
							Lease: func(e tiered.LeaseEvent) {
								if e.Policy == "p" && e.LimitNumber != c.which {
									t.Errorf("%+v", e)
								}
							},
						}))
						if err != nil {
							t.Fatal(err)
						}
						defer g.Close(ctx)
						l, err := g.NewLimiter(tiered.Policy{
							Name: "p", Limit: c.limits[0], Also: c.limits[1:], Algorithm: algorithm,
							Lease: tiered.Lease{Size: size},
						})
						if err != nil {
							t.Fatal(err)
						}
						other, err := g.NewLimiter(tiered.Policy{Name: "other", Limit: tiered.PerHour(1000)})
						if err != nil {
							t.Fatal(err)
						}
						check := func(d tiered.Decision, allowed bool, tier tiered.Tier) {
							t.Helper()
							if d.Allowed != allowed || d.LimitNumber != c.which || d.Burst != 3 ||
								tier != tiered.None && d.Tier != tier {
								t.Errorf("%v, lease %d: %+v", algorithm, size, d)
							}
							if limit, ok := l.LimitOf(d); !ok || limit != hourly {
								t.Errorf("of %+v", limit)
							}
						}
						for range 3 {
							check(l.Allow(ctx, "k"), true, tiered.None)
						}
						check(l.Allow(ctx, "k"), false, tiered.Remote)
						d := l.Allow(ctx, "k")
						check(d, false, tiered.Local)
						check(l.Peek(ctx, "k"), false, tiered.Local)
						check(l.AllowN(ctx, "k", 4), false, tiered.None) // exceeds the smallest burst
						check(tiered.All(other.For("a"), l.For("k")).Allow(ctx), false, tiered.Local)
						if err := d.Err(); !strings.Contains(err.Error(), "by limit "+string('0'+rune(c.which))) {
							t.Error(err)
						}
						if d := other.Allow(ctx, "a"); d.LimitNumber != 0 || d.Err() != nil {
							t.Errorf("one limit: %+v", d)
						}
						if top := g.Stats().Policies["p"].Top; len(top) != 1 || top[0].LimitNumber != c.which {
							t.Errorf("top %+v", top)
						}
						if err := g.Close(ctx); err != nil { // the hooks are told by now
							t.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						if len(told) != 9 || slices.Index(told[:8], 0) >= 0 {
							t.Errorf("the hook was told %d", told)
						}
					})
				})
			}
		}
	}
}

// An admission names the limit with the fewest tokens left, which changes with use. Remaining never exceeds its burst.
func TestWhichLimitIsTightest(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "p", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(25)}, Lease: tiered.Lease{Size: size},
			}, nil)
			ctx := context.Background()
			seen := map[uint8]int{}
			for range 25 {
				d := l.Allow(ctx, "k")
				if !d.Allowed || d.LimitNumber == 0 || d.Burst != []int64{10, 25}[d.LimitNumber-1] ||
					d.Remaining > d.Burst {
					t.Fatalf("%+v", d)
				}
				seen[d.LimitNumber]++
				time.Sleep(time.Second)
			}
			if seen[1] < 10 || seen[2] < 5 {
				t.Errorf("size %d: %v", size, seen)
			}
			if d := l.Allow(ctx, "k"); d.Allowed || d.LimitNumber != 2 || d.Burst != 25 || d.RetryAfter < time.Minute {
				t.Errorf("size %d: %+v", size, d)
			}
		})
	}
}

// A refusal names the limit with the longest wait, not the one with the fewest tokens left. A cheaper request that is
// admitted meanwhile names the latter.
func TestWhichRefusedIsNotTheTightest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{
			Name: "p", Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(12)}, Lease: tiered.Lease{Size: tiered.NoLease},
		}, nil)
		ctx := context.Background()
		r := l.ReserveN(ctx, "k", 7) // 3 and 5 are left
		ask := func(cost int64, allowed bool, tier tiered.Tier, which uint8) {
			t.Helper()
			if d := l.AllowN(ctx, "k", cost); d.Allowed != allowed || d.Tier != tier || d.LimitNumber != which {
				t.Errorf("%d: %+v", cost, d)
			}
		}
		ask(6, false, tiered.Remote, 2)
		ask(6, false, tiered.Local, 2)
		ask(1, true, tiered.Remote, 1)
		ask(6, false, tiered.Remote, 2)
		r.Settle(6) // Redis' reply to that names the tightest, and the refusal is believed on
		time.Sleep(time.Second)
		ask(6, false, tiered.Local, 2)
		ask(1, true, tiered.Remote, 1)
	})
}

// ResetAfter of a window is the time until it forgets what it counted, once Redis has reported that, and not the
// window's whole length. This holds for leases and direct takes.
func TestResetOfAWindow(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "p", Limit: tiered.PerMinute(100), Algorithm: tiered.FixedWindow, Calendar: true, Lease: tiered.Lease{Size: size},
			}, nil)
			ctx := context.Background()
			time.Sleep(15 * time.Second) // a bubble begins at a whole minute
			for second := 15; second < 60; second++ {
				d := l.AllowN(ctx, "k", 2)
				if want := time.Duration(60-second) * time.Second; !d.Allowed || d.ResetAfter != want {
					t.Fatalf("lease %d, second %d: %+v, want %v", size, second, d, want)
				}
				time.Sleep(time.Second)
			}
			if d := l.Allow(ctx, "k"); d.ResetAfter != time.Minute {
				t.Errorf("in the next: %+v", d)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{
			Name: "p", Limit: tiered.PerMinute(2),
			Algorithm: tiered.SlidingLog,
		}, nil)
		ctx := context.Background()
		l.Allow(ctx, "k")
		time.Sleep(10 * time.Second)
		l.Allow(ctx, "k")
		if d := l.Allow(ctx, "k"); d.RetryAfter != 50*time.Second || d.ResetAfter != time.Minute {
			t.Errorf("%+v", d)
		}
		time.Sleep(20 * time.Second)
		if d := l.Allow(ctx, "k"); d.RetryAfter != 30*time.Second || d.ResetAfter != 40*time.Second {
			t.Errorf("%+v", d)
		}
	})
}

// A Decision is passed by value. Which must fit into padding that the struct has anyway.
func TestDecisionIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(tiered.Decision{}); n > 80 {
		t.Errorf("%d bytes", n)
	}
}
