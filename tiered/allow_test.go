package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What there is, is granted to the token: by a lease, by Redis, by a fail mode, and by every
// algorithm.
func TestAllowAtMost(t *testing.T) {
	down := errors.New("down")
	hour := func(p tiered.Policy) tiered.Policy { p.Limit = tiered.PerHour(10); return p }
	ten := hour(tiered.Policy{})
	for name, c := range map[string]struct {
		policy tiered.Policy
		used   int64
		down   bool
		n      int64
		want   int64
		reason tiered.Reason
	}{
		"enough":              {ten, 2, false, 5, 5, tiered.Granted},
		"fewer":               {ten, 7, false, 5, 3, tiered.Granted},
		"none":                {ten, 10, false, 5, 0, tiered.Limited},
		"more than the burst": {ten, 3, false, 99, 7, tiered.Granted},
		"one":                 {ten, 9, false, 1, 1, tiered.Granted},
		"no number":           {ten, 0, false, 0, 0, tiered.InvalidCost},
		"leased": {
			tiered.Policy{Limit: tiered.PerHour(400), Lease: tiered.Lease{Size: 100}}, 360, false, 99, 40, tiered.Granted,
		},
		"fixed window":   {hour(tiered.Policy{Algorithm: tiered.FixedWindow}), 7, false, 5, 3, tiered.Granted},
		"sliding window": {hour(tiered.Policy{Algorithm: tiered.SlidingWindow}), 7, false, 5, 3, tiered.Granted},
		"sliding log":    {hour(tiered.Policy{Algorithm: tiered.SlidingLog}), 7, false, 5, 3, tiered.Granted},
		"several limits": {
			tiered.Policy{Limit: tiered.PerHour(100).And(tiered.PerDay(10))}, 7, false, 5, 3, tiered.Granted,
		},
		"the share":   {ten, 0, true, 9, 5, tiered.Fallback}, // of two processes
		"fail-open":   {hour(tiered.Policy{FailMode: tiered.FailOpen}), 0, true, 9, 9, tiered.Open},
		"fail-closed": {hour(tiered.Policy{FailMode: tiered.FailClosed}), 0, true, 9, 0, tiered.Unavailable},
		"unlimited":   {tiered.Policy{Limit: tiered.Unlimited()}, 0, false, 1 << 39, 1 << 39, tiered.Granted},
		"blocked":     {tiered.Policy{Limit: tiered.Blocked()}, 0, false, 5, 0, tiered.ExceedsBurst},
	} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
			c.policy.Name = "p"
			l := limiter(t, store, c.policy, &tiered.Options{Processes: 2})
			if c.used > 0 {
				if d := l.AllowN(ctx, "k", c.used); !d.Allowed {
					t.Fatal(d)
				}
			}
			if c.down {
				store.Fail(down)
			}
			got, d := l.AllowAtMost(ctx, "k", c.n)
			if got != c.want || d.Reason != c.reason || d.Allowed != (got > 0) {
				t.Errorf("%d, %v, want %d, %v", got, d, c.want, c.reason)
			}
		})
	}
}

// What the standing share gave is told, also if the attempt to get more ends with the caller's
// context.
func TestAllowAtMostThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(10*ms), tiered.Policy{
			Limit: tiered.PerMinute(800), Standing: 1.0 / 8, FailMode: tiered.FailClosed,
		}, nil)
		time.Sleep(3 * time.Minute) // the share has 100
		want(t, l.AllowN(t.Context(), "user", 690), tiered.Granted)
		ctx, cancel := context.WithTimeout(t.Context(), 25*ms) // 10 ms before that the second round trip is under way
		defer cancel()
		if n, d := l.AllowAtMost(ctx, "user", 300); n != 100 || !d.Allowed {
			t.Errorf("%d tokens, and %+v", n, d)
		}
	})
}

// AllowAtMost of an empty key says when the first token is there, and takes what has come since the
// last refusal, one step of the refill after the other, though it is then known that not all of it
// is there.
func TestAllowAtMostOfAnEmptyKey(t *testing.T) {
	for _, n := range []int64{1, 5, 10, 1000} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)}, nil)
			l.AllowN(ctx, "k", 10)
			for i := range 12 {
				got, d := l.AllowAtMost(ctx, "k", n)
				if got != 0 || d.Reason != tiered.Limited || d.RetryAfter > 100*time.Millisecond+time.Microsecond {
					t.Errorf("AllowAtMost(%d) of none: %d, %v, come back in %v; a token is there in 100ms", n, got,
						d.Reason, d.RetryAfter)
				}
				time.Sleep(time.Duration(100*(1+i%3))*time.Millisecond + time.Microsecond)
				left := l.Peek(ctx, "k").Remaining
				if got, _ := l.AllowAtMost(ctx, "k", n); got != min(left, n) {
					t.Errorf("AllowAtMost(%d) got %d of %d", n, got, left)
				}
				l.AllowAtMost(ctx, "k", 10) // what is left
			}
		})
	}
}

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
				Reason: tiered.Unknown, Remaining: 97, Burst: 100,
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

func TestBadCallsAreAnsweredAndNothingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		time.Sleep(10 * ms)
		for _, c := range []struct {
			key  string
			n    int64
			want tiered.Reason
		}{
			{"", 1, tiered.InvalidKey},
			{strings.Repeat("k", tiered.MaxKeyLength+1), 1, tiered.InvalidKey},
			{"k", 0, tiered.InvalidCost},
			{"k", -1, tiered.InvalidCost},
			{"k", -1 << 63, tiered.InvalidCost},
			{"k", 11, tiered.ExceedsBurst},
			{"k", 1<<63 - 1, tiered.ExceedsBurst},
		} {
			d := l.AllowN(ctx, c.key, c.n)
			if d.Reason != c.want || d.Allowed || reasonOf(d.Err()) != c.want || d.RetryAfter != 0 {
				t.Errorf("key of %d bytes, cost %d: %+v", len(c.key), c.n, d)
			}
		}
		if n := store.calls.Load(); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
		long := strings.Repeat("k", tiered.MaxKeyLength)
		for _, key := range []string{
			long, "}{", "{}", "a{b}c", "\x00\xff\xfe", "\n\r\t ", "ключ", strings.Repeat("\x00", 201),
		} {
			want(t, l.Allow(ctx, key), tiered.Granted)
			if d := l.Allow(ctx, key); d.Remaining != 8 || d.Key != key {
				t.Errorf("a key of %d bytes is not a bucket of its own: %+v", len(key), d.Remaining)
			}
		}
		//lint:ignore SA1012 a nil context is bad input, and gets an answer
		want(t, l.Allow(nil, "nil context"), tiered.Granted) //nolint:staticcheck // see above
	})
}

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
		{Name: "window", Limit: tiered.PerDay(6).And(tiered.PerHour(5)), Algorithm: tiered.SlidingWindow},
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
			tiered.All(uses...).AllowSeparately(ctx, each)
		})
		inTurn := play(func(uses []tiered.Use, each []tiered.Decision) {
			for i, u := range uses {
				each[i] = u.Allow(ctx)
			}
		})
		for i := range inTurn {
			if together[i] != inTurn[i] {
				r.Errorf("%s, and in turn %s", together[i], inTurn[i])
			}
		}
	})
}

// Uses of one key that together want more than its burst: what is left beside one that is refused
// is for the next.
func TestAllowSeparatelyMoreThanABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, direct("a", 5))
		want(t, l[0].Allow(ctx, "k"), tiered.Granted)
		var uses []tiered.Use
		for _, n := range []int64{2, 3, 1, 2} {
			uses = append(uses, l[0].For("k").N(n))
		}
		each := make([]tiered.Decision, len(uses))
		tiered.All(uses...).AllowSeparately(ctx, each)
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
				n += node.Calls.RoundTrips.Count
			}
			return n
		}
		begin, before := time.Now(), trips()
		tiered.All(uses...).AllowSeparately(ctx, each)
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

// Without Redis each use is decided by the fail mode of its policy, and the refusal of one is none
// of the other's.
func TestAllowSeparatelyWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		open, closed := direct("open", 5), direct("closed", 5)
		open.FailMode, closed.FailMode = tiered.FailOpen, tiered.FailClosed
		l := several(t, store, nil, open, closed, direct("local", 5))
		store.Fail(errors.New("connection refused"))
		for range 5 {
			var each [3]tiered.Decision
			tiered.All(l[1].For("k"), l[0].For("k"), l[2].For("k")).AllowSeparately(ctx, each[:])
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
