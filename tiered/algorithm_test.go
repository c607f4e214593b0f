package tiered

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// windowPolicies are those of ten per minute.
func windowPolicies() []Policy {
	limit := Limit{Tokens: 10, Per: time.Minute}
	return []Policy{
		{Name: "log", Limit: limit, Algorithm: SlidingLog},
		{Name: "fixed", Limit: limit, Algorithm: FixedWindow, Lease: Lease{Size: NoLease}},
		{Name: "fixed-leased", Limit: limit, Algorithm: FixedWindow},
		{Name: "sliding", Limit: limit, Algorithm: SlidingWindow, Lease: Lease{Size: NoLease}},
		{Name: "sliding-leased", Limit: limit, Algorithm: SlidingWindow},
		{Name: "sliding-two", Limit: limit, Algorithm: SlidingWindow, Also: []Limit{{Tokens: 100, Per: time.Hour}}},
	}
}

// eachWindow runs f in a bubble with a limiter of each algorithm over a Memory.
func eachWindow(t *testing.T, f func(t *testing.T, l *Limiter, m *remote.Memory)) {
	for _, p := range windowPolicies() {
		t.Run(p.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := remote.NewMemory()
				l, err := New(m, p, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(context.Background())
				f(t, l, m)
			})
		})
	}
}

// A window admits what it holds, refuses the next with a time at which it is admitted again, and not much before.
func TestWindowsRefuseAndAdmitAgain(t *testing.T) {
	ctx := context.Background()
	eachWindow(t, func(t *testing.T, l *Limiter, _ *remote.Memory) {
		for i := range 10 {
			if d := l.Allow(ctx, "k"); !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
		}
		d := l.Allow(ctx, "k")
		if d.Allowed || d.Reason != Limited || d.RetryAfter <= 0 || d.RetryAfter > 63*time.Second || d.ResetAfter < d.RetryAfter-2*time.Second {
			t.Fatalf("%+v", d)
		}
		if d := l.Peek(ctx, "k"); d.Allowed || d.RetryAfter <= 0 {
			t.Errorf("peek: %+v", d)
		}
		time.Sleep(d.RetryAfter)
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Errorf("after its own retry time: %+v", d)
		}
	})
}

// What is given back can be taken again; what cost more is charged; a Reset forgets.
func TestWindowsGiveBack(t *testing.T) {
	ctx := context.Background()
	eachWindow(t, func(t *testing.T, l *Limiter, _ *remote.Memory) {
		r := l.Reserve(ctx, "k", 10)
		if !r.Allowed {
			t.Fatal(r.Decision)
		}
		time.Sleep(2 * time.Second)
		if d := l.Allow(ctx, "k"); d.Allowed {
			t.Fatalf("%+v", d)
		}
		r.Settle(4)
		time.Sleep(6 * time.Second) // the refund is under way, and a denial is believed for 5 s
		if d := l.Peek(ctx, "k"); d.Remaining != 6 {
			t.Errorf("after the refund: %+v", d)
		}
		if d := l.AllowN(ctx, "k", 7); d.Allowed {
			t.Errorf("more than came back: %+v", d)
		}
		time.Sleep(6 * time.Second)
		r = l.Reserve(ctx, "k", 2)
		if !r.Allowed {
			t.Fatalf("what came back: %+v", r.Decision)
		}
		r.Settle(5) // 3 more
		time.Sleep(time.Second)
		if d := l.Peek(ctx, "k"); d.Remaining != 1 {
			t.Errorf("after the debt: %+v", d)
		}
		if err := l.Reset(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		if d := l.Peek(ctx, "k"); d.Remaining != 10 {
			t.Errorf("after the reset: %+v", d)
		}
		if d := l.AllowN(ctx, "k", 10); !d.Allowed {
			t.Errorf("after the reset: %+v", d)
		}
	})
}

// What the share admitted in an outage is charged where it was admitted.
func TestWindowsChargeAnOutage(t *testing.T) {
	ctx := context.Background()
	eachWindow(t, func(t *testing.T, l *Limiter, m *remote.Memory) {
		time.Sleep(time.Second)
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Fatal(d)
		}
		time.Sleep(3 * time.Second) // a lease is over
		m.Fail(context.DeadlineExceeded)
		shared := 0
		for range 20 {
			if d := l.Allow(ctx, "k"); d.Reason == Shared {
				shared++
			}
			time.Sleep(50 * time.Millisecond)
		}
		if shared != 9 {
			t.Fatalf("the share admitted %d", shared)
		}
		m.Fail(nil)
		time.Sleep(3 * time.Second)
		l.Allow(ctx, "k") // settles
		time.Sleep(3 * time.Second)
		if d := l.Peek(ctx, "k"); d.Remaining > 3 { // a debt is cut where a lease, a quarter at most, is out meanwhile
			t.Errorf("%+v", d)
		}
		if s := l.group.Stats().Policies[l.policy.Name]; s.Settled == 0 {
			t.Errorf("%+v", s)
		}
	})
}
