package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// separatePolicies are policies that decide in different ways.
func separatePolicies() []tiered.Policy {
	tried := direct("tried", 2)
	tried.Shadow = true
	keys := direct("keys", 3)
	keys.PerKey = func(key string) tiered.Limit {
		return map[string]tiered.Limit{"0": tiered.Blocked(), "1": tiered.Unlimited()}[key]
	}
	return []tiered.Policy{
		direct("direct", 5),
		{Name: "leased", Limit: tiered.PerHour(1000)},
		tried, keys,
		{Name: "window", Limit: tiered.PerDay(6), Algorithm: tiered.SlidingWindow, Also: []tiered.Limit{tiered.PerHour(5)}},
		{Name: "fixed", Limit: tiered.PerDay(6), Algorithm: tiered.FixedWindow},
	}
}

// AllowSeparately decides as one use after the other would be decided, and takes the same tokens.
func TestAllowSeparately(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		type ask struct {
			policy int
			key    string
			cost   int64
		}
		policies := separatePolicies()
		draw := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ask {
			return ask{
				rapid.IntRange(0, len(policies)).Draw(t, "policy"), strconv.Itoa(rapid.IntRange(-1, 1).Draw(t, "key")),
				rapid.Int64Range(-1, 3).Draw(t, "cost"),
			}
		}), 0, 7), 1, 5).Draw(r, "requests")
		play := func(decide func(uses []tiered.Use, each []tiered.Decision)) (all []string) {
			synctest.Test(t, func(t *testing.T) {
				l := several(t, newDistant(ms), &tiered.Options{Processes: 1}, policies...)
				for _, request := range draw {
					uses, each := make([]tiered.Use, len(request)), make([]tiered.Decision, len(request))
					for i, a := range request {
						if a.policy < len(l) { // or the zero Use
							uses[i] = l[a.policy].For(a.key).N(a.cost)
						}
					}
					decide(uses, each)
					time.Sleep(100 * ms)
					for i, d := range each {
						all = append(all, fmt.Sprint(request[i], d.Allowed, d.Reason))
					}
				}
				for _, p := range policies {
					s := l[0].Group().Stats().Policies[p.Name]
					all = append(all, fmt.Sprint(p.Name, s.Leases.Spent, s.Tokens.Limited, s.Tokens.Blocked, s.Tokens.Unlimited, s.Tokens.Shadowed,
						s.Requests.Refused))
				}
				books(t, l[0].Group())
			})
			return all
		}
		together := play(func(uses []tiered.Use, each []tiered.Decision) {
			tiered.All(uses...).AllowSeparately(context.Background(), each)
		})
		inTurn := play(func(uses []tiered.Use, each []tiered.Decision) {
			for i, u := range uses {
				each[i] = u.Allow(context.Background())
			}
		})
		for i := range inTurn {
			if together[i] != inTurn[i] {
				r.Errorf("%s, and in turn %s", together[i], inTurn[i])
			}
		}
	})
}

// Uses of one key that together want more than its burst: what is left beside one that is refused is for the next.
func TestAllowSeparatelyMoreThanABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, direct("a", 5))
		want(t, l[0].Allow(t.Context(), "k"), tiered.Granted)
		var uses []tiered.Use
		for _, n := range []int64{2, 3, 1, 2} {
			uses = append(uses, l[0].For("k").N(n))
		}
		each := make([]tiered.Decision, len(uses))
		tiered.All(uses...).AllowSeparately(t.Context(), each)
		for i, allowed := range []bool{true, false, true, false} {
			if each[i].Allowed != allowed {
				t.Errorf("use %d of %d tokens: %+v", i, each[i].Cost, each[i])
			}
		}
	})
}

// Several uses that Redis has to decide wait for one round trip, and share a pipeline.
func TestAllowSeparatelyWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, direct("a", 5), direct("b", 1))
		var uses []tiered.Use
		for i := range 10 {
			uses = append(uses, l[i%2].For(strconv.Itoa(i/2)))
		}
		each := make([]tiered.Decision, 8)
		time.Sleep(10 * ms) // the reports of presence are over, which are one or two round trips
		trips := func() (n int64) {
			for _, node := range l[0].Group().Stats().Nodes {
				n += node.Calls.RoundTrips.Count()
			}
			return n
		}
		begin, before := time.Now(), trips()
		tiered.All(uses...).AllowSeparately(t.Context(), each)
		if took := time.Since(begin); took > ms {
			t.Errorf("it took %v, want one round trip of 1 ms", took)
		}
		for i, d := range each {
			if !d.Allowed || d.Tier != tiered.Remote {
				t.Errorf("use %d: %+v, want admitted by Redis", i, d)
			}
		}
		if n := trips() - before; n != 1 {
			t.Errorf("%d round trips, want 1", n)
		}
	})
}

// Without Redis each use is decided by the fail mode of its policy, and the refusal of one is none of the other's.
func TestAllowSeparatelyWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		open, closed := direct("open", 5), direct("closed", 5)
		open.FailMode, closed.FailMode = tiered.FailOpen, tiered.FailClosed
		l := several(t, store, nil, open, closed, direct("local", 5))
		store.Fail(errors.New("connection refused"))
		for range 5 {
			var each [3]tiered.Decision
			tiered.All(l[1].For("k"), l[0].For("k"), l[2].For("k")).AllowSeparately(t.Context(), each[:])
			for i, reason := range []tiered.Reason{tiered.Unavailable, tiered.Open, tiered.Fallback} {
				if each[i].Reason != reason || each[i].Allowed != (i > 0) {
					t.Errorf("use %d: %+v, want %v", i, each[i], reason)
				}
			}
			time.Sleep(10 * ms)
		}
		store.Fail(nil)
		time.Sleep(5 * time.Second)
	})
}
