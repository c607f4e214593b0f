package tiered_test

import (
	"bytes"
	"context"
	"errors"
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

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
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

// What prints or logs a Decision, or what has one, does not print the key, which may be a secret.
func TestKeysAreNotPrinted(t *testing.T) {
	d := tiered.Decision{Reason: tiered.Limited, Policy: "api", Key: "ann@example.org"}
	for name, v := range map[string]any{
		"Decision": d, "pointer": &d, "error": d.Err(), "Reservation": tiered.Reservation{Decision: d},
		"Refusal": httplimit.Refusal{Decision: d, Status: 429}, "list": []tiered.Decision{d},
	} {
		var out bytes.Buffer
		_, _ = fmt.Fprintf(&out, "%v %+v %s\n", v, v, v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("refused", "what", v)
		if name != "list" { // encoding/json writes its fields, as it must for one that is stored
			slog.New(slog.NewJSONHandler(&out, nil)).Info("refused", "what", v)
		}
		if s := out.String(); strings.Contains(s, "example.org") || !strings.Contains(s, "api") {
			t.Errorf("%s: %s", name, s)
		}
	}
}

// asked is what a request is made with.
type asked struct {
	ctx   context.Context
	l     *tiered.Limiter
	store *remote.Memory
}

// A Decision says what its request asked for, whoever decided and however. Trace.Decision says the same.
func TestDecisionsSayTheCost(t *testing.T) {
	of := func(err error) tiered.Decision {
		var refusal *tiered.LimitedError
		if !errors.As(err, &refusal) {
			return tiered.Decision{}
		}
		return refusal.Decision
	}
	minute := tiered.PerMinute(10)
	for name, c := range map[string]struct {
		policy tiered.Policy
		ask    func(asked) tiered.Decision
		want   int64
		untold bool // no hook is told, because nothing is taken
	}{
		"Allow": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.Allow(q.ctx, "k")
		}, 1, false},
		"AllowN of a lease": {tiered.Policy{Limit: tiered.PerSecond(1000)}, func(q asked) tiered.Decision {
			for range 300 {
				q.l.Allow(q.ctx, "k")
				time.Sleep(time.Millisecond)
			}
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"refused": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 8)
			return q.l.AllowN(q.ctx, "k", 4)
		}, 4, false},
		"refused again": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 8)
			q.l.AllowN(q.ctx, "k", 4)
			return q.l.AllowN(q.ctx, "k", 5)
		}, 5, false},
		"above the burst": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 11)
		}, 11, false},
		"not positive": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", -1)
		}, -1, false},
		"no key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "", 3)
		}, 3, false},
		"unlimited": {tiered.Policy{Limit: tiered.Unlimited()}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"blocked": {tiered.Policy{Limit: tiered.Blocked()}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"shadowed": {tiered.Policy{Limit: minute, Shadow: true}, func(q asked) tiered.Decision {
			return q.l.AllowN(q.ctx, "k", 12)
		}, 12, false},
		"fallback": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.store.Fail(errors.New("connection refused"))
			defer q.store.Fail(nil)
			return q.l.AllowN(q.ctx, "k", 3)
		}, 3, false},
		"several limits": {
			tiered.Policy{Limit: minute, Also: []tiered.Limit{tiered.PerHour(30)}},
			func(q asked) tiered.Decision {
				return q.l.AllowN(q.ctx, "k", 3)
			}, 3, false,
		},
		"Reserve": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.ReserveN(q.ctx, "k", 3).Decision
		}, 3, false},
		"Peek": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.PeekN(q.ctx, "k", 3)
		}, 3, false},
		"Peek of no key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.PeekN(q.ctx, "", 3)
		}, 3, false},
		"PeekLocal": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 3)
			d, _ := q.l.PeekLocal("k")
			return d
		}, 1, true},
		"Wait that is late": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			q.l.AllowN(q.ctx, "k", 10)
			late, cancel := context.WithTimeout(q.ctx, time.Second)
			defer cancel()
			return of(q.l.WaitN(late, "k", 3))
		}, 3, false},
		"Charge of no key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return of(q.l.Charge("", 3))
		}, 3, false},
		"All": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return tiered.All(q.l.For("a").N(2), q.l.For("b").N(3)).Allow(q.ctx) // b has room for fewer of its kind
		}, 3, false},
		"two uses of one key": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return tiered.All(q.l.For("a").N(2), q.l.For("a").N(3)).Allow(q.ctx)
		}, 5, false},
		"a limit that is carried": {tiered.Policy{Limit: minute}, func(q asked) tiered.Decision {
			return q.l.For("k").N(3).WithLimit(tiered.PerMinute(20)).Allow(q.ctx)
		}, 3, false},
		"standing": {
			tiered.Policy{Limit: tiered.PerMinute(1000), Standing: tiered.StandingOn},
			func(q asked) tiered.Decision {
				return q.l.AllowN(q.ctx, "k", 3)
			}, 3, false,
		},
	} {
		for _, traced := range []bool{false, true} {
			bubble(t, name, func(t *testing.T) {
				store, told, o := remote.NewMemory(), tiered.Decision{}, &tiered.Options{}
				if traced {
					o.Trace = &tiered.Trace{Decision: func(d tiered.Decision) { told = d }}
				}
				c.policy.Name = "api"
				l := must(tiered.New(store, c.policy, o))
				time.Sleep(2 * time.Minute) // shares are there
				d := c.ask(asked{t.Context(), l, store})
				if d.Policy != "api" || d.Cost != c.want {
					t.Errorf("%+v: cost %d, want %d", d, d.Cost, c.want)
				}
				synctest.Wait()
				if traced && !c.untold && told.Cost != c.want {
					t.Errorf("the hook was told of cost %d, want %d", told.Cost, c.want)
				}
				ok(t, l.Close(context.Background()))
			})
		}
	}
}

// AllowEach, AllowSeparately and PeekEach write the cost of each use.
func TestEachDecisionSaysItsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := told(t, tiered.Policy{Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(100)}})
		uses := []tiered.Use{l.For("c").N(11), l.For("b").N(3), l.For("a").N(2)} // c is refused
		check := func(what string, each []tiered.Decision, want ...int64) {
			t.Helper()
			for i, d := range each {
				if d.Cost != want[i] {
					t.Errorf("%s: cost %d, want %d: %+v", what, d.Cost, want[i], d)
				}
			}
		}
		each := make([]tiered.Decision, 3)
		tiered.All(uses...).AllowEach(t.Context(), each)
		check("AllowEach", each, 11, 3, 2)
		tiered.All(uses...).AllowSeparately(t.Context(), each)
		check("AllowSeparately", each, 11, 3, 2)
		each, err := l.PeekEach(t.Context(), "a")
		if err != nil || len(each) != 2 {
			t.Fatal(each, err)
		}
		check("PeekEach", each, 1, 1)
	})
}

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
							Name: "p", Limit: c.limits[0], Also: c.limits[1:], Algorithm: algorithm,
							Lease: tiered.Lease{Size: size},
						}))
						other := must(g.NewLimiter(tiered.Policy{Name: "other", Limit: tiered.PerHour(1000)}))
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
			Name: "p", Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(12)}, Lease: neverLeased,
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

// ResetAfter of a window is the time until it forgets what it counted, once Redis has reported that, and not the
// window's whole length. This holds for leases and direct takes.
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
			Name: "p", Limit: tiered.PerMinute(2),
			Algorithm: tiered.SlidingLog,
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
