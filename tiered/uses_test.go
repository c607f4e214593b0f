package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// direct is a policy of n tokens that come back in a day, and are never leased.
func direct(name string, n int64) tiered.Policy {
	return tiered.Policy{Name: name, Limit: tiered.PerDay(1).WithBurst(n), Lease: neverLeased}
}

func TestAllTakesAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("user", 2), direct("tenant", 3))
		user, tenant := l[0], l[1]
		for i := range 2 {
			d := tiered.All(tenant.For("acme"), user.For("ann")).Allow(ctx)
			want(t, d, tiered.Granted)
			if d.Policy != "user" || d.Key != "ann" || d.Remaining != int64(1-i) || d.Tier != tiered.Remote {
				t.Errorf("%+v, want the tighter of the two: user's %d", d, 1-i)
			}
		}
		d := tiered.All(tenant.For("acme"), user.For("ann")).Allow(ctx)
		want(t, d, tiered.Limited)
		if d.Policy != "user" || d.Key != "ann" || d.RetryAfter < 23*time.Hour {
			t.Errorf("%+v, want the user's", d)
		}
		time.Sleep(100 * ms) // what the tenant gave is on its way back
		if n := level(t, store.Memory, tenant, "acme"); n != 1 {
			t.Errorf("the tenant has %d, want 1: a refused request costs nothing", n)
		}
		// Another user of the tenant has what is left.
		want(t, tiered.All(tenant.For("acme"), user.For("bob")).Allow(ctx), tiered.Granted)
		d = tiered.All(tenant.For("acme"), user.For("eve")).Allow(ctx)
		want(t, d, tiered.Limited)
		if d.Policy != "tenant" {
			t.Errorf("%+v, want the tenant's", d)
		}
		time.Sleep(100 * ms)
		if n := level(t, store.Memory, user, "eve"); n != 2 {
			t.Errorf("eve has %d, want 2", n)
		}
		for _, l := range l {
			if s := l.Stats().Requests; s.Granted != 3 || s.GrantedByRedis != 3 || s.Limited != 1 || s.LimitedByRedis != 1 {
				t.Errorf("%s: %+v, want three granted and one refused: what went back does not count", l.Policy().Name, s)
			}
		}
		books(t, user.Group())
	})
}

func TestAllNamesWhoRefusedForLongestAndWhoIsTightest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := func(name string, l tiered.Limit) tiered.Policy {
			return tiered.Policy{Name: name, Limit: l, Lease: neverLeased}
		}
		l := several(t, newDistant(ms), nil, p("second", tiered.PerSecond(1)), p("hour", tiered.PerHour(1)),
			p("minute", tiered.PerMinute(1)), p("tokens", tiered.PerDay(5000)))
		for _, l := range l[:3] {
			want(t, l.Allow(ctx, "k"), tiered.Granted)
		}
		for range 2 { // by Redis, and then from what is known
			d := tiered.All(l[0].For("k"), l[1].For("k"), l[2].For("k"), l[3].For("k").N(1000)).Allow(ctx)
			want(t, d, tiered.Limited)
			if d.Policy != "hour" || d.RetryAfter < 59*time.Minute {
				t.Errorf("%+v, want the hour's", d)
			}
		}
		// One that no waiting helps is stricter than any that it does.
		d := tiered.All(l[1].For("k"), l[3].For("k").N(5001), l[0].For("new")).Allow(ctx)
		if want(t, d, tiered.ExceedsBurst); d.Policy != "tokens" {
			t.Errorf("%+v, want the tokens'", d)
		}
		// 4000 tokens are four requests of 1000: tighter than five of one.
		five := several(t, newDistant(ms), nil, direct("requests", 6))[0]
		d = tiered.All(five.For("k"), l[3].For("j").N(1000)).Allow(ctx)
		want(t, d, tiered.Granted)
		if d.Policy != "tokens" || d.Remaining != 4000 {
			t.Errorf("%+v, want the tokens': four more requests, not five", d)
		}
	})
}

func TestAllIsOnePipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(2 * ms)
		l := several(t, store, nil, direct("user", 100), direct("ip", 100), direct("tenant", 100), direct("token", 1))
		for i := range 20 {
			key := fmt.Sprint(i)
			runs, calls, start := store.runs.Load(), store.calls.Load(), time.Now()
			uses := tiered.All(l[0].For(key), l[1].For(key), l[2].For("t"+key), l[3].For(key), l[0].For("another"+key),
				l[1].For("another"+key))
			want(t, uses.Allow(ctx), tiered.Granted)
			if runs, calls := store.runs.Load()-runs, store.calls.Load()-calls; runs != 1 || calls != 6 {
				t.Fatalf("%d pipelines with %d calls, want one with 6", runs, calls)
			}
			if took := time.Since(start); took != 2*ms {
				t.Fatalf("it took %v, want one round trip", took)
			}
		}
		// What goes back is due at one instant. The processors choose how much of it shares a
		// pipeline.
		calls := store.calls.Load()
		want(t, tiered.All(l[0].For("0"), l[1].For("0"), l[2].For("t0"), l[3].For("0")).Allow(ctx), tiered.Limited)
		time.Sleep(100 * ms)
		if calls := store.calls.Load() - calls; calls != 4+3 {
			t.Errorf("%d calls for a refusal, want four that take, and three that give back", calls)
		}
	})
}

// A lease at its low-water mark is renewed only after all keys have admitted. An earlier renewal
// would report the tokens as spent, and they could not be put back.
func TestRenewalWaitsForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := several(t, store, nil, tiered.Policy{Limit: tiered.PerHour(10_000)}, direct("user", 1))
		b := leased(t, l[0])
		want(t, l[1].Allow(ctx, "ann"), tiered.Granted)
		time.Sleep(ms)
		held, _ := b.Peek(tiered.Engine(l[0].Group()).Now()) // to take all of it but one is to come under any low-water mark
		start := time.Now()
		want(t, tiered.All(l[0].For("k").N(held-1), l[1].For("ann")).Allow(ctx), tiered.Limited)
		if now, _ := b.Peek(tiered.Engine(l[0].Group()).Now()); now != held {
			t.Errorf("%d held, %d before", now, held)
		}
		if calls := store.since(start); len(calls) != 1 {
			t.Errorf("%d calls, want the one that was refused", len(calls))
		}
		want(t, tiered.All(l[0].For("k").N(held-1), l[1].For("bob")).Allow(ctx), tiered.Granted)
		time.Sleep(10 * ms)
		if calls := store.since(start); len(calls) < 3 {
			t.Errorf("%d calls: the lease is not renewed when all have admitted", len(calls))
		}
	})
}

func TestUsesOfOneKeyAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("api", 10), direct("b", 10))
		calls := store.calls.Load()
		uses := tiered.All(l[0].For("k").N(2), l[1].For("k"), l[0].For("k").N(3), l[0].For("other").N(1))
		r := uses.Reserve(ctx)
		want(t, r.Decision, tiered.Granted)
		if n := store.calls.Load() - calls; n != 3 {
			t.Errorf("%d calls, want 3", n)
		}
		if n := level(t, store.Memory, l[0], "k"); n != 5 {
			t.Errorf("%d left, want 5", n)
		}
		r.Settle(4, 1, 0) // 4 + 0 instead of 2 + 3; the fourth has no number and stays
		r.Settle(0, 0, 0, 0)
		time.Sleep(100 * ms)
		for _, c := range []struct {
			l    *tiered.Limiter
			key  string
			want int64
		}{{l[0], "k", 6}, {l[1], "k", 9}, {l[0], "other", 9}} {
			if n := level(t, store.Memory, c.l, c.key); n != c.want {
				t.Errorf("%s of %s: %d left, want %d", c.key, c.l.Policy().Name, n, c.want)
			}
		}
		if d := tiered.All(l[0].For("k").N(6), l[0].For("k").N(5)).Allow(ctx); d.Reason != tiered.ExceedsBurst {
			t.Errorf("%+v: 6 + 5 of a burst of 10 can never be", d)
		}
		for _, n := range []int64{0, -1, tiered.MaxTokens + 1, 1 << 62} {
			if d := tiered.All(l[0].For("k").N(1), l[0].For("k").N(n)).Allow(ctx); d.Allowed ||
				n < 1 && d.Reason != tiered.InvalidCost || n > 1 && d.Reason != tiered.ExceedsBurst {
				t.Errorf("1 + %d: %+v", n, d)
			}
		}
	})
}

func TestReservationOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, direct("requests", 10), direct("tokens", 1000))
		uses := tiered.All(l[1].For("k").N(300), l[0].For("k"))
		settled := func(r tiered.Reservation, tokens, requests int64) {
			t.Helper()
			time.Sleep(100 * ms)
			if n := level(t, store.Memory, l[1], "k"); n != tokens {
				t.Errorf("%d tokens left, want %d", n, tokens)
			}
			if n := level(t, store.Memory, l[0], "k"); n != requests {
				t.Errorf("%d requests left, want %d", n, requests)
			}
		}
		r := uses.Reserve(ctx)
		r.Settle(120) // the request stays
		settled(r, 880, 9)
		r = uses.Reserve(ctx)
		r.Cancel()
		r.Settle(5, 5)
		settled(r, 880, 9)
		r = uses.Reserve(ctx)
		r.Settle() // nothing to correct
		r.Cancel()
		settled(r, 580, 8)
		r = uses.Reserve(ctx)
		r.Settle(700, 1, 9, 9) // numbers without a use mean nothing
		want(t, l[1].Allow(ctx, "k"), tiered.Limited)
		settled(r, -120, 7)
		r = uses.Reserve(ctx)
		want(t, r.Decision, tiered.Limited)
		r.Cancel()
		settled(r, -120, 7)
		books(t, l[0].Group())
	})
}

func TestUsesThatAreMistakes(t *testing.T) {
	l := several(t, remote.NewMemory(), nil, direct("api", 10))[0]
	for name, c := range map[string]struct {
		uses tiered.Use
		want tiered.Reason
	}{
		"the zero Use":    {tiered.Use{}, tiered.Unknown},
		"no use":          {tiered.All(), tiered.Unknown},
		"All of the zero": {tiered.All(tiered.Use{}), tiered.Unknown},
		"a zero Use":      {tiered.All(l.For("k"), tiered.Use{}), tiered.Unknown},
		"an empty key":    {tiered.All(l.For("k"), l.For("")), tiered.InvalidKey},
		"a cost of 0":     {tiered.All(l.For("k"), l.For("j").N(0)), tiered.InvalidCost},
		"above the burst": {tiered.All(l.For("k"), l.For("j").N(11)), tiered.ExceedsBurst},
		"a zero among six": {
			tiered.All(l.For("1"), l.For("2"), l.For("3"), l.For("4"), l.For("5"), tiered.Use{}), tiered.Unknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := c.uses.Allow(ctx); d.Allowed || d.Reason != c.want {
				t.Errorf("Allow: %+v, want %v", d, c.want)
			}
			r := c.uses.Reserve(ctx)
			if r.Cancel(); r.Allowed || r.Reason != c.want {
				t.Errorf("Reserve: %+v, want %v", r.Decision, c.want)
			}
			r.Settle(1, 2, 3)
			var e *tiered.LimitedError
			if err := c.uses.Wait(ctx); !errors.As(err, &e) || e.Decision.Reason != c.want {
				t.Errorf("Wait: %v, want %v", err, c.want)
			}
			if d := c.uses.Allow(nil); d.Allowed { //nolint:staticcheck // it must not panic
				t.Errorf("without a context: %+v", d)
			}
		})
	}
	if s := l.Stats(); s.Leases.Granted != 0 {
		t.Errorf("%+v: something was taken", s)
	}
}

func TestAllOverGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := newDistant(ms), newDistant(ms)
		a := several(t, one, &tiered.Options{Budget: 30 * ms}, direct("api", 5))[0]
		time.Sleep(3 * time.Second) // so that the two count time from different moments
		b := several(t, other, &tiered.Options{Budget: 10 * ms}, direct("api", 2))[0]
		for range 2 {
			want(t, tiered.All(a.For("k"), b.For("k")).Allow(ctx), tiered.Granted)
		}
		d := tiered.All(b.For("k"), a.For("k")).Allow(ctx)
		if want(t, d, tiered.Limited); d.Burst != 2 {
			t.Errorf("%+v, want b's", d)
		}
		time.Sleep(100 * ms)
		if n := level(t, one.Memory, a, "k"); n != 3 {
			t.Errorf("%d left, want 3", n)
		}
		one.loseRequests.Store(true)
		start := time.Now()
		tiered.All(b.For("new"), a.For("new")).Allow(ctx)
		if took := time.Since(start); took != 10*ms {
			t.Errorf("it took %v, want the shorter Budget", took)
		}
	})
}

func BenchmarkAll(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := hot(b, "k")
			var uses []tiered.Use
			for i := range n {
				m := must(l.Group().NewLimiter(tiered.Policy{Name: fmt.Sprint("p", i), Limit: tiered.PerSecond(1 << 36)}))
				for m.Allow(ctx, "k").Tier != tiered.Local {
				}
				uses = append(uses, m.For("k"))
			}
			together := tiered.All(uses...)
			b.ReportAllocs()
			for b.Loop() {
				together.Allow(ctx)
			}
		})
	}
}

// What All joined can be changed, joined with more and charged like one use, and what it was made
// of stays as it was.
func TestJoinedUsesAreAUse(t *testing.T) {
	ctx := context.Background()
	patient := &tiered.Options{Budget: 10 * time.Second, Timeout: 10 * time.Second} // a busy machine is slow
	l := several(t, remote.NewMemory(), patient, direct("a", 100), direct("b", 100))
	six := make([]tiered.Use, 0, 6)
	for _, key := range []string{"1", "2", "3", "4", "5", "6"} {
		six = append(six, l[0].For(key))
	}
	pair, many := tiered.All(l[1].For("x"), l[0].For("y")), tiered.All(six...)
	each := make([]tiered.Decision, 9)
	tell := func(u tiered.Use) { u.AllowEach(ctx, each) }

	tell(tiered.All(pair.N(3), many.N(2), l[0].For("z")))
	for i, want := range []struct {
		key  string
		cost int64
	}{{"x", 3}, {"y", 3}, {"1", 2}, {"2", 2}, {"3", 2}, {"4", 2}, {"5", 2}, {"6", 2}, {"z", 1}} {
		if d := each[i]; d.Key != want.key || d.Cost != want.cost || d.Reason != tiered.Granted {
			t.Errorf("use %d: %v of %q, want %+v", i, d, d.Key, want)
		}
	}
	tell(tiered.All(pair, many))
	for i, d := range each[:8] {
		if d.Cost != 1 {
			t.Errorf("use %d costs %d after a copy of it was changed", i, d.Cost)
		}
	}
	if err := tiered.All(pair.N(5), l[0].For("")).Charge(); err == nil {
		t.Error("a use that is not valid was charged")
	}
	if d := l[1].Peek(ctx, "x"); d.Remaining != 96 {
		t.Errorf("%v, want 96 left: a charge that is not valid takes nothing", d)
	}
	if err := pair.N(5).Charge(); err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"y", "x"} {
		if d := l[i].Peek(ctx, key); d.Remaining != 91 {
			t.Errorf("%v of %q, want 91 left", d, key)
		}
	}
}
