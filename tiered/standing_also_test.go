package tiered_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standingAlso has standing shares of two limits. Alone a process has 25 tokens of the first and 125 of the second.
func standingAlso(name string) tiered.Policy {
	p := standingPolicy(name)
	p.Also = []tiered.Limit{tiered.PerMinute(3000).WithBurst(1000)}
	return p
}

// settleSlowShares is the time after [settleShares] until the shares of the second limit are full too.
const settleSlowShares = 10 * time.Second

// While some processes split the limits and others do not, none admits more than they allow together, and a bucket that
// was used before is not full for those that split it.
func TestStandingSharesOfSeveralLimitsBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before, split := remote.NewMemory(), standingAlso("api"), standingAlso("api")
		before.Also[0].Tokens, split.Also[0].Tokens = 3001, 3001 // not a multiple of 8
		before.Standing, split.Standing = tiered.StandingOff, tiered.StandingSplit
		old, new := limiterOf(t, run(t, s, "", before), "api"), limiterOf(t, run(t, s, "", split), "api")
		time.Sleep(5 * time.Second)
		limits := boundsOf(split)
		for start := time.Now(); time.Since(start) < 60*time.Second; time.Sleep(10 * ms) {
			for i, l := range []*tiered.Limiter{old, new} {
				if i == 1 && time.Since(start) < 20*time.Second || !l.AllowN(ctx, "user", 2).Allowed {
					continue
				}
				limits.take(t, time.Since(start), 2)
			}
		}
	})
}

// While Redis does not answer, the fail mode divides the parts of Redis, and the standing shares go on. Together that
// is no more than each limit.
func TestStandingSharesOfSeveralLimitsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &afflicted{distant: &distant{Memory: remote.NewMemory()}}
		all := fleetOf(t, s, 3, standingAlso("api"))
		time.Sleep(settleSlowShares)
		s.cut(errors.New("gone"))
		for _, p := range all { // the breakers open
			for i := range 5 {
				limiterOf(t, p, "api").AllowN(ctx, fmt.Sprint("other ", i), 100)
			}
		}
		limits, shared := boundsOf(standingAlso("api")), 0
		for start := time.Now(); time.Since(start) < 40*time.Second; time.Sleep(5 * ms) {
			for _, p := range all {
				d := limiterOf(t, p, "api").Allow(ctx, "user")
				if !d.Allowed {
					continue
				}
				if d.Reason == tiered.Fallback {
					shared++
				}
				limits.take(t, time.Since(start), 1)
			}
		}
		if shared < 1000 {
			t.Errorf("%d tokens by the fail mode", shared)
		}
	})
}

// All ways to ask use the shares of all limits, and give back to them.
func TestStandingSharesOfSeveralLimitsInEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fleetOf(t, remote.NewMemory(), 1, standingAlso("api"), standingPolicy("login"),
			tiered.Policy{Name: "none", Limit: tiered.Blocked()})[0]
		time.Sleep(settleSlowShares)
		l, ctx := limiterOf(t, p, "api"), t.Context()
		left := func(what, key string, fast, slow int64) {
			t.Helper()
			each, err := l.PeekEach(ctx, key)
			if err != nil || len(each) != 2 || each[0].Remaining != fast || each[1].Remaining != slow {
				t.Errorf("%s: %v, %+v, want %d and %d", what, err, each, fast, slow)
			}
			if d := l.Peek(ctx, key); d.Remaining != min(fast, slow) || d.Allowed != (d.Remaining > 0) {
				t.Errorf("%s: %+v", what, d)
			}
		}
		before := calls(p)
		r := l.ReserveN(ctx, "a", 5)
		if d := r.Decision; d.Remaining != 195 || d.LimitNumber != 1 || d.ResetAfter < 800*ms || d.ResetAfter > 900*ms {
			t.Errorf("%+v", d) // 5 of 125 tokens at 6.25/s
		}
		r.Cancel()
		r = l.ReserveN(ctx, "b", 5)
		r.Settle(2)
		ok(t, l.WaitN(ctx, "c", 10))
		login := limiterOf(t, p, "login")
		var each [2]tiered.Decision
		both := tiered.All(l.For("d").N(3), login.For("d").N(4))
		if d := both.AllowEach(ctx, each[:]); !d.Allowed || each[0].Remaining != 197 {
			t.Errorf("%+v, %+v", d, each)
		}
		if d := tiered.All(l.For("e").N(3), limiterOf(t, p, "none").For("e").N(4)).Allow(ctx); d.Allowed {
			t.Errorf("%+v", d)
		}
		if n := calls(p) - before; n > 0 {
			t.Errorf("%d calls", n)
		}
		left("Cancel", "a", 200, 1000)
		left("Settle", "b", 198, 998)
		left("Wait", "c", 190, 990)
		left("All", "d", 197, 997)
		left("All, refused", "e", 200, 1000)

		// 25 and 125 tokens are in the shares, 175 and 875 in Redis.
		if n, d := l.AllowAtMost(ctx, "f", 300); n != 200 || !d.Allowed || d.LimitNumber != 1 {
			t.Errorf("AllowAtMost(300) = %d, %+v", n, d)
		}
		left("AllowAtMost", "f", 0, 800)
		if d := l.Allow(ctx, "f"); d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > 13*ms || d.LimitNumber != 1 ||
			d.Burst != 200 {
			t.Errorf("an empty key: %+v", d)
		}
		if d := l.AllowN(ctx, "g", 180); d.Reason != tiered.ExceedsBurst || d.Burst != 175 || d.LimitNumber != 1 {
			t.Errorf("180 tokens: %+v", d)
		}
		l.AllowN(ctx, "i", 30) // by Redis, which has them again after 0.7 s
		time.Sleep(30 * time.Second)
		if d := l.Allow(ctx, "i"); d.Tier != tiered.Local || d.Remaining != 199 || d.ResetAfter > 200*ms {
			t.Errorf("a key that Redis knows: %+v", d)
		}

		ok(t, l.For("h").N(300).Charge())
		time.Sleep(ms)
		if d := l.Allow(ctx, "h"); d.Allowed || d.RetryAfter < 80*ms { // the share of the first limit gets 12/s
			t.Errorf("charged: %+v", d)
		}
		ok(t, l.Reset(ctx, "f"))
		left("Reset", "f", 200, 1000)
	})
}
