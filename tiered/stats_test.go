package tiered_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Requests count once whatever they cost, and corrections of their cost count nothing.
func TestRequestsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(2 * ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(100)}, nil)
		for n := range int64(4) { // 0 is not valid
			l.AllowN(ctx, "a", n)
		}
		l.Allow(ctx, "")
		l.AllowN(ctx, "a", 101)
		r := l.ReserveN(ctx, "a", 10)
		r.Cancel()
		r = l.ReserveN(ctx, "a", 10)
		r.Settle(3)
		r = l.ReserveN(ctx, "a", 1)
		r.Settle(30)
		time.Sleep(time.Second)
		for range 3 {
			l.AllowN(ctx, "a", 90)
		}
		var of tiered.PolicyStats
		want := &of.Requests
		want.Allowed, want.Granted, want.GrantedByRedis = 6, 6, 5
		want.Refused, want.Limited, want.LimitedByRedis, want.ExceedsBurst, want.Invalid = 6, 3, 1, 1, 2
		s := l.Group().Stats()
		p := s.Policies["api"]
		if p.Requests != *want {
			t.Errorf("%+v, want %+v", p.Requests, *want)
		}
		if n := p.RedisTime.Count(); n == 0 || p.RedisTime.Sum != time.Duration(n)*2*ms {
			t.Errorf("%d waits, %v", n, p.RedisTime.Sum)
		}
		for _, n := range s.Nodes {
			trips := n.Calls.RoundTrips
			if trips.Count() == 0 || trips.Sum != time.Duration(trips.Count())*2*ms {
				t.Errorf("%d round trips, %v", trips.Count(), trips.Sum)
			}
			for i, k := range trips.Buckets {
				if k > 0 && (trips.Bound(i) < 2*ms || trips.Bound(i-1) >= 2*ms) {
					t.Errorf("2 ms are in the bucket up to %v", trips.Bound(i))
				}
			}
		}
	})
}

// Tokens count as near the limit while less than a fifth of the burst is left.
func TestNearLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerHour(100), Lease: neverLeased}, nil)
		for range 100 {
			if d := l.Allow(t.Context(), "a"); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		if n := l.Stats().Tokens.NearLimit; n < 19 || n > 21 {
			t.Errorf("%d of 100 tokens are near the limit, want the last 20", n)
		}
	})
}

// What is charged afterwards is neither admitted by shares nor the trace of an outage. With what was admitted the sums of
// Stats are what callers saw.
func TestStatsOfCharges(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"direct":         {Limit: tiered.PerHour(800)},
		"leased":         {Limit: tiered.PerHour(800), Lease: tiered.Lease{Size: 100}},
		"fixed window":   {Limit: tiered.PerHour(800), Algorithm: tiered.FixedWindow},
		"sliding log":    {Limit: tiered.PerHour(800), Algorithm: tiered.SlidingLog},
		"standing":       {Limit: tiered.PerHour(800), Standing: tiered.StandingOn},
		"several limits": {Limit: tiered.PerHour(800), Also: []tiered.Limit{tiered.PerDay(4000)}},
	} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
			p.Name = "api"
			l := limiter(t, store, p, nil)
			time.Sleep(3 * time.Hour)
			var admitted, charged, alone int64
			stats := func() tiered.PolicyStats {
				t.Helper()
				time.Sleep(time.Second)
				s := l.Stats()
				if s.Leases.Spent+s.Standing.Spent+s.Costs.Refunded+s.Costs.Charged != admitted+charged || s.Tokens.Fallback != alone {
					t.Errorf("spent %d, standing %d, refunded %d, charged %d, shared %d: want %d admitted and %d charged, %d by the share",
						s.Leases.Spent, s.Standing.Spent, s.Costs.Refunded, s.Costs.Charged, s.Tokens.Fallback, admitted, charged, alone)
				}
				return s
			}
			charge := func(n int64) {
				t.Helper()
				ok(t, l.Charge("user", n))
				charged += n
			}
			charge(50)
			if s := stats(); s.Leases.Spent+s.Standing.Spent != 0 {
				t.Errorf("no request was admitted, and Spent is %d, Standing %d", s.Leases.Spent, s.Standing.Spent)
			}
			for i := range 30 {
				r := l.ReserveN(t.Context(), "user", 3)
				if !r.Allowed {
					t.Fatal(r.Decision)
				}
				admitted += 3
				actual := int64(i % 6)
				if r.Settle(actual); actual > 3 {
					charged += actual - 3
				}
			}
			charge(1)
			if s := stats(); s.Costs.Settled != 0 || s.Tokens.Fallback != 0 || s.Tokens.Open != 0 {
				t.Errorf("there was no outage: %d reported of %d", s.Costs.Settled, s.Tokens.Fallback)
			}
			for _, n := range l.Group().Stats().Nodes {
				if n.Outages.Settled != 0 {
					t.Errorf("there was no outage: a node heard of %d", n.Outages.Settled)
				}
			}
			store.Fail(errors.New("down"))
			ask := func() {
				switch l.Allow(t.Context(), "user").Reason {
				case tiered.Granted:
					admitted++
				case tiered.Fallback:
					alone++
				}
			}
			for range 200 {
				ask()
				time.Sleep(10 * time.Millisecond)
			}
			charge(7)
			stats()
			store.Fail(nil)
			for range 20 {
				time.Sleep(time.Second)
				ask()
			}
			if s := stats(); s.Costs.Settled != alone {
				t.Errorf("%d admitted in the outage, %d reported since", alone, s.Costs.Settled)
			}
		})
	}
}

// The Stats of a Limiter are those of its policy in the Group's Stats. Those of a policy that was removed stay.
func TestStatsOfOnePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		group := must(tiered.NewGroup(store, nil))
		defer func() { _ = group.Close(context.Background()) }()
		policies := []tiered.Policy{
			{Name: "fast", Limit: tiered.PerSecond(1000)},
			{Name: "slow", Limit: tiered.PerMinute(5)},
			{Name: "standing", Limit: tiered.PerMinute(1000), Standing: tiered.StandingOn},
			{Name: "tried", Limit: tiered.PerMinute(1), Shadow: true},
		}
		ok(t, group.SetPolicies(policies))
		time.Sleep(2 * time.Minute)
		use := func() {
			for range 50 {
				for _, p := range policies {
					l, _ := group.Limiter(p.Name)
					l.Allow(t.Context(), "ann")
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		use()
		store.Fail(errors.New("connection refused"))
		use()
		store.Fail(nil)
		time.Sleep(10 * time.Second)
		use()
		all := group.Stats().Policies
		for _, p := range policies {
			l, _ := group.Limiter(p.Name)
			if s := l.Stats(); !reflect.DeepEqual(s, all[p.Name]) || s.Requests.Allowed == 0 {
				t.Errorf("%s: %+v, want %+v", p.Name, s, all[p.Name])
			}
		}
		slow, _ := group.Limiter("slow")
		before := slow.Stats()
		if before.Tokens.Limited == 0 || len(before.Top) != 1 || before.Top[0].Key != "ann" {
			t.Errorf("%+v", before)
		}
		ok(t, group.SetPolicies(policies[:1]))
		if s := slow.Stats(); s.Tokens.Limited != before.Tokens.Limited || s.Requests != before.Requests {
			t.Errorf("removed: %+v, want %+v", s, before)
		}
	})
}
