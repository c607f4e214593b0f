package tiered

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// PerKey is the user's code. While it runs for the second shard of a key, no other request waits for it, and it may use
// the Group.
func TestPerKeyOfASecondShardHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		var other *Limiter
		var asked atomic.Int64
		plans := sharded("plans", 8, 4)
		plans.PerKey = func(string) Limit {
			if asked.Add(1) > 1 {
				time.Sleep(time.Hour) // nothing but Budget bounds a decision, and this
			}
			if d := All(other.For("x"), other.For("y")).Allow(t.Context()); !d.Allowed {
				t.Errorf("%+v", d)
			}
			return plans.Limit
		}
		both := several(t, store, nil, plans, direct("other", 1000))
		l := both[0]
		other = both[1]
		spend := func() (d Decision) {
			for range 3 {
				d = l.Allow(t.Context(), "k")
			}
			return d
		}
		done := make(chan Decision)
		go func() { done <- spend() }() // the third is borrowed
		time.Sleep(time.Minute)
		if n := asked.Load(); n != 2 {
			t.Fatalf("PerKey was asked %d times, want it under way for the second shard", n)
		}
		start := time.Now()
		want(t, All(other.For("a"), other.For("b")).Allow(t.Context()), Granted)
		if took := time.Since(start); took > 2*ms {
			t.Errorf("a stranger waited for %v", took)
		}
		want(t, <-done, Limited) // its Budget is over, so the first shard's answer stands
	})
}

// A request that both shards refuse counts once, also after a change of the limit and an eviction. The key is listed
// once.
func TestRefusedByTwoShardsCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := sharded("api", 8, 4)
		l := several(t, newDistant(ms), &Options{MaxKeys: 2}, p)[0]
		refused := int64(0)
		ask := func(key string, n int) {
			for range n {
				if !l.Allow(t.Context(), key).Allowed {
					refused++
				}
			}
		}
		check := func(when string) {
			t.Helper()
			s := l.group.Stats().Policies["api"]
			seen, sum := map[string]bool{}, int64(0)
			for _, k := range s.Top {
				if seen[k.Key] {
					t.Errorf("%s: %q is named twice: %+v", when, k.Key, s.Top)
				}
				seen[k.Key] = true
				sum += k.Tokens() + k.Forgotten
			}
			if s.Limited+s.Blocked != refused || sum != refused {
				t.Errorf("%s: %d limited, %d blocked, %d in Top, want %d", when, s.Limited, s.Blocked, sum, refused)
			}
		}
		ask("k", 9)
		check("at first")
		for _, limit := range []Limit{Blocked(), p.Limit} {
			changed := p
			changed.Limit = limit
			if err := l.SetPolicy(changed); err != nil {
				t.Fatal(err)
			}
			check("changed")
			ask("k", 3)
			check("changed and asked for")
		}
		ask("j", 9) // the first is evicted
		check("forgotten")
		ask("k", 3)
		first, _ := l.at("k")
		l.group.cache.Touch(g(l, first, "k")) // so that the other one is seen before it
		check("back again")
	})
}

// With several limits and Shards, a refusal names the limit that refused, as without Shards.
func TestShardsNameTheLimitThatRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, a := range []Algorithm{TokenBucket, SlidingWindow} {
			l := several(t, newDistant(ms), nil, Policy{
				Name: "api", Algorithm: a, Limit: PerMinute(40), Also: []Limit{PerHour(80)}, Shards: 4,
				Lease: Lease{Size: NoLease},
			})[0]
			ctx := t.Context()
			if d := l.AllowN(ctx, "k", 11); d.Reason != ExceedsBurst || d.LimitNumber != 1 || d.Burst != 10 {
				t.Errorf("%v: %+v, want what a shard has of the first limit", a, d)
			}
			d := l.Allow(ctx, "k")
			for range 100 {
				if !d.Allowed {
					break
				}
				time.Sleep(7500 * ms) // well within the first limit, also of one shard
				d = l.Allow(ctx, "k")
			}
			if d.Reason != Limited || d.LimitNumber != 2 || d.Burst != 80 {
				t.Errorf("%v: %+v, want the second limit", a, d)
			}
			d = l.Peek(ctx, "k")
			if d.Reason != Limited || d.LimitNumber != 2 || d.Burst != 80 {
				t.Errorf("%v: %+v, want the second limit", a, d)
			}
			if a == SlidingWindow && (d.ResetAfter <= 0 || d.ResetAfter > time.Hour+2*time.Minute) {
				t.Errorf("%v: %+v", a, d)
			}
		}
	})
}
