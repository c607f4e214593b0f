package tiered_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
	want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
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
						done <- tiered.All(l.For("k").N(5)).Allow(ctx)
					} else {
						done <- l.AllowN(ctx, "k", 5)
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
