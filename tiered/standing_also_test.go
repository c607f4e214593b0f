package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
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

// A rarely used key with several limits is decided without Redis.
func TestStandingSharesOfSeveralLimitsDecideWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fleetOf(t, remote.NewMemory(), 4, standingAlso("api"))
		time.Sleep(settleSlowShares)
		before := calls(all...)
		for i := range 10_000 {
			d := limiterOf(t, all[i%4], "api").Allow(t.Context(), fmt.Sprint("user ", i))
			// 180 are left, or less where users share places. A token of the second limit is back in 0.16 s · 4.
			if !d.Allowed || d.Tier != tiered.Local || d.LimitNumber != 1 || d.Burst != 200 ||
				d.Remaining < 177 || d.Remaining > 180 || d.ResetAfter <= 0 || d.ResetAfter > 4*time.Second {
				t.Fatalf("user %d: %+v", i, d)
			}
		}
		if n := calls(all...) - before; n > 20 {
			t.Errorf("%d calls for 10000 users", n)
		}
	})
}

// What all processes admit of a key is never more than any of its limits, and in the end no less than the strictest.
func TestStandingSharesKeepSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fleetOf(t, remote.NewMemory(), 3, standingAlso("api"))
		fulls := []*ideal.Bucket{ideal.NewBucket(100, time.Second, 200), ideal.NewBucket(3000, time.Minute, 1000)}
		admitted, start := int64(0), time.Now()
		for time.Since(start) < 60*time.Second {
			for _, p := range all {
				n := 1 + rand.Int64N(3)
				if !limiterOf(t, p, "api").AllowN(t.Context(), "user", n).Allowed {
					continue
				}
				admitted += n
				for i, full := range fulls {
					if !full.Take(int64(time.Since(start)), n) {
						t.Fatalf("limit %d: %d tokens admitted after %v", i+1, admitted, time.Since(start))
					}
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		if want := int64(0.97 * (1000 + 60*50)); admitted < want {
			t.Errorf("%d tokens admitted, want %d", admitted, want)
		}
	})
}

// While some processes split the limits and others do not, none admits more than they allow together, and a bucket that
// was used before is not full for those that split it.
func TestStandingSharesOfSeveralLimitsBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before, split := remote.NewMemory(), standingAlso("api"), standingAlso("api")
		before.Also[0].Tokens, split.Also[0].Tokens = 3001, 3001 // not a multiple of 8
		before.Standing, split.Standing = tiered.StandingOff, tiered.StandingSplit
		old, new := limiterOf(t, run(t, s, "", before), "api"), limiterOf(t, run(t, s, "", split), "api")
		time.Sleep(5 * time.Second)
		fulls := []*ideal.Bucket{ideal.NewBucket(100, time.Second, 200), ideal.NewBucket(3001, time.Minute, 1000)}
		for start := time.Now(); time.Since(start) < 60*time.Second; time.Sleep(10 * ms) {
			for i, l := range []*tiered.Limiter{old, new} {
				if i == 1 && time.Since(start) < 20*time.Second || !l.AllowN(t.Context(), "user", 2).Allowed {
					continue
				}
				for j, full := range fulls {
					if !full.Take(int64(time.Since(start)), 2) {
						t.Fatalf("limit %d: too many tokens after %v", j+1, time.Since(start))
					}
				}
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
		gone := errors.New("gone")
		s.broken.Store(&gone)
		s.absence.Store(&gone)
		for _, p := range all { // the breakers open
			for i := range 5 {
				limiterOf(t, p, "api").AllowN(t.Context(), fmt.Sprint("other ", i), 100)
			}
		}
		fulls := []*ideal.Bucket{ideal.NewBucket(100, time.Second, 200), ideal.NewBucket(3000, time.Minute, 1000)}
		shared := 0
		for start := time.Now(); time.Since(start) < 40*time.Second; time.Sleep(5 * ms) {
			for _, p := range all {
				d := limiterOf(t, p, "api").Allow(t.Context(), "user")
				if !d.Allowed {
					continue
				}
				if d.Reason == tiered.Fallback {
					shared++
				}
				for i, full := range fulls {
					if !full.Take(int64(time.Since(start)), 1) {
						t.Fatalf("limit %d: too many tokens after %v: %+v", i+1, time.Since(start), d)
					}
				}
			}
		}
		if shared < 1000 {
			t.Errorf("%d tokens by the fail mode", shared)
		}
	})
}

// A decision by standing shares allocates nothing.
func TestStandingSharesAllocateNothing(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	for i := range 2 {
		p := tiered.Policy{Name: "api", Limit: tiered.PerSecond(1 << 39).WithBurst(1 << 20), Standing: tiered.StandingOn}
		p.Also = []tiered.Limit{tiered.PerMinute(1 << 39).WithBurst(1 << 20)}[:i]
		l := limiter(t, remote.NewMemory(), p, nil)
		g := l.Group()
		warmed(t, tiered.Core(l).Standing.Agreed.Load)
		poll, _ := tiered.Engine(g).Shares.Poll(tiered.Engine(g).Now(), func() string { return "m" })
		tiered.Engine(g).Shares.Accept(tiered.Engine(g).Now(), poll.Member, poll.Seq, lua.PollReply{Grant: lua.Pool, Members: 1, Epoch: 1})
		time.Sleep(10 * ms) // a real clock: the shares fill
		if n := testing.AllocsPerRun(10_000, func() {
			if d := l.Allow(context.Background(), "k"); !d.Allowed || d.Tier != tiered.Local {
				t.Fatalf("%+v", d)
			}
		}); n != 0 || tiered.Core(l).Standing.Total() < 10_000 {
			t.Errorf("%d limits: %v allocations, %d tokens of shares", i+1, n, tiered.Core(l).Standing.Total())
		}
	}
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
		if err := l.WaitN(ctx, "c", 10); err != nil {
			t.Error(err)
		}
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

		if err := l.Charge("h", 300); err != nil {
			t.Error(err)
		}
		time.Sleep(ms)
		if d := l.Allow(ctx, "h"); d.Allowed || d.RetryAfter < 80*ms { // the share of the first limit gets 12/s
			t.Errorf("charged: %+v", d)
		}
		if err := l.Reset(ctx, "f"); err != nil {
			t.Error(err)
		}
		left("Reset", "f", 200, 1000)
	})
}

// Another limit begins with empty shares. The other limits stay.
func TestStandingSharesOfSeveralLimitsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, fleetOf(t, remote.NewMemory(), 1, standingAlso("api"))[0], "api")
		if err := l.SetLimit(tiered.PerSecond(1000).WithBurst(2000)); err != nil {
			t.Fatal(err)
		}
		if d := l.Allow(t.Context(), "a"); !d.Allowed || d.Tier != tiered.Remote {
			t.Errorf("just changed: %+v", d)
		}
		time.Sleep(21 * time.Second)
		d := l.Allow(t.Context(), "b")
		if !d.Allowed || d.Tier != tiered.Local || d.LimitNumber != 2 || d.Burst != 1000 || d.Remaining != 999 {
			t.Errorf("filled: %+v", d)
		}
	})
}
