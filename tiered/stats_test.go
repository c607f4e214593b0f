package tiered_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/histogram"
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
		if n := p.RedisTime.Count; n == 0 || p.RedisTime.Sum != time.Duration(n)*2*ms {
			t.Errorf("%d waits, %v", n, p.RedisTime.Sum)
		}
		for _, n := range s.Nodes {
			trips := n.Calls.RoundTrips
			if trips.Count == 0 || trips.Sum != time.Duration(trips.Count)*2*ms {
				t.Errorf("%d round trips, %v", trips.Count, trips.Sum)
			}
			for i, k := range trips.Buckets {
				if k > 0 && (histogram.Bound(i) < 2*ms || histogram.Bound(i-1) >= 2*ms) {
					t.Errorf("2 ms are in the bucket up to %v", histogram.Bound(i))
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
			if d := l.Allow(ctx, "a"); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		if n := l.Stats().Tokens.NearLimit; n < 19 || n > 21 {
			t.Errorf("%d of 100 tokens are near the limit, want the last 20", n)
		}
	})
}

// What is charged afterwards is neither admitted by shares nor the trace of an outage. With what
// was admitted the sums of Stats are what callers saw.
func TestStatsOfCharges(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"direct":         {Limit: tiered.PerHour(800)},
		"leased":         {Limit: tiered.PerHour(800), Lease: tiered.Lease{Size: 100}},
		"fixed window":   {Limit: tiered.PerHour(800), Algorithm: tiered.FixedWindow},
		"sliding log":    {Limit: tiered.PerHour(800), Algorithm: tiered.SlidingLog},
		"standing":       {Limit: tiered.PerHour(800), Standing: 1.0 / 8},
		"several limits": {Limit: tiered.PerHour(800).And(tiered.PerDay(4000))},
	} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
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
				ok(t, l.For("user").N(n).Charge())
				charged += n
			}
			charge(50)
			if s := stats(); s.Leases.Spent+s.Standing.Spent != 0 {
				t.Errorf("no request was admitted, and Spent is %d, Standing %d", s.Leases.Spent, s.Standing.Spent)
			}
			for i := range 30 {
				r := l.ReserveN(ctx, "user", 3)
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
				switch l.Allow(ctx, "user").Reason {
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

// The Stats of a Limiter are those of its policy in the Group's Stats. Those of a policy that was
// removed stay.
func TestStatsOfOnePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		group := must(tiered.NewGroup(store, nil))
		defer func() { _ = group.Close(ctx) }()
		policies := []tiered.Policy{
			{Name: "fast", Limit: tiered.PerSecond(1000)},
			{Name: "slow", Limit: tiered.PerMinute(5)},
			{Name: "standing", Limit: tiered.PerMinute(1000), Standing: 1.0 / 8},
			{Name: "tried", Limit: tiered.PerMinute(1), Shadow: true},
		}
		ok(t, group.SetPolicies(policies))
		time.Sleep(2 * time.Minute)
		use := func() {
			for range 50 {
				for _, p := range policies {
					l, _ := group.Limiter(p.Name)
					l.Allow(ctx, "ann")
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

// Each refused key is named with how much of it was refused and why, the most refused first.
func TestTopNamesWhyAndWhom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g, err := tiered.NewGroup(store, &tiered.Options{Processes: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close(ctx)
		var limiters [3]*tiered.Limiter
		for i := range limiters {
			limiters[i], err = g.NewLimiter(tiered.Policy{
				Name:  fmt.Sprint("p", i),
				Limit: tiered.Limit{Tokens: 1, Per: time.Minute, Burst: 2}, FailMode: tiered.FailMode(i),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		ask := func(key string, times int, n int64) {
			for _, l := range limiters {
				for range times {
					l.AllowN(ctx, key, n)
				}
			}
		}
		ask("ann", 2+5, 1)
		ask("bob", 1+3, 2)
		ask("cid", 2, 1) // is refused nothing
		ask("dan", 2+5, 1)
		top := func(policy string) (all []string) {
			for _, k := range g.Stats().Policies[policy].Top {
				all = append(all, fmt.Sprint(k.Key, " ", k.Limited, " ", k.FallbackSpent, " ", k.Unavailable, " ",
					k.Forgotten, " ", k.RetryAfter > 0))
			}
			return all
		}
		check := func(when, policy string, want ...string) {
			t.Helper()
			if got := top(policy); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %q, want %q", when, policy, got, want)
			}
		}
		for _, l := range limiters {
			check("refused", l.Policy().Name, "bob 6 0 0 0 true", "ann 5 0 0 0 true", "dan 5 0 0 0 true")
		}
		store.Fail(errors.New("down"))
		// what is known to be denied is forgotten, and a breaker opens at the third failure
		time.Sleep(10 * time.Second)
		for i := range 5 {
			ask(fmt.Sprint("nobody ", i), 1, 1)
		}
		ask("ann", 4, 1)
		check("without Redis", "p0", "ann 5 4 0 0 false", "bob 6 0 0 0 false", "dan 5 0 0 0 false")
		check("without Redis", "p1", "bob 6 0 0 0 false", "ann 5 0 0 0 false", "dan 5 0 0 0 false")
		closed := top("p2")
		if len(closed) != 8 || closed[0] != "ann 5 0 4 0 false" || closed[3] != "nobody 0 0 0 1 0 false" {
			t.Errorf("fail-closed: %q", closed)
		}
		// Somebody publishes Stats: keys may be secrets.
		text, err := json.Marshal(g.Stats())
		if err != nil || strings.Contains(string(text), "nobody") || !strings.Contains(string(text), `"Limited":5`) {
			t.Errorf("%v: %s", err, text)
		}
		store.Fail(nil)
	})
}

// Keys that Blocked refuses are listed too, with figures of their own: blocked by PerKey or by the
// policy, evicted, or unblocked again. A decision allocates nothing for it.
func TestTopNamesTheBlocked(t *testing.T) {
	for name, policy := range map[string]tiered.Policy{
		"by the policy": {Name: "p", Limit: tiered.Blocked()},
		"by the key": {Name: "p", Limit: tiered.PerDay(1), PerKey: func(key string) tiered.Limit {
			if key == "friend" {
				return tiered.PerDay(2)
			}
			return tiered.Blocked()
		}},
	} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), policy, &tiered.Options{MaxKeys: 2, Processes: 1})
			check := func(when string, want ...string) {
				t.Helper()
				var got []string
				s := l.Group().Stats().Policies["p"]
				sum := int64(0)
				for _, k := range s.Top {
					got = append(got, fmt.Sprint(k.Key, " ", k.Blocked, " ", k.Limited, " ", k.Tokens))
					sum += k.Blocked
				}
				if !slices.Equal(got, want) || s.Tokens.Blocked != sum {
					t.Errorf("%s: %q, want %q; %d were blocked", when, got, want, s.Tokens.Blocked)
				}
			}
			for range 5 {
				l.AllowN(ctx, "thief", 3)
			}
			tiered.All(l.For("spy"), l.For("thief")).Allow(ctx)
			l.Peek(ctx, "spy") // asks for nothing
			check("blocked", "thief 16 0 16", "spy 1 0 1")
			for i := range 10 { // the two are evicted
				l.Allow(ctx, fmt.Sprint("passer-by ", i))
			}
			l.Allow(ctx, "spy")
			top := l.Group().Stats().Policies["p"].Top
			if len(top) != 12 || top[0].Key != "thief" || top[0].Blocked != 16 || top[1].Key != "spy" ||
				top[1].Blocked != 2 {
				t.Errorf("evicted: %+v", top)
			}
			if n := testing.AllocsPerRun(100, func() { l.Allow(ctx, "spy") }); n > 0 {
				t.Errorf("%v allocations", n)
			}
			set(t, l, func(p *tiered.Policy) { p.Limit, p.PerKey = tiered.PerDay(1), nil })
			for range 3 {
				l.Allow(ctx, "thief")
			}
			if top := l.Group().Stats().Policies["p"].Top; top[1].Key != "thief" || top[1].Blocked != 16 ||
				top[1].Limited != 2 {
				t.Errorf("let in: %+v", top)
			}
		})
	}
}
