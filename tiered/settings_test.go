package tiered_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// set changes a policy's limit.
func set(t *testing.T, l *tiered.Limiter, change func(*tiered.Policy)) {
	t.Helper()
	p := l.Policy()
	change(&p)
	ok(t, l.SetPolicy(p))
}

func limitTo(limit tiered.Limit) func(*tiered.Policy) {
	return func(p *tiered.Policy) { p.Limit = limit }
}

// relimited gives the key k another limit, in one of the ways in which it may have one, and returns
// its use from then on. PerKey must give the limit already.
func relimited(t *testing.T, l *tiered.Limiter, k tiered.Use, way string, limit tiered.Limit) tiered.Use {
	t.Helper()
	switch way {
	case "SetPolicy":
		set(t, l, limitTo(limit))
	case "PerKey":
		l.Refresh("k")
	case "WithLimit":
		k = k.WithLimit(limit)
	}
	return k
}

func TestUnlimitedAndBlockedAskNobody(t *testing.T) {
	for name, policy := range map[string]func(tiered.Limit) tiered.Policy{
		"by the policy": func(l tiered.Limit) tiered.Policy { return tiered.Policy{Name: "api", Limit: l} },
		"by the key": func(l tiered.Limit) tiered.Policy {
			return tiered.Policy{Name: "api", Limit: tiered.PerDay(1), PerKey: func(string) tiered.Limit { return l }}
		},
	} {
		bubble(t, name, func(t *testing.T) {
			store := newDistant(ms)
			free := several(t, store, nil, policy(tiered.Unlimited()))[0]
			shut := several(t, store, nil, policy(tiered.Blocked()))[0]
			time.Sleep(time.Second)
			calls, start := store.calls.Load(), time.Now()
			for range 100 {
				d := free.AllowN(ctx, "k", 1000)
				if want(t, d, tiered.Granted); d.Burst != math.MaxInt64 || d.Remaining != math.MaxInt64 ||
					d.ResetAfter != 0 || d.Tier != tiered.Local {
					t.Fatalf("%+v", d)
				}
				d = shut.Allow(ctx, "k")
				if want(t, d, tiered.ExceedsBurst); d.Burst != 0 || d.Remaining != 0 || d.RetryAfter != 0 ||
					d.Policy != "api" || d.Key != "k" {
					t.Fatalf("%+v", d)
				}
			}
			r := free.ReserveN(ctx, "k", 7)
			want(t, r.Decision, tiered.Granted)
			r.Settle(9)
			r = free.ReserveN(ctx, "k", 7)
			r.Cancel()
			r = shut.ReserveN(ctx, "k", 7)
			want(t, r.Decision, tiered.ExceedsBurst)
			r.Cancel()
			want(t, free.Peek(ctx, "k"), tiered.Granted)
			want(t, shut.Peek(ctx, "k"), tiered.ExceedsBurst)
			ok(t, errors.Join(free.Wait(ctx, "k"), free.Reset(ctx, "k"), shut.Reset(ctx, "k")))
			if err := shut.Wait(ctx, "k"); reasonOf(err) != tiered.ExceedsBurst {
				t.Errorf("%v", err)
			}
			want(t, tiered.All(free.For("k"), free.For("j")).Allow(ctx), tiered.Granted)
			want(t, tiered.All(free.For("k"), shut.For("j")).Allow(ctx), tiered.ExceedsBurst)
			for _, l := range []*tiered.Limiter{free, shut} {
				want(t, l.AllowN(ctx, "k", 0), tiered.InvalidCost)
				want(t, l.Allow(ctx, ""), tiered.InvalidKey)
			}
			time.Sleep(time.Second)
			if n := store.calls.Load() - calls; n != 0 || time.Since(start) != time.Second {
				t.Errorf("%d calls, %v", n, time.Since(start)-time.Second)
			}
			if s := free.Group().Stats().Policies["api"]; s.Tokens.Unlimited != 100_000+7+7+1+2 || s.Leases.Spent != 0 ||
				s.Tokens.Limited != 0 || s.Costs.Refunded != 0 {
				t.Errorf("%+v", s)
			}
			if s := shut.Group().Stats().Policies["api"]; s.Tokens.Blocked != 100+7+1+1 || s.Tokens.Limited != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestShadowAdmitsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := direct("api", 3)
		p.Shadow = true
		var mu sync.Mutex
		var told []tiered.Reason
		l := several(t, store, &tiered.Options{Trace: &tiered.Trace{Decision: func(d tiered.Decision) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, d.Reason)
		}}}, p, direct("real", 5))
		shadow, real := l[0], l[1]
		for i := range 5 {
			d := shadow.Allow(ctx, "k")
			if !d.Allowed || i < 3 && d.Reason != tiered.Granted ||
				i >= 3 && (d.Reason != tiered.Shadowed || d.Err() != nil || d.RetryAfter != 0) {
				t.Fatalf("number %d: %+v", i, d)
			}
		}
		for _, d := range []tiered.Decision{
			shadow.Allow(ctx, ""), shadow.AllowN(ctx, "k", 0), shadow.AllowN(ctx, "k", 4), shadow.Peek(ctx, "k"),
		} {
			if !d.Allowed || d.Reason != tiered.Shadowed {
				t.Errorf("%+v", d)
			}
		}
		// What was not taken is neither given back nor charged.
		shadow.ReserveN(ctx, "k", 2).Cancel()
		shadow.ReserveN(ctx, "k", 2).Settle(3)
		ok(t, shadow.Wait(ctx, "k"))
		if s := shadow.Group().Stats().Policies["api"]; s.Leases.Spent != 3 || s.Tokens.Shadowed != 2+1+4+2+2+1 ||
			s.Tokens.Limited != 2+2+2+1 {
			t.Errorf("%+v", s)
		}
		// It neither refuses for others nor speaks for them.
		uses := tiered.All(shadow.For("k"), real.For("k"))
		d := uses.Allow(ctx)
		if want(t, d, tiered.Granted); d.Policy != "real" || d.Remaining != 4 {
			t.Errorf("%+v", d)
		}
		r := uses.Reserve(ctx)
		want(t, r.Decision, tiered.Granted)
		r.Cancel()
		if d := tiered.All(shadow.For("k"), shadow.For("")).Allow(ctx); !d.Allowed || d.Reason != tiered.Shadowed {
			t.Errorf("%+v", d)
		}
		time.Sleep(200 * ms)
		if n := level(t, store.Memory, shadow, "k"); n != 0 {
			t.Errorf("%d left of the shadow's, want 0", n)
		}
		if n := level(t, store.Memory, real, "k"); n != 4 {
			t.Errorf("%d left, want 4", n)
		}
		// If another refuses, it has refused all the same, and nothing goes back to it.
		before := shadow.Stats().Requests.Shadowed
		var each [2]tiered.Decision
		want(t, tiered.All(shadow.For("k"), real.For("k").N(5)).AllowEach(ctx, each[:]), tiered.Limited)
		if n := shadow.Stats().Requests.Shadowed - before; n != 1 || each[0].Reason != tiered.Shadowed || each[0].Remaining != 0 {
			t.Errorf("%d counted, %+v", n, each[0])
		}
		synctest.Wait()
		mu.Lock()
		if told[0] != tiered.Granted || told[3] != tiered.Shadowed {
			t.Errorf("the hook heard %v", told)
		}
		mu.Unlock()
		set(t, shadow, func(p *tiered.Policy) { p.Shadow = false })
		want(t, shadow.Allow(ctx, "k"), tiered.Limited)
		books(t, shadow.Group())
	})
}

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

// Revision is another number after each change, so who asks for it before Policy never keeps an old
// policy. Nobody changes a policy by what Policy returned.
func TestRevision(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		g := fatal.Get(tiered.NewGroup(remote.NewMemory(), &tiered.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
		defer g.Close(ctx)
		l := fatal.Get(g.NewLimiter(freeAndPro))(t)
		last := l.Revision()
		changed := func(how string, want tiered.Limit) {
			t.Helper()
			now := l.Revision()
			if got := l.Policy().Limit; now <= last || got != want {
				t.Errorf("%s: revision %d after %d, limit %v, want %v", how, now, last, got, want)
			}
			last = now
		}
		ok(t, l.SetLimit(tiered.PerMinute(50)))
		changed("SetLimit", tiered.PerMinute(50))
		p := l.Policy()
		p.Limit, p.Plans["pro"] = tiered.PerMinute(60), tiered.PerMinute(1)
		if pro := l.Policy().Plans["pro"]; pro != freeAndPro.Plans["pro"] || l.Revision() != last {
			t.Errorf("whoever asks for the policy changes its plan to %v", pro)
		}
		ok(t, g.SetPolicies([]tiered.Policy{p}))
		changed("SetPolicies", tiered.PerMinute(60))
		p.Name = ""
		if err := l.SetPolicy(p); err == nil || l.Revision() != last {
			t.Errorf("%v: revision %d, want %d", err, l.Revision(), last)
		}
		if n := testing.AllocsPerRun(100, func() { l.Revision() }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
	var none *tiered.Limiter
	if none.Revision() != 0 || new(tiered.Limiter).Revision() != 0 {
		t.Error("a Limiter that decides nothing has a revision")
	}
}
