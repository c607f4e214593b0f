package tiered_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestSetPolicyRefuses(t *testing.T) {
	l := several(t, remote.NewMemory(), nil, direct("api", 10))[0]
	before := l.Policy()
	for name, p := range map[string]tiered.Policy{
		"another name":  direct("other", 10),
		"no limit":      {Name: "api"},
		"a bad limit":   {Name: "api", Limit: tiered.Limit{Tokens: -1, Per: time.Second}},
		"nearly none":   {Name: "api", Limit: tiered.Unlimited().WithBurst(5)},
		"a big lease":   {Name: "api", Limit: tiered.PerSecond(10), Lease: tiered.Lease{Size: 4}},
		"no such mode":  {Name: "api", Limit: tiered.PerSecond(10), FailMode: 9},
		"blocked twice": {Name: "api", Limit: tiered.Blocked().WithBurst(1)},
	} {
		if err := l.SetPolicy(p); err == nil || !strings.Contains(err.Error(), "Policy.") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := l.Policy(); after.Limit != before.Limit || after.Lease != before.Lease {
		t.Errorf("%+v, was %+v", after, before)
	}
	want(t, l.AllowN(context.Background(), "k", 10), tiered.Granted)
}

// stores are both kinds: what is shown of limits that change is the script's doing.
func stores(t *testing.T, f func(t *testing.T, s remote.Store)) {
	t.Run("memory", func(t *testing.T) { f(t, remote.NewMemory()) })
	t.Run("redis", func(t *testing.T) { f(t, open(t, redistest.Start(t).URL())) })
}

func TestRaisingMintsNothing(t *testing.T) {
	stores(t, func(t *testing.T, s remote.Store) {
		p := direct("api", 10)
		l := several(t, s, patientOptions(nil), p)[0]
		want(t, l.AllowN(ctx, "used", 10), tiered.Granted)
		want(t, l.AllowN(ctx, "half", 5), tiered.Granted)
		want(t, l.Allow(ctx, "used"), tiered.Limited)
		set(t, l, limitTo(tiered.PerDay(1).WithBurst(1000)))
		for _, c := range []struct {
			key  string
			left int64
		}{{"used", 0}, {"half", 5}, {"new", 1000}} {
			d := l.AllowN(ctx, c.key, c.left+1)
			if c.left < 1000 && (d.Reason != tiered.Limited || d.Burst != 1000) || c.left == 1000 &&
				d.Reason != tiered.ExceedsBurst {
				t.Errorf("%s: %+v, want no more than %d", c.key, d, c.left)
			}
			if c.left > 0 {
				want(t, l.AllowN(ctx, c.key, c.left), tiered.Granted)
			}
		}
		// A higher rate counts from now on, and is seen at once although the key was known to be denied for a day.
		for before := time.Now(); time.Since(before) < 100*ms; { // time that counts by the old rate
			want(t, l.Allow(ctx, "used"), tiered.Limited)
		}
		changed := time.Now()
		set(t, l, limitTo(tiered.Limit{Tokens: 1000, Per: second, Burst: 1000}))
		admitted := spendAll(t, l, "used")
		if most := int64(1000*time.Since(changed).Seconds()) + 1; admitted > most {
			t.Errorf("%d admitted within %v of 1000/s", admitted, time.Since(changed))
		}
		soon(t, "the new rate brings tokens", 10*second, func() bool { return l.AllowN(ctx, "used", 5).Allowed })
	})
}

func TestLoweringClamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, direct("api", 1000))[0]
		time.Sleep(second)
		want(t, l.AllowN(ctx, "k", 100), tiered.Granted)
		set(t, l, limitTo(tiered.PerDay(1).WithBurst(10)))
		want(t, l.AllowN(ctx, "k", 11), tiered.ExceedsBurst)
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted) // of the larger limit, for ten seconds
		set(t, l, limitTo(tiered.PerDay(1).WithBurst(1000)))
		want(t, l.AllowN(ctx, "k", 800), tiered.Granted)
		set(t, l, limitTo(tiered.PerDay(1).WithBurst(10)))
		time.Sleep(lua.TermsHold)
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		want(t, l.Allow(ctx, "k"), tiered.Limited)
		// What was clamped off does not come back.
		set(t, l, limitTo(tiered.PerDay(1).WithBurst(1000)))
		want(t, l.Allow(ctx, "k"), tiered.Limited)
	})
}

// If a key becomes Blocked or Unlimited, its lease is returned with the numbers that it was granted by. When the key
// has a limit again, it continues from there.
func TestLeaseOfAKeyWithoutALimitGoesBack(t *testing.T) {
	for name, rule := range map[string]tiered.Limit{"blocked": tiered.Blocked(), "unlimited": tiered.Unlimited()} {
		for _, perKey := range []bool{false, true} {
			bubble(t, fmt.Sprint(name, ", by PerKey ", perKey), func(t *testing.T) {
				store := newTape()
				limit := tiered.PerHour(10_000)
				var now atomic.Pointer[tiered.Limit]
				now.Store(&limit)
				p := tiered.Policy{Name: "api", Limit: limit}
				if perKey {
					p.Limit, p.PerKey = tiered.PerDay(1), func(string) tiered.Limit { return *now.Load() }
				}
				l := several(t, store, nil, p)[0]
				b := leased(t, l)
				change := func(to tiered.Limit) {
					if now.Store(&to); perKey {
						l.Refresh("k")
					} else {
						set(t, l, limitTo(to))
					}
				}
				spent := l.Stats().Leases.Spent
				change(rule)
				for range 10 {
					if d := l.Allow(t.Context(), "k"); d.Allowed != (rule == tiered.Unlimited()) {
						t.Fatalf("%+v", d)
					}
					time.Sleep(100 * ms)
				}
				time.Sleep(5 * time.Second)
				if held, _ := b.Peek(tiered.Engine(l.Group()).Now()); held != 0 {
					t.Errorf("%d held", held)
				}
				s := l.Stats()
				if s.Leases.Spent != spent || s.Leases.Burnt != 0 || s.Leases.Returned == 0 {
					t.Errorf("%+v, %d spent before", s, spent)
				}
				change(limit)
				left := l.Peek(t.Context(), "k").Remaining
				if gone := 10_000 - spent; left < gone || left > gone+30 { // 30 for what came back in ten seconds
					t.Errorf("%d left, want about %d", left, gone)
				}
				books(t, l.Group())
			})
		}
	}
}

// If the limit changes while a request waits for Redis' answer, the new limit decides.
func TestSetPolicyWhileSomebodyWaits(t *testing.T) {
	for name, c := range map[string]struct {
		to   tiered.Limit
		want tiered.Reason
	}{
		"lowered": {tiered.PerDay(1).WithBurst(3), tiered.ExceedsBurst}, "blocked": {tiered.Blocked(), tiered.ExceedsBurst},
		"unlimited": {tiered.Unlimited(), tiered.Granted}, "raised": {tiered.PerDay(1).WithBurst(30), tiered.Granted},
	} {
		for _, strictest := range []bool{false, true} {
			bubble(t, fmt.Sprint(name, ", All ", strictest), func(t *testing.T) {
				l := several(t, newDistant(10*ms), nil, direct("api", 10))[0]
				time.Sleep(time.Second)
				done := make(chan tiered.Decision)
				go func() {
					if strictest {
						done <- tiered.All(l.For("k").N(5)).Allow(t.Context())
					} else {
						done <- l.AllowN(t.Context(), "k", 5)
					}
				}()
				time.Sleep(3 * ms)
				set(t, l, limitTo(c.to))
				want(t, <-done, c.want)
				time.Sleep(200 * ms)
				books(t, l.Group())
			})
		}
	}
}

func TestFailModeIsChangedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("api", 3))[0]
		time.Sleep(time.Second)
		outage(t, store, l) // asks for another key, and is admitted by its share
		mode := func(m tiered.FailMode) { set(t, l, func(p *tiered.Policy) { p.FailMode = m }) }
		before := l.Stats()
		for range 3 {
			if d := l.Allow(ctx, "k"); d.Reason != tiered.Fallback {
				t.Fatalf("%+v", d)
			}
		}
		mode(tiered.FailOpen)
		for range 100 {
			if d := l.Allow(ctx, "k"); d.Reason != tiered.Open {
				t.Fatalf("%+v", d)
			}
		}
		mode(tiered.FailClosed)
		for range 10 {
			want(t, l.Allow(ctx, "k"), tiered.Unavailable)
		}
		mode(tiered.FailLocal)
		want(t, l.Allow(ctx, "k"), tiered.FallbackSpent) // neither mode filled it
		s := l.Stats()
		if s.Tokens.Fallback-before.Tokens.Fallback != 3 || s.Tokens.Open != 100 || s.Tokens.Unavailable != 10 ||
			s.Tokens.FallbackSpent-before.Tokens.FallbackSpent != 1 {
			t.Errorf("%+v, before %+v", s, before)
		}
		store.loseRequests.Store(false)
		n := 0
		soonInBubble(t, func() bool { n++; return l.Allow(ctx, fmt.Sprint("probe", n)).Reason == tiered.Granted })
		want(t, l.Allow(ctx, "k"), tiered.Limited) // all of it is charged
		time.Sleep(time.Second)
		if s := l.Stats(); s.Costs.Settled < 103 {
			t.Errorf("%+v: 103 were admitted for k alone", s)
		}
	})
}

// A Limiter has its own copy of Policy.Also: callers may write to the slice that they passed or got.
func TestAlsoIsTheLimitersOwn(t *testing.T) {
	also := []tiered.Limit{tiered.PerHour(10)}
	p := tiered.Policy{Name: "api", Limit: tiered.PerSecond(5), Also: also}
	l := several(t, remote.NewMemory(), nil, p)[0]
	check := func(when string) {
		t.Helper()
		also[0] = tiered.PerDay(1000)
		if err := l.SetPolicy(p); err == nil || !strings.Contains(err.Error(), "Policy.Also is") {
			t.Errorf("%s: Also was changed by SetPolicy: %v", when, err)
		}
		if now := l.Policy().Also; len(now) != 1 || now[0] != tiered.PerHour(10) ||
			l.Group().Policies()[0].Also[0] != tiered.PerHour(10) {
			t.Errorf("%s: %v is in force", when, now)
		}
	}
	check("passed to Limiter")
	also[0] = tiered.PerHour(10)
	ok(t, l.SetPolicy(p))
	check("passed to SetPolicy")
	l.Policy().Also[0] = tiered.PerDay(1000)
	check("told by Policy")
	l.Group().Policies()[0].Also[0] = tiered.PerDay(1000)
	check("told by Policies")
}
