package tiered_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// severalEach are the algorithms that count by several limits of a key.
var severalEach = []tiered.Algorithm{tiered.TokenBucket, tiered.SlidingWindow}

// freePro has two limits of each key, and as many of each plan. Burst and rate of ten minutes refill
// nothing within a test.
func freePro(a tiered.Algorithm) tiered.Policy {
	return tiered.Policy{
		Name: "api", Algorithm: a, Limit: tiered.Per(10, 10*time.Minute).And(tiered.PerDay(15)),
		Plans: map[string]tiered.Limit{
			"pro":  tiered.Per(100, 10*time.Minute).And(tiered.PerDay(130)),
			"deep": tiered.Per(20, 10*time.Minute).And(tiered.PerDay(1000)),
		},
		PerKey: func(key string) tiered.Limit {
			return map[string]tiered.Limit{"acme": tiered.Per(40, 10*time.Minute).And(tiered.PerDay(50)), "off": tiered.Blocked()}[key]
		},
	}
}

// What a plan, PerKey and a request give is the list of limits, and each of them refuses.
func TestEachLimitOfAListRefuses(t *testing.T) {
	for _, a := range severalEach {
		for _, lease := range []tiered.Lease{{}, neverLeased} {
			bubble(t, fmt.Sprint(a, lease.Size), func(t *testing.T) {
				p := freePro(a)
				p.Lease = lease
				l := limiter(t, remote.NewMemory(), p, nil)
				plan := func(key, plan string) tiered.Use { return l.For(key).WithPlan(plan) }
				for _, c := range []struct {
					use           tiered.Use
					first, second int64
				}{
					{plan("ann", ""), 10, 15},
					{plan("bob", "pro"), 100, 130},
					{plan("eve", "deep"), 20, 1000},
					{plan("acme", "pro"), 40, 50}, // PerKey is a contract
					{l.For("joe").WithLimit(tiered.Per(30, 10*time.Minute).And(tiered.PerDay(35))), 30, 35},
				} {
					got, left := int64(0), c.second
					for range 3 {
						d := c.use.Allow(ctx)
						for ; d.Allowed; d = c.use.Allow(ctx) {
							got, left = got+1, left-1
						}
						which, most := uint8(1), c.first
						if left < 1 {
							which, most = 2, c.second
						}
						if limit, ok := l.LimitOf(d); d.Reason != tiered.Limited || d.LimitNumber != which || d.Burst != most || !ok || limit.Tokens != most {
							t.Fatalf("%d were admitted: %+v, %v; want limit %d of %d", got, d, limit, which, most)
						}
						if left < 1 {
							break
						}
						if a == tiered.SlidingWindow { // the first is free again
							time.Sleep(d.RetryAfter + time.Minute)
						} else {
							time.Sleep(11 * time.Minute)
						}
					}
					if most := max(c.first*3, c.second) + 3; got > most || got < min(c.second, 3*c.first) {
						t.Errorf("%d were admitted by %d and %d", got, c.first, c.second)
					}
					all, err := c.use.PeekEach(ctx)
					if ok(t, err); len(all) != 2 || all[0].Burst != c.first || all[1].Burst != c.second || all[1].LimitNumber != 2 {
						t.Errorf("%+v", all)
					}
				}
				if d := l.Allow(ctx, "off"); d.Reason != tiered.ExceedsBurst {
					t.Errorf("a blocked key: %+v", d)
				}
				if n := l.Group().Stats().Policies["api"].Faults; n.PerKey+n.UnknownPlans > 0 {
					t.Errorf("%+v", n)
				}
			})
		}
	}
}

// Requests of one key with lists that cross have the larger of each limit, and each is told of its
// own. Once nobody carries the larger ones, the own list decides.
func TestListsThatCross(t *testing.T) {
	for _, a := range severalEach {
		bubble(t, a.String(), func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "api", Algorithm: a, Lease: neverLeased, Limit: tiered.PerHour(20).And(tiered.PerDay(50)),
			}, nil)
			high, wide := tiered.PerHour(100).And(tiered.PerDay(60)), tiered.PerHour(30).And(tiered.PerDay(400))
			use := func(limit tiered.Limit) tiered.Use { return l.For("k").WithLimit(limit) }
			if d := use(high).N(40).Allow(ctx); !d.Allowed || d.Burst != 60 || d.LimitNumber != 2 || d.Remaining != 20 {
				t.Errorf("40 of 60 a day: %+v", d)
			}
			if d := use(wide).N(31).Allow(ctx); d.Reason != tiered.ExceedsBurst || d.Burst != 30 || d.LimitNumber != 1 {
				t.Errorf("more than its own burst: %+v", d)
			}
			// In a bucket the larger burst is not full at once. A window counts up to it.
			left := int64(20)
			if a == tiered.SlidingWindow {
				left = 60 // of the hour by the one list, and of 400 a day by the other
			}
			for _, limit := range []tiered.Limit{wide, high, wide, high} {
				if d := use(limit).N(left / 4).Allow(ctx); !d.Allowed || d.Remaining > limit.Each()[0].Tokens {
					t.Errorf("%v: %+v", limit, d)
				}
			}
			if d := use(wide).Allow(ctx); d.Allowed || d.Reason != tiered.Limited || d.Burst > 400 {
				t.Errorf("all is used: %+v", d)
			}
			time.Sleep(12 * time.Second)
			if d := l.Allow(ctx, "k"); d.Allowed || d.Burst > 50 || d.RetryAfter < 10*time.Minute {
				t.Errorf("the policy's own list decides again: %+v", d)
			}
		})
	}
}

// A further limit is changed as the first is: a window is raised at once, and lowered it is once
// nobody uses the larger one. What is leased beyond it goes back.
func TestFurtherLimitIsChanged(t *testing.T) {
	for _, a := range severalEach {
		for _, first := range []int64{10_000, 400} { // without and with one that is the tightest
			bubble(t, fmt.Sprint(a, first), func(t *testing.T) {
				with := func(n int64) tiered.Policy {
					return tiered.Policy{
						Name: "api", Algorithm: a, Limit: tiered.PerDay(first).And(tiered.Per(n, 2*24*time.Hour)), Lease: tiered.Lease{Size: 20},
						FailMode: tiered.FailClosed,
					}
				}
				l := limiter(t, remote.NewMemory(), with(100), nil)
				if a == tiered.SlidingWindow {
					if got := spendAll(t, l, "raised"); got != 100 {
						t.Errorf("%d of 100", got)
					}
				}
				ok(t, l.SetPolicy(with(2000)))
				if d := l.AllowN(ctx, "raised", 250); !d.Allowed {
					t.Errorf("raised: %+v", d)
				}
				for range 300 {
					l.Allow(ctx, "k")
					time.Sleep(ms)
				}
				held := l.Stats().Leases.Held
				if held == 0 {
					t.Fatal("nothing is leased")
				}
				ok(t, l.SetPolicy(with(900)))
				time.Sleep(20 * ms)
				if now := l.Stats().Leases.Held; now > 0 {
					t.Errorf("%d of %d are still leased", now, held)
				}
				time.Sleep(12 * time.Second)
				if d := l.Peek(ctx, "k"); first > 900 && (d.LimitNumber != 2 || d.Burst != 900) || d.Remaining > 900 {
					t.Errorf("lowered: %+v", d)
				}
				if got := spendAll(t, l, "k"); got > 900 || a == tiered.SlidingWindow && got > 600 {
					t.Errorf("%d more are admitted", got)
				}
			})
		}
	}
}

// A list cannot become shorter or longer while tokens are out.
func TestNumberOfLimitsStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerHour(100).And(tiered.PerDay(900))}, nil)
		l.Allow(ctx, "k")
		for _, c := range []struct {
			limit tiered.Limit
			want  string
		}{
			{tiered.PerHour(100), "tiered: Policy.Limit is 1 limit: must stay 2 limits, because the buckets in Redis count by it"},
			{tiered.Blocked(), "tiered: Policy.Limit is 1 limit: must stay 2 limits, because the buckets in Redis count by it"},
			{
				tiered.PerHour(100).And(tiered.PerWeek(900)),
				"tiered: Policy.Limit.Also[0].Per is 168h0m0s: must stay 24h0m0s, because the buckets in Redis count by it",
			},
			{
				tiered.PerHour(100).And(tiered.PerDay(900), tiered.PerWeek(2000)),
				"tiered: Policy.Limit is 3 limits: must stay 2 limits, because the buckets in Redis count by it",
			},
		} {
			if err := l.SetLimit(c.limit); err == nil || err.Error() != c.want {
				t.Errorf("%v: %v, want %s", c.limit, err, c.want)
			}
		}
		ok(t, l.SetLimit(tiered.PerHour(200).And(tiered.PerDay(300))))
		if d := l.Peek(ctx, "k"); d.Burst != 200 {
			t.Errorf("%+v", d)
		}
	})
}

// Limits with the same parts are equal, so they can be keys of a map, however they were joined.
func TestJoinedLimitsCompare(t *testing.T) {
	a, b, c := tiered.PerSecond(10), tiered.PerMinute(100), tiered.PerHour(1000)
	all := map[tiered.Limit]bool{a.And(b, c): true}
	for _, same := range []tiered.Limit{a.And(b).And(c), a.And(b.And(c)), must(tiered.ParseLimit("10/s and 100/min and 1000/h"))} {
		if !all[same] {
			t.Errorf("%v is another limit than %v", same, a.And(b, c))
		}
	}
	for _, other := range []tiered.Limit{a, a.And(b), a.And(c, b), b.And(a, c)} {
		if all[other] {
			t.Errorf("%v is the same as %v", other, a.And(b, c))
		}
	}
	if a.And() != a || fmt.Sprint(a.And(b, c).Each()) != "[10/s 100/min 1000/h]" {
		t.Errorf("%v, %v", a.And(), a.And(b, c).Each())
	}
}
