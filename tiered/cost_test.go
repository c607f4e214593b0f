package tiered_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// CheckCost refuses the costs that no request of a full key is admitted with, and only them. It
// says which limit it is.
func TestCostsThatAreNeverAdmitted(t *testing.T) {
	also := []tiered.Limit{tiered.PerHour(9), tiered.PerDay(7)}
	per := tiered.PerMinute(12)
	for name, c := range map[string]struct {
		policy tiered.Policy
		most   int64 // 0 if it refuses nothing
		why    string
	}{
		"tokens":         {tiered.Policy{Limit: per}, 12, "Policy.Limit.Tokens is 12"},
		"burst":          {tiered.Policy{Limit: per.WithBurst(5)}, 5, "Policy.Limit.Burst is 5"},
		"larger burst":   {tiered.Policy{Limit: per.WithBurst(15)}, 15, "Policy.Limit.Burst is 15"},
		"also":           {tiered.Policy{Limit: per.And(also...)}, 7, "Policy.Limit.Also[1].Tokens is 7"},
		"fixed window":   {tiered.Policy{Limit: per, Algorithm: tiered.FixedWindow}, 12, "Policy.Limit.Tokens"},
		"sliding window": {tiered.Policy{Limit: per, Algorithm: tiered.SlidingWindow}, 12, "Policy.Limit.Tokens"},
		"windows":        {tiered.Policy{Limit: per.And(also...), Algorithm: tiered.SlidingWindow}, 7, "Policy.Limit.Also[1].Tokens"},
		"sliding log":    {tiered.Policy{Limit: per, Algorithm: tiered.SlidingLog}, 12, "Policy.Limit.Tokens"},
		"standing": {
			tiered.Policy{Limit: tiered.PerMinute(1200), Standing: 1.0 / 8},
			1050,
			"Policy.Limit.Tokens is 1200 and Policy.Standing is 0.125",
		},
		"unlimited": {tiered.Policy{Limit: tiered.Unlimited()}, 0, ""},
		"blocked":   {tiered.Policy{Limit: tiered.Blocked()}, 0, ""},
		"limits of keys": {
			tiered.Policy{Limit: per, PerKey: func(string) tiered.Limit { return tiered.PerMinute(1 << 20) }}, 0, "",
		},
	} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), c.policy, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
			time.Sleep(time.Second)
			if c.most == 0 {
				ok(t, c.policy.CheckCost(1<<20))
			} else {
				over := l.AllowN(ctx, "over", c.most+1)
				if d := l.AllowN(ctx, "most", c.most); !d.Allowed || over.Reason != tiered.ExceedsBurst {
					t.Errorf("%d: %v, %d: %v", c.most, d.Reason, c.most+1, over.Reason)
				}
				err := c.policy.CheckCost(c.most + 1)
				if c.policy.CheckCost(c.most) != nil || err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("%d: %v, %d: %v", c.most, c.policy.CheckCost(c.most), c.most+1, err)
				}
			}
			for _, n := range []int64{-1, 0, 1<<40 + 1} {
				if err := c.policy.CheckCost(n); err == nil || !strings.Contains(err.Error(), "must be 1 to 2^40") {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
	}
}

// A Decision says what its request asked for, whatever decided it. Trace.Decision says the same.
func TestDecisionsSayTheCost(t *testing.T) {
	type ask = func(*tiered.Limiter) tiered.Decision
	allow := func(key string, n int64) ask {
		return func(l *tiered.Limiter) tiered.Decision { return l.AllowN(ctx, key, n) }
	}
	of := func(err error) (d tiered.Decision) {
		var refusal *tiered.LimitedError
		if errors.As(err, &refusal) {
			d = refusal.Decision
		}
		return d
	}
	minute := tiered.Policy{Limit: tiered.PerMinute(10)}
	for name, c := range map[string]struct {
		policy tiered.Policy
		spent  int // one by one, before
		ask    ask
		want   int64
	}{
		"Allow":           {minute, 0, func(l *tiered.Limiter) tiered.Decision { return l.Allow(ctx, "k") }, 1},
		"a lease":         {tiered.Policy{Limit: tiered.PerSecond(1000)}, 300, allow("k", 3), 3},
		"refused":         {minute, 8, allow("k", 4), 4},
		"known to be":     {minute, 12, allow("k", 5), 5},
		"above the burst": {minute, 0, allow("k", 11), 11},
		"not positive":    {minute, 0, allow("k", -1), -1},
		"no key":          {minute, 0, allow("", 3), 3},
		"unlimited":       {tiered.Policy{Limit: tiered.Unlimited()}, 0, allow("k", 3), 3},
		"blocked":         {tiered.Policy{Limit: tiered.Blocked()}, 0, allow("k", 3), 3},
		"shadowed":        {tiered.Policy{Limit: minute.Limit, Shadow: true}, 0, allow("k", 12), 12},
		"several limits":  {tiered.Policy{Limit: minute.Limit.And(tiered.PerHour(30))}, 0, allow("k", 3), 3},
		"standing":        {tiered.Policy{Limit: tiered.PerMinute(1000), Standing: 1.0 / 8}, 0, allow("k", 3), 3},
		"fallback":        {minute, 0, allow("k", 3), 3},
		"Reserve":         {minute, 0, func(l *tiered.Limiter) tiered.Decision { return l.ReserveN(ctx, "k", 3).Decision }, 3},
		"Peek":            {minute, 0, func(l *tiered.Limiter) tiered.Decision { return l.PeekN(ctx, "k", 3) }, 3},
		"Peek of no key":  {minute, 0, func(l *tiered.Limiter) tiered.Decision { return l.PeekN(ctx, "", 3) }, 3},
		"Peek of 0":       {minute, 3, func(l *tiered.Limiter) tiered.Decision { return l.PeekN(ctx, "k", 0) }, 1},
		"Charge":          {minute, 0, func(l *tiered.Limiter) tiered.Decision { return of(l.For("").N(3).Charge()) }, 3},
		"Wait that is late": {minute, 10, func(l *tiered.Limiter) tiered.Decision {
			late, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return of(l.WaitN(late, "k", 3))
		}, 3},
		"All": {minute, 0, func(l *tiered.Limiter) tiered.Decision {
			return tiered.All(l.For("a").N(2), l.For("b").N(3)).Allow(ctx) // b has room for fewer of its kind
		}, 3},
		"two uses of one key": {minute, 0, func(l *tiered.Limiter) tiered.Decision {
			return tiered.All(l.For("a").N(2), l.For("a").N(3)).Allow(ctx)
		}, 5},
		"a limit that is carried": {minute, 0, func(l *tiered.Limiter) tiered.Decision {
			return l.For("k").N(3).WithLimit(tiered.PerMinute(20)).Allow(ctx)
		}, 3},
	} {
		for _, traced := range []bool{false, true} {
			bubble(t, name, func(t *testing.T) {
				store, told, o := remote.NewMemory(), tiered.Decision{}, &tiered.Options{}
				if traced {
					o.Trace = &tiered.Trace{Decision: func(d tiered.Decision) { told = d }}
				}
				l := limiter(t, store, c.policy, o)
				time.Sleep(2 * time.Minute) // shares are there
				for range c.spent {
					l.Allow(ctx, "k")
					time.Sleep(ms)
				}
				if name == "fallback" {
					store.Fail(errors.New("connection refused"))
					defer store.Fail(nil)
				}
				if d := c.ask(l); d.Policy != "api" || d.Cost != c.want {
					t.Errorf("%+v: cost %d, want %d", d, d.Cost, c.want)
				}
				synctest.Wait()
				if traced && told.Cost != c.want {
					t.Errorf("the hook was told of cost %d, want %d", told.Cost, c.want)
				}
			})
		}
	}
}

// AllowEach, AllowSeparately and PeekEach write the cost of each use.
func TestEachDecisionSaysItsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := told(t, tiered.Policy{Limit: tiered.PerMinute(10).And(tiered.PerHour(100))})
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
		tiered.All(uses...).AllowEach(ctx, each)
		check("AllowEach", each, 11, 3, 2)
		tiered.All(uses...).AllowSeparately(ctx, each)
		check("AllowSeparately", each, 11, 3, 2)
		each, err := l.PeekEach(ctx, "a")
		if err != nil || len(each) != 2 {
			t.Fatal(each, err)
		}
		check("PeekEach", each, 1, 1)
	})
}

// The cost that one plan can pay is no mistake.
func TestCostWithPlans(t *testing.T) {
	p := tiered.Policy{Name: "p", Limit: tiered.PerMinute(100), Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000)}}
	ok(t, p.CheckCost(1000))
	if err := p.CheckCost(1001); err == nil || !strings.Contains(err.Error(),
		`must be at most 1000, the burst of Policy.Plans["pro"]`) {
		t.Error(err)
	}
	p.Plans["staff"] = tiered.Unlimited()
	ok(t, p.CheckCost(1001))
	if got := p.LimitsText(); got != `100/min, "pro" 1k/min, "staff" unlimited` &&
		got != `100/min, "pro" 1000/min, "staff" unlimited` {
		t.Error(got)
	}
}
