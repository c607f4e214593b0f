package tiered_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

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

// The most refused keys are found among any number of refused keys.
func TestTopIsTheTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerDay(1)}, nil)
		const keys = 1000
		for i := range keys {
			for range 2 + (i*37)%keys { // refused 1 … 1000 times, in no order
				l.Allow(ctx, fmt.Sprint(i))
			}
		}
		top := l.Group().Stats().Policies["p"].Top
		if len(top) != 20 {
			t.Fatalf("%d keys", len(top))
		}
		for i, k := range top {
			if k.Tokens() != int64(keys-i) {
				t.Errorf("place %d: %+v, want %d", i, k, keys-i)
			}
		}
	})
}

// Keys that Blocked refuses are listed too, with figures of their own: blocked by PerKey or by the policy, evicted, or
// unblocked again. A decision allocates nothing for it.
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
					got = append(got, fmt.Sprint(k.Key, " ", k.Blocked, " ", k.Limited, " ", k.Tokens()))
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

// A key that was refused, evicted and used again has all of its refusals.
func TestTopOutlivesEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerDay(1)}, &tiered.Options{MaxKeys: 1})
		for round := range 3 {
			for range 10 {
				l.Allow(ctx, "ann")
			}
			time.Sleep(time.Second)
			for i := range 40 {
				l.Allow(ctx, fmt.Sprint("once ", round, i))
				time.Sleep(time.Second)
			}
		}
		s := l.Group().Stats()
		top := s.Policies["p"].Top
		if len(top) != 1 || top[0].Key != "ann" || top[0].Tokens() != 29 || top[0].Forgotten != 0 {
			t.Errorf("%+v, want 29 of ann", top)
		}
		if s.Evictions < 120 {
			t.Errorf("%d evictions: the test sees nothing", s.Evictions)
		}
	})
}
