package tiered_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A Decision in words says what was decided.
func TestDecisionInWords(t *testing.T) {
	for want, d := range map[string]tiered.Decision{
		"refused: unknown, none, cost 0": {},
		`admitted by policy "api": granted, local, cost 1, 9 of 10 left, full in 6s`: {
			Allowed: true, Reason: tiered.Granted, Tier: tiered.Local, Policy: "api", Key: "ann", Cost: 1, Burst: 10, Remaining: 9,
			ResetAfter: 6 * time.Second,
		},
		`refused by policy "api": limited by limit 2, remote, cost 3, 1 of 10 left, retry after 12s, full in 54s`: {
			Reason: tiered.Limited, Tier: tiered.Remote, LimitNumber: 2, Policy: "api", Key: "ann", Cost: 3, Burst: 10, Remaining: 1,
			RetryAfter: 12 * time.Second, ResetAfter: 54 * time.Second,
		},
		`admitted by policy "api": granted, remote, cost 1, 4 of 5 left, full in 1s`: {
			Allowed: true, Reason: tiered.Granted, Tier: tiered.Remote, LimitNumber: 2, Policy: "api", Cost: 1, Burst: 5, Remaining: 4,
			ResetAfter: time.Second,
		},
		`admitted by policy "api": granted, local, cost 7, no limit`: {
			Allowed: true, Reason: tiered.Granted, Tier: tiered.Local, Policy: "api", Cost: 7, Burst: math.MaxInt64,
			Remaining: math.MaxInt64,
		},
		`refused by policy "api": exceeds burst, local, cost 7`: {
			Reason: tiered.ExceedsBurst, Tier: tiered.Local, Policy: "api", Cost: 7,
		},
	} {
		if got := d.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What is printed, logged or marshaled does not say a key, which may be a secret, but it says the
// policy.
func TestKeysAreNotPrinted(t *testing.T) {
	const key = "ann@example.org"
	l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
	d, use := tiered.Decision{Reason: tiered.Limited, Policy: "api", Key: key, RetryAfter: second}, l.For(key).N(3)
	e, stats := tiered.Event{What: "state loss", Policy: "api", Key: key}, tiered.PolicyStats{Top: []tiered.RefusedKey{{Key: key}}}
	for name, v := range map[string]any{
		"Decision": d, "pointer": &d, "error": d.Err(), "Reservation": tiered.Reservation{Decision: d}, "event": e, "its pointer": &e,
		"Refusal": httplimit.Refusal{Decision: d, Status: 429}, "use": use, "uses": tiered.All(use, l.For(key)), "figures": stats,
		"list": []tiered.Decision{d}, "list of uses": []tiered.Use{use},
	} {
		var out bytes.Buffer
		_, _ = fmt.Fprintf(&out, "%v %+v %s\n", v, v, v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("refused", "what", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("refused", "what", v)
		if text, err := json.Marshal(v); err == nil { // not every one can be
			out.Write(text)
		}
		if s := out.String(); strings.Contains(s, "ann") || !strings.Contains(s, "api") && name != "figures" {
			t.Errorf("%s: %s", name, s)
		}
	}
}

// With several limits on a key, a refusal names the limit that refused, with its burst. This holds
// for each position of the limit, for decisions by Redis and by the process, for one key and
// several, in hooks and in Stats.
func TestWhichLimitRefused(t *testing.T) {
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
						g := must(tiered.NewGroup(store, patientOptions(&tiered.Trace{
							Decision: func(d tiered.Decision) {
								mu.Lock()
								told = append(told, d.LimitNumber)
								mu.Unlock()
							},
							Lease: func(e tiered.Event) {
								if e.Policy == "p" && e.LimitNumber != c.which {
									t.Errorf("%+v", e)
								}
							},
						})))
						defer g.Close(ctx)
						l := must(g.NewLimiter(tiered.Policy{
							Name: "p", Limit: c.limits[0].And(c.limits[1:]...), Algorithm: algorithm,
							Lease: tiered.Lease{Size: size},
						}))
						other := must(g.NewLimiter(tiered.Policy{Name: "other", Limit: tiered.PerHour(1000)}))
						check := func(d tiered.Decision, allowed bool, tier tiered.Tier) {
							t.Helper()
							if d.Allowed != allowed || d.LimitNumber != c.which || d.Burst != 3 ||
								tier != 0 && d.Tier != tier {
								t.Errorf("%v, lease %d: %+v", algorithm, size, d)
							}
							if limit, ok := l.LimitOf(d); !ok || limit != hourly {
								t.Errorf("of %+v", limit)
							}
						}
						for range 3 {
							check(l.Allow(ctx, "k"), true, 0)
						}
						check(l.Allow(ctx, "k"), false, tiered.Remote)
						d := l.Allow(ctx, "k")
						check(d, false, tiered.Local)
						check(l.Peek(ctx, "k"), false, tiered.Local)
						check(l.AllowN(ctx, "k", 4), false, 0) // exceeds the smallest burst
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

// An admission names the limit with the fewest tokens left, which changes with use. Remaining never
// exceeds its burst.
func TestWhichLimitIsTightest(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "p", Limit: tiered.PerSecond(10).And(tiered.PerHour(25)), Lease: tiered.Lease{Size: size},
			}, nil)
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

// A refusal names the limit with the longest wait, not the one with the fewest tokens left. A
// cheaper request that is admitted meanwhile names the latter.
func TestWhichRefusedIsNotTheTightest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{
			Name: "p", Limit: tiered.PerMinute(10).And(tiered.PerHour(12)), Lease: neverLeased,
		}, nil)
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

// ResetAfter of a window is the time until it forgets what it counted, once Redis has reported
// that, and not the window's whole length. This holds for leases and direct takes.
func TestResetOfAWindow(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "p", Limit: tiered.PerMinute(100), Algorithm: tiered.FixedWindow, Calendar: true, Lease: tiered.Lease{Size: size},
			}, nil)
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
			Name: "p", Limit: tiered.PerMinute(2), Algorithm: tiered.SlidingLog,
		}, nil)
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

// A refusal that more tokens could not have prevented still states what this process knows of the
// key's tokens. It makes no call.
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
		{tiered.Policy{Limit: tiered.PerHour(50).And(minute)}, 10, 24 * second, time.Hour},
		{tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow}, 10, second, time.Minute},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingLog}, 10, 59 * second, time.Minute},
		{tiered.Policy{Limit: minute, Algorithm: tiered.SlidingWindow}, 10, 59 * second, 63 * second},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(ms)
			l := limiter(t, store, c.policy, nil)
			time.Sleep(second)
			want(t, l.AllowN(ctx, "k", 4), tiered.Granted)
			calls := store.calls.Load()
			for what, cost := range map[string]int64{
				"one too many": c.limit + 1, "absurd": 1 << 60, "nothing": 0, "less": -5,
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
