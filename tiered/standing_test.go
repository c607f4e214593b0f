package tiered_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standingPolicy has standing shares.
func standingPolicy(name string) tiered.Policy {
	return tiered.Policy{Name: name, Limit: tiered.PerSecond(100).WithBurst(200), Standing: 1.0 / 8}
}

// half returns p with shares of a half.
func half(p tiered.Policy) tiered.Policy {
	p.Standing = 1. / 2
	return p
}

// settleShares waits until each process has its part of the standing shares, and they are full.
const settleShares = 80 * time.Second

// calls returns how many calls all processes have sent.
func calls(all ...*program) (n int64) {
	for _, p := range all {
		for _, s := range p.Stats().Nodes {
			n += s.Calls.Sent
		}
	}
	return n
}

// fleetOf starts processes with policies, and waits until they have their shares.
func fleetOf(t *testing.T, s remote.Store, n int, policies ...tiered.Policy) (all []*program) {
	for range n {
		all = append(all, run(t, s, "", policies...))
	}
	time.Sleep(settleShares)
	for i, p := range all {
		if f := p.Stats().Standing.Fraction; f < 0.99/float64(n) || f > 1/float64(n) {
			t.Fatalf("process %d of %d has %v of the shares", i, n, f)
		}
	}
	return all
}

func limiterOf(t *testing.T, p *program, name string) *tiered.Limiter {
	l, ok := p.Limiter(name)
	if !ok {
		t.Fatal("no limiter", name)
	}
	return l
}

// Rarely used keys are decided without Redis, by one limit and by several.
func TestStandingSharesDecideWithoutRedis(t *testing.T) {
	for _, policy := range []tiered.Policy{standingPolicy("api"), standingAlso("api")} {
		synctest.Test(t, func(t *testing.T) {
			all := fleetOf(t, remote.NewMemory(), 4, policy)
			time.Sleep(settleSlowShares)
			before := calls(all...)
			for i := range 10_000 {
				d := limiterOf(t, all[i%4], "api").Allow(ctx, fmt.Sprint("user ", i))
				// 180 are left, or less where users share a place. A token of the second limit is
				// back in 0.16 s · 4.
				if !d.Allowed || d.Tier != tiered.Local || int(d.LimitNumber) != len(policy.Limit.Each())-1 || d.Burst != 200 ||
					d.Remaining < 177 || d.Remaining > 180 || d.ResetAfter <= 0 || d.ResetAfter > 4*time.Second {
					t.Fatalf("user %d: %+v", i, d)
				}
			}
			if n := calls(all...) - before; n > 20 {
				t.Errorf("%d calls for 10000 users", n)
			}
			var taken int64
			for _, p := range all {
				s := p.Stats()
				taken += s.Policies["api"].Standing.Spent
				if s.Keys > 4 || s.Standing.Members != 4 || s.Standing.Quarantine {
					t.Errorf("stats %+v", s)
				}
			}
			if taken < 9980 {
				t.Errorf("%d tokens from standing shares", taken)
			}
		})
	}
}

// bounds are an ideal bucket of each limit of a policy.
type bounds []*ideal.Bucket

func boundsOf(p tiered.Policy) (all bounds) {
	for _, l := range p.Limit.Each() {
		all = append(all, ideal.NewBucket(l.Tokens, l.Per, burstOf(l)))
	}
	return all
}

// take takes tokens of each, so long after the start, and fails the test where one has not as many.
func (b bounds) take(t *testing.T, after time.Duration, n int64) {
	t.Helper()
	for i, full := range b {
		if !full.Take(int64(after), n) {
			t.Fatalf("limit %d: too many tokens after %v", i+1, after)
		}
	}
}

// What all processes admit of a key is never more than any of its limits, and in the end no less
// than the strictest. Of a user that meets one process it is the part of Redis and that of the
// process.
func TestStandingSharesKeepTheLimits(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		policy tiered.Policy
		most   int64   // in a minute
		part   float64 // of that, at least
	}{
		{standingPolicy("api"), 200 + 60*100, 0.97},
		{standingAlso("api"), 1000 + 60*50, 0.97},
		{half(standingPolicy("api")), 200 + 60*100, 0.97},
		{half(standingAlso("api")), 1000 + 60*50, 0.97},
	} {
		if testing.Short() && (i == 1 || i == 2) {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			all := fleetOf(t, remote.NewMemory(), 3, c.policy)
			time.Sleep(settleSlowShares)
			limits, admitted, start := boundsOf(c.policy), int64(0), time.Now()
			random := rand.New(rand.NewPCG(1, 1))
			for time.Since(start) < time.Minute {
				for _, p := range all {
					n := 1 + random.Int64N(3)
					if limiterOf(t, p, "api").AllowN(ctx, "user", n).Allowed {
						admitted += n
						limits.take(t, time.Since(start), n)
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
			if least := int64(float64(c.most) * c.part); admitted < least {
				t.Errorf("%d tokens admitted, want %d", admitted, least)
			}
			one := limiterOf(t, all[0], "api")
			admitted, start = 0, time.Now()
			for time.Since(start) < time.Minute {
				if one.Allow(ctx, "sticky").Allowed {
					admitted++
				}
				time.Sleep(3 * time.Millisecond)
			}
			if least := int64(float64(c.most) * (1 - c.policy.Standing)); admitted < least {
				t.Errorf("%d tokens of a user that meets one process, want %d", admitted, least)
			}
		})
	}
}

// A user whose requests meet the processes at random has 97 % of the limit, if each process has a
// few tokens of its own. He asks for as much as the limit, and for half as much again.
func TestStandingSharesOfSpreadRequests(t *testing.T) {
	t.Parallel()
	const minutes = 30
	for _, c := range []struct {
		limit     int64 // per minute
		processes int
		standing  float64
	}{
		{24, 3, 3. / 4},
		{100, 12, 1. / 2},
		{100, 12, 3. / 4},
	} {
		for _, load := range []float64{1, 1.5} {
			bubble(t, fmt.Sprint(c, " ", load), func(t *testing.T) {
				p := tiered.Policy{Name: "api", Limit: tiered.PerMinute(c.limit), Standing: c.standing}
				all := fleetOf(t, remote.NewMemory(), c.processes, p)
				time.Sleep(time.Minute)
				random := rand.New(rand.NewPCG(1, 1))
				mean := float64(time.Minute) / float64(c.limit) / load
				admitted, asked := 0, 0
				for start := time.Now(); time.Since(start) < minutes*time.Minute; asked++ {
					if limiterOf(t, all[random.IntN(c.processes)], "api").Allow(ctx, "user").Allowed {
						admitted++
					}
					time.Sleep(time.Duration(random.ExpFloat64() * mean))
				}
				if most := min(asked, int(c.limit)*(minutes+1)); float64(admitted) < 0.97*float64(most) {
					t.Errorf("%d of %d", admitted, most)
				}
			})
		}
	}
}

// Tokens of a share that was used since go back to Redis, and the figures say so.
func TestStandingSharesReturnToRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fleetOf(t, remote.NewMemory(), 1, standingPolicy("api"))[0]
		l := limiterOf(t, p, "api")
		r := l.ReserveN(ctx, "a", 5)
		l.AllowN(ctx, "a", 2)
		r.Cancel()
		time.Sleep(time.Second)
		s := p.Stats().Policies["api"]
		if s.Standing.Spent != 2 || s.Leases.Spent != 0 || s.Leases.Granted != 5 || s.Leases.Returned+s.Leases.Burnt != 5 {
			t.Errorf("2 tokens are used and 5 went back: %+v", s)
		}
	})
}

// A lease is spent before a share, and a share before a request is refused, for one key and for
// several.
func TestStandingSharesAreBetweenLeaseAndDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fleetOf(t, remote.NewMemory(), 1, standingPolicy("api"), direct("other", 1000))[0]
		l, other := limiterOf(t, p, "api"), limiterOf(t, p, "other")
		spent := func() int64 { return p.Stats().Policies["api"].Standing.Spent }
		several := func(key string, n int64) tiered.Decision {
			return tiered.All(l.For(key).N(n), other.For(key)).Allow(ctx)
		}

		for range 200 {
			want(t, l.Allow(ctx, "leased"), tiered.Granted)
			time.Sleep(20 * ms)
		}
		before, asked := spent(), 0
		for range 100 {
			if l.Stats().Leases.Held > 0 {
				want(t, several("leased", 1), tiered.Granted)
				asked++
			}
			time.Sleep(20 * ms)
		}
		if n := spent() - before; n > 0 || asked == 0 {
			t.Errorf("the share paid %d of %d tokens beside a lease", n, asked)
		}

		before = spent()
		for _, n := range []int64{100, 75} { // more than the 25 tokens of the share: Redis has none any more
			want(t, l.AllowN(ctx, "denied", n), tiered.Granted)
		}
		want(t, l.AllowN(ctx, "denied", 30), tiered.Limited)
		want(t, several("denied", 12), tiered.Granted)
		want(t, l.AllowN(ctx, "denied", 12), tiered.Granted)
		if n := spent() - before; n != 24 {
			t.Errorf("the share paid %d tokens, want 24", n)
		}
	})
}

// Another limit begins with an empty share, and does not lend what the first one did not use. The
// other limits stay.
func TestStandingSharesOfAnotherLimit(t *testing.T) {
	for _, c := range []struct {
		policy tiered.Policy
		filled time.Duration
		burst  int64 // of the tightest limit then
	}{{standingPolicy("api"), 3 * time.Second, 2000}, {standingAlso("api"), 21 * time.Second, 1000}} {
		synctest.Test(t, func(t *testing.T) {
			p := fleetOf(t, remote.NewMemory(), 1, c.policy)[0]
			l := limiterOf(t, p, "api")
			before := p.Stats().Policies["api"].Standing.Spent
			ok(t, l.SetLimit(tiered.PerSecond(1000).WithBurst(2000).And(c.policy.Limit.Each()[1:]...)))
			if d := l.Allow(ctx, "a"); !d.Allowed || d.Tier != tiered.Remote {
				t.Errorf("just changed: %+v", d)
			}
			if n := p.Stats().Policies["api"].Standing.Spent - before; n != 0 {
				t.Errorf("%d tokens from an empty share", n)
			}
			time.Sleep(c.filled)
			if d := l.Allow(ctx, "b"); !d.Allowed || d.Tier != tiered.Local || d.Burst != c.burst ||
				d.Remaining != c.burst-1 {
				t.Errorf("filled: %+v", d)
			}
		})
	}
}

// What is changed beside the limit leaves the standing shares as they are. So does a reload of the
// same policies.
func TestStandingSharesOfTheSameLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tiered.Policy{Name: "api", Limit: tiered.PerHour(800), Standing: 1.0 / 8}
		l := limiter(t, remote.NewMemory(), p, nil)
		time.Sleep(3 * time.Hour)
		for range 40 {
			l.Allow(ctx, "user")
		}
		for range 2 {
			p.FailMode, p.Lease.Size = tiered.FailLocal, p.Lease.Size+1
			ok(t, l.SetPolicy(p))
			if d := l.Peek(ctx, "user"); d.Remaining != 760 {
				t.Errorf("%d of %d remain after 40 requests and another policy with the same limit", d.Remaining, d.Burst)
			}
		}
	})
}

// With PerKey each key has the share of its own limit, and keys whose burst is below 8 have none.
func TestStandingSharesPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := standingPolicy("api")
		policy.PerKey = func(key string) tiered.Limit {
			if strings.HasPrefix(key, "small") {
				return tiered.PerSecond(7)
			}
			return tiered.PerSecond(1000)
		}
		p := fleetOf(t, remote.NewMemory(), 1, policy)[0]
		l := limiterOf(t, p, "api")
		for i, key := range []string{"small", "large"} {
			if d := l.Allow(ctx, key); !d.Allowed || d.Tier != tiered.Remote {
				t.Errorf("%s at first: %+v", key, d)
			}
			time.Sleep(5 * time.Second)
			if d := l.Allow(ctx, key); !d.Allowed || d.Tier != []tiered.Tier{tiered.Remote, tiered.Local}[i] {
				t.Errorf("%s then: %+v", key, d)
			}
		}
		if n := p.Stats().Policies["api"].Faults.PerKey; n != 0 {
			t.Errorf("%d faults", n)
		}
	})
}

// standingAlso has standing shares of two limits. Alone a process has 25 tokens of the first and
// 125 of the second.
func standingAlso(name string) tiered.Policy {
	p := standingPolicy(name)
	p.Limit = p.Limit.And(tiered.PerMinute(3000).WithBurst(1000))
	return p
}

// settleSlowShares is the time after [settleShares] until the shares of the second limit are full
// too.
const settleSlowShares = 10 * time.Second

// While some processes split the limits and others do not, none admits more than they allow
// together, and a bucket that was used before is not full for those that split it.
func TestStandingSharesOfSeveralLimitsBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before, split := remote.NewMemory(), standingAlso("api"), standingAlso("api")
		before.Limit = standingPolicy("").Limit.And(tiered.PerMinute(3001).WithBurst(1000)) // not a multiple of 8
		split.Limit = before.Limit
		before.Standing, split.Standing = 0, 1.0/8
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

// While Redis does not answer, the fail mode divides the parts of Redis, and the standing shares go
// on. Together that is no more than each limit.
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

// A refusal leaves less than it refused, though Redis and the share may have as much together: no
// request has tokens of both. It leaves what a request gets.
func TestRefusalBesideAStandingShare(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		p := tiered.Policy{Limit: tiered.PerMinute(10).WithBurst(20), Standing: 1.0 / 8, Lease: neverLeased}
		l := limiter(t, remote.NewMemory(), p, nil)
		time.Sleep(2 * time.Minute)
		refused := 0
		for i := range 500 {
			d := l.AllowN(ctx, "k", 1+int64(i%5))
			if !d.Allowed {
				refused++
			}
			if !d.Allowed && d.Remaining >= d.Cost {
				t.Fatalf("%v", d)
			}
			if left := d.Remaining; !d.Allowed && left > 0 && i%2 == 0 {
				if again := l.AllowN(ctx, "k", left); !again.Allowed {
					t.Fatalf("%d left, and the next request for them is: %v", left, again)
				}
			}
			time.Sleep(time.Duration(i*i*7919%3000) * ms)
		}
		if refused < 50 {
			t.Errorf("%d refusals", refused)
		}
	})
}
