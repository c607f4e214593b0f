package tiered_test

import (
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
		l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerHour(100)}, nil)
		ctx := t.Context()
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
		l := limiter(t, remote.NewMemory(), tiered.Policy{
			Name: "api", Limit: tiered.PerHour(100),
			Lease: tiered.Lease{Size: tiered.NoLease},
		}, nil)
		for range 100 {
			if d := l.Allow(t.Context(), "a"); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		if n := l.Group().Stats().Policies["api"].Tokens.NearLimit; n < 19 || n > 21 {
			t.Errorf("%d of 100 tokens are near the limit, want the last 20", n)
		}
	})
}
