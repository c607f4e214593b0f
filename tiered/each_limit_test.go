package tiered_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Each use of a request has its own state: of an admission what is left, of a refusal who refused.
func TestAllowEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, direct("user", 2), direct("tenant", 5), direct("all", 100))
		user, tenant, everybody := l[0], l[1], l[2]
		uses := tiered.All(everybody.For("all"), tenant.For("acme").N(2), user.For("ann"))
		var each [3]tiered.Decision
		check := func(when string, want ...tiered.Decision) {
			t.Helper()
			for i, w := range want {
				d := each[i]
				if d.Allowed != w.Allowed || d.Reason != w.Reason || d.Remaining != w.Remaining || d.Burst != w.Burst {
					t.Errorf("%s: use %d is %+v, want %+v", when, i, d, w)
				}
			}
		}
		want(t, uses.AllowEach(ctx, each[:]), tiered.Granted)
		check("admitted",
			tiered.Decision{Allowed: true, Reason: tiered.Granted, Remaining: 99, Burst: 100},
			tiered.Decision{Allowed: true, Reason: tiered.Granted, Remaining: 3, Burst: 5},
			tiered.Decision{Allowed: true, Reason: tiered.Granted, Remaining: 1, Burst: 2})
		want(t, uses.AllowEach(ctx, each[:]), tiered.Granted)
		want(t, uses.AllowEach(ctx, each[:]), tiered.Limited)
		check("refused by Redis",
			tiered.Decision{Allowed: true, Reason: tiered.Granted, Remaining: 98, Burst: 100},
			tiered.Decision{Reason: tiered.Limited, Remaining: 1, Burst: 5}, // of which the request needs two
			tiered.Decision{Reason: tiered.Limited, Burst: 2})
		want(t, uses.AllowEach(ctx, each[:]), tiered.Limited)
		check("refused here",
			tiered.Decision{
				Reason: tiered.Unknown, Remaining: 97,
				Burst: 100,
			}, // as last heard, before what it took went back
			tiered.Decision{Reason: tiered.Limited, Remaining: 1, Burst: 5},
			tiered.Decision{Reason: tiered.Limited, Burst: 2})
		if each[2].RetryAfter < 11*time.Hour || each[2].Policy != "user" || each[2].Key != "ann" {
			t.Errorf("%+v", each[2])
		}
		books(t, user.Group())

		each = [3]tiered.Decision{}
		tiered.All(user.For("bob"), user.For("bob")).AllowEach(ctx, each[:1]) // one part, two uses, room for one
		if !each[0].Allowed || each[1] != (tiered.Decision{}) {
			t.Errorf("%+v", each)
		}
		if d := (tiered.Use{}).AllowEach(ctx, each[:]); d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// The state of every limit of a policy is that of a policy with this limit alone.
func TestPeekEach(t *testing.T) {
	for _, c := range []struct {
		name string
		p    tiered.Policy
		used int64
		want []tiered.Decision
	}{
		{
			"token buckets",
			tiered.Policy{Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(30), tiered.PerDay(100)}},
			7,
			[]tiered.Decision{
				{LimitNumber: 1, Burst: 10, Remaining: 3, ResetAfter: 42 * time.Second},
				{LimitNumber: 2, Burst: 30, Remaining: 23, ResetAfter: 14 * time.Minute},
				{LimitNumber: 3, Burst: 100, Remaining: 93, ResetAfter: 7 * 24 * time.Hour / 100},
			},
		},
		{
			"one of them is used up",
			tiered.Policy{Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(30)}},
			10,
			[]tiered.Decision{
				{LimitNumber: 1, Burst: 10, RetryAfter: 6 * time.Second, ResetAfter: time.Minute},
				{LimitNumber: 2, Burst: 30, Remaining: 20, ResetAfter: 20 * time.Minute},
			},
		},
		{
			"sliding windows",
			tiered.Policy{
				Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(30)},
				Algorithm: tiered.SlidingWindow,
			},
			10,
			[]tiered.Decision{
				{LimitNumber: 1, Burst: 10, RetryAfter: time.Minute, ResetAfter: time.Minute},
				{LimitNumber: 2, Burst: 30, Remaining: 20, ResetAfter: time.Hour},
			},
		},
		{
			"one limit",
			tiered.Policy{Limit: tiered.PerMinute(10)},
			4,
			[]tiered.Decision{{Burst: 10, Remaining: 6, ResetAfter: 24 * time.Second}},
		},
		{"no limit", tiered.Policy{Limit: tiered.Unlimited()}, 1, []tiered.Decision{{Remaining: 1 << 40, Burst: 1 << 40}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.p.Name, c.p.Lease = "api", neverLeased
			l := limiter(t, newTape(), c.p, nil)
			time.Sleep(10 * ms)
			want(t, l.AllowN(t.Context(), "k", c.used), tiered.Granted)
			all, err := l.PeekEach(t.Context(), "k")
			if err != nil || len(all) != len(c.want) {
				t.Fatalf("%s: %+v, %v", c.name, all, err)
			}
			for i, d := range all {
				w := c.want[i]
				near := func(is, must time.Duration) bool { return is >= must-must/20 && is <= must+must/20 }
				if d.LimitNumber != w.LimitNumber || c.name != "no limit" && (d.Burst != w.Burst ||
					d.Remaining != w.Remaining) ||
					d.Allowed != (w.Remaining > 0) || !near(d.ResetAfter, w.ResetAfter) || !near(d.RetryAfter,
					w.RetryAfter) {
					t.Errorf("%s: limit %d is %+v, want %+v", c.name, i, d, w)
				}
			}
			if d := l.Peek(t.Context(), "k"); c.name != "no limit" && d.Remaining != min(all[0].Remaining,
				all[len(all)-1].Remaining) {
				t.Errorf("%s: peeking changed the key: %+v", c.name, d)
			}
		})
	}
}

func TestPeekEachWithoutRedis(t *testing.T) {
	store := remote.NewMemory()
	l := limiter(t, store, tiered.Policy{Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(30)}}, nil)
	store.Fail(errors.New("away"))
	if all, err := l.PeekEach(t.Context(), "k"); all != nil || !errors.Is(err, tiered.ErrUnavailable) {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := l.PeekEach(t.Context(), ""); all != nil || !errors.Is(err, tiered.ErrInvalid) {
		t.Errorf("%+v, %v", all, err)
	}
}

// PeekEach says of one limit what Peek says where Redis is asked: when the first token comes back, and not when all have.
func TestPeekEachSaysWhenToComeBack(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"sliding window": {Limit: tiered.PerMinute(4), Algorithm: tiered.SlidingWindow},
		"sliding log":    {Limit: tiered.PerMinute(4), Algorithm: tiered.SlidingLog},
		"fixed window":   {Limit: tiered.PerMinute(4), Algorithm: tiered.FixedWindow},
		"part of token":  {Limit: tiered.PerMinute(4)},
		"debt":           {Limit: tiered.PerMinute(4), MaxDebt: 100},
	} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
			p.Name, p.Lease.Size = "p", tiered.NoLease
			open := func() *tiered.Limiter {
				l := must(tiered.New(store, p, nil))
				return l
			}
			uses, looks := open(), open()
			defer func() { _, _ = uses.Close(t.Context()), looks.Close(t.Context()) }()
			for range 4 {
				uses.Allow(t.Context(), "k")
				time.Sleep(time.Second)
			}
			for uses.Allow(t.Context(), "k").Allowed {
			}
			if p.MaxDebt > 0 {
				ok(t, uses.Charge("k", 10))
				time.Sleep(time.Second)
			}
			want := looks.Peek(t.Context(), "k") // this process knows nothing of the key
			each := must(looks.PeekEach(t.Context(), "k"))
			if each[0] != want || want.Tier != tiered.Remote {
				t.Errorf("PeekEach says %+v\nPeek says %+v", each[0], want)
			}
		})
	}
}

// A share that lends nothing, because a request of late cost more than it could bear, does not admit by PeekEach either.
func TestPeekEachOfAShareThatLendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{
			Name: "p", Limit: tiered.PerMinute(2).WithBurst(20),
			Standing: tiered.StandingOn,
		}, nil)
		time.Sleep(70 * time.Second)
		ok(t, l.Charge("k", 60))
		l.AllowN(t.Context(), "k", 10)
		time.Sleep(16 * time.Minute) // the share has a token, and Redis has what the next request takes
		for l.Allow(t.Context(), "k").Allowed {
		}
		d := l.Peek(t.Context(), "k")
		each := must(l.PeekEach(t.Context(), "k"))
		if d.Allowed || d.Remaining == 0 || each[0].Allowed || each[0].Remaining != d.Remaining {
			t.Errorf("Peek says %+v\nPeekEach says %+v", d, each[0])
		}
	})
}
