package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// outage takes the store away until the breaker is open.
func outage(t *testing.T, store *distant, l *tiered.Limiter) {
	t.Helper()
	store.loseRequests.Store(true)
	n := tiered.Dispatch(l.Group()).Node(tiered.Engine(l.Group()).Store.Node(tiered.Engine(l.Group()).Store.Key(l.Policy().Name, "x")))
	for i := 0; n.State() == failover.Closed; i++ {
		if i > 100 {
			t.Fatal("the breaker does not open")
		}
		l.Allow(t.Context(), "outage")
		time.Sleep(tiered.DefaultTimeout)
	}
}

func TestBudgetIsForAllTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		var l []*tiered.Limiter
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			p := direct(name, 100)
			p.FailMode = tiered.FailOpen
			l = append(l, several(t, store, nil, p)[0])
		}
		time.Sleep(time.Second)
		store.loseRequests.Store(true)
		var uses []tiered.Use
		for _, l := range l {
			uses = append(uses, l.For("k"))
		}
		start := time.Now()
		d := tiered.All(uses...).Allow(t.Context())
		if took := time.Since(start); took != tiered.DefaultBudget || d.Reason != tiered.Open {
			t.Errorf("%+v after %v, want fail-open's after one Budget", d, took)
		}
	})
}

func TestOutageIsDecidedByEachFailMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := func(name string, m tiered.FailMode) tiered.Policy {
			return tiered.Policy{Name: name, Limit: tiered.PerDay(1).WithBurst(3), Lease: neverLeased, FailMode: m}
		}
		l := several(t, store, nil, p("local", tiered.FailLocal), p("open", tiered.FailOpen), p("closed",
			tiered.FailClosed))
		local, open, closed := l[0], l[1], l[2]
		outage(t, store, open)
		calls := store.calls.Load()

		want1 := func(d tiered.Decision, r tiered.Reason, policy string) {
			t.Helper()
			if d.Reason != r || d.Policy != policy || d.Allowed != (r == tiered.Fallback || r == tiered.Open) {
				t.Fatalf("%+v, want %v of %s", d, r, policy)
			}
		}
		// Closed refuses, and takes nothing from the share that was asked before it.
		for range 10 {
			want1(tiered.All(local.For("k"), open.For("k"), closed.For("k")).Allow(ctx), tiered.Unavailable, "closed")
		}
		// The share is whole, and is spent by what is admitted.
		for range 3 {
			want1(tiered.All(local.For("k"), open.For("k2")).Allow(ctx), tiered.Fallback, "local")
		}
		want1(tiered.All(local.For("k"), open.For("k2")).Allow(ctx), tiered.FallbackSpent, "local")
		want1(tiered.All(open.For("k"), open.For("k2")).Allow(ctx), tiered.Open, "open")
		// A share that is used up takes nothing from another.
		for range 10 {
			want1(tiered.All(local.For("a"), local.For("k")).Allow(ctx), tiered.FallbackSpent, "local")
		}
		for range 3 {
			want1(tiered.All(local.For("a"), local.For("b")).Allow(ctx), tiered.Fallback, "local")
		}
		// Unavailable is stricter than a share that comes back.
		want1(tiered.All(local.For("a"), closed.For("k")).Allow(ctx), tiered.Unavailable, "closed")
		s := local.Group().Stats().Policies
		if s["local"].Tokens.Fallback != 9 || s["open"].Tokens.Open < 3+1 || s["closed"].Tokens.Unavailable != 11 {
			t.Errorf("%+v", s)
		}
		if n := store.calls.Load() - calls; n > 1 {
			t.Errorf("%d calls into an outage", n)
		}

		// A share that was taken when another refused would be lost: the debt is not.
		store.loseRequests.Store(false)
		soonInBubble(t, func() bool { return closed.Allow(ctx, "probe").Reason == tiered.Granted })
		want(t, local.Allow(ctx, "a"), tiered.Limited)
	})
}

// When Redis stops answering and no breaker is open yet, a share does not pay for a request that another policy
// refuses.
func TestShareDoesNotPayForARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		share, closed := direct("a-share", 3), direct("closed", 3)
		closed.FailMode = tiered.FailClosed
		l := several(t, store, nil, share, closed)
		time.Sleep(time.Second)
		store.loseRequests.Store(true)
		d := tiered.All(l[0].For("k"), l[1].For("k")).Allow(t.Context())
		if want(t, d, tiered.Unavailable); d.Policy != "closed" {
			t.Fatalf("%+v", d)
		}
		for range 3 {
			if d := l[0].Allow(t.Context(), "k"); d.Reason != tiered.Fallback {
				t.Fatalf("%+v, want the share: it is untouched", d)
			}
		}
	})
}

// soonInBubble waits for what happens within ten virtual seconds.
func soonInBubble(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(10 * ms) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// In an outage of one of two stores, the other still decides its keys. If a share refuses, their tokens are returned.
func TestOutageOfOneOfTwoStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well, ill := newDistant(ms), newDistant(ms)
		a := several(t, well, nil, direct("a", 100))[0]
		b := several(t, ill, nil, direct("b", 2))[0]
		time.Sleep(time.Second)
		outage(t, ill, b)
		for range 2 {
			if d := tiered.All(a.For("k"), b.For("k")).Allow(t.Context()); !d.Allowed || d.Reason != tiered.Fallback {
				t.Fatalf("%+v, want b's share: it is the tighter", d)
			}
		}
		for range 10 {
			want(t, tiered.All(a.For("k"), b.For("k")).Allow(t.Context()), tiered.FallbackSpent)
		}
		time.Sleep(100 * ms)
		if n := level(t, well.Memory, a, "k"); n != 98 {
			t.Errorf("%d left, want 98", n)
		}
	})
}

func TestAllAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := direct("closed", 5)
		p.FailMode = tiered.FailClosed
		l := several(t, store, nil, direct("a", 5), p)
		ok(t, l[0].Group().Close(t.Context()))
		calls := store.calls.Load()
		if d := tiered.All(l[0].For("k"), l[0].For("j")).Allow(t.Context()); d.Reason != tiered.Fallback {
			t.Errorf("%+v", d)
		}
		if d := tiered.All(l[0].For("k"), l[1].For("j")).Allow(t.Context()); d.Reason != tiered.Unavailable {
			t.Errorf("%+v", d)
		}
		if n := store.calls.Load() - calls; n > 0 {
			t.Errorf("%d calls after Close", n)
		}
	})
}

func TestCanceledAllTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(10 * ms)
		l := several(t, store, nil, direct("a", 5), direct("b", 5))
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(3*ms, cancel)
		d := tiered.All(l[0].For("k"), l[1].For("k")).Allow(ctx)
		if d.Reason != tiered.Canceled || d.Allowed {
			t.Errorf("%+v", d)
		}
		time.Sleep(200 * ms)
		for _, l := range l {
			if n := level(t, store.Memory, l, "k"); n != 5 {
				t.Errorf("%s: %d left, want 5", l.Policy().Name, n)
			}
		}
		books(t, l[0].Group())
	})
}
