package tiered

import (
	"testing"
	"testing/synctest"
	"time"
)

// A request that the first shard refuses is admitted by the second. When both refuse, the sooner of them says when
// to come back.
func TestSecondShardIsAskedBeforeRefusing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("api", 42, 4))[0]
		ctx := t.Context()
		a, b := l.at("k")
		d := l.Allow(ctx, "k")
		if want(t, d, Granted); d.Burst != 42 || d.Remaining < 36 || d.Remaining > 40 || d.Tier != Remote ||
			d.Key != "k" || d.Policy != "api" {
			t.Errorf("%+v, want four times what the shard has", d)
		}
		held := inShards(t, store.Memory, l, "k")
		both := held[a] + held[b]
		if sum := held[0] + held[1] + held[2] + held[3]; sum != 41 {
			t.Errorf("the shards have %v", held)
		}
		for i := range both {
			start := time.Now()
			d := l.Allow(ctx, "k")
			want(t, d, Granted)
			if i == held[a] && time.Since(start) != 2*ms {
				t.Errorf("the first that is borrowed took %v, want two round trips", time.Since(start))
			}
			if i > held[a] && time.Since(start) != ms {
				t.Errorf("what is borrowed took %v, want one round trip: the first is known to refuse",
					time.Since(start))
			}
		}
		for i := range 3 { // by Redis, and then from what is known
			d := l.Allow(ctx, "k")
			want(t, d, Limited)
			// A shard's token takes four times as long, and the first shard was empty first.
			if d.Burst != 42 || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > 4*24*time.Hour ||
				d.ResetAfter < 41*24*time.Hour {
				t.Errorf("%+v", d)
			}
			wait, _ := g(l, a, "k").Denied(l.group.now())
			other, _ := g(l, b, "k").Denied(l.group.now())
			if i > 0 && d.RetryAfter != min(wait, other) || wait >= other {
				t.Errorf("retry after %v, want the sooner of %v and %v", d.RetryAfter, wait, other)
			}
			if i > 0 && d.Tier != Local {
				t.Errorf("%+v", d)
			}
		}
		left := inShards(t, store.Memory, l, "k")
		for i, n := range left {
			if i != a && i != b && n != held[i] || (i == a || i == b) && n != 0 {
				t.Errorf("the shards have %v, had %v, and the process is at %d and %d", left, held, a, b)
			}
		}
		// What was refused and then admitted was not refused; what both refused was refused once.
		s := l.group.Stats().Policies["api"]
		if s.Limited != 3 || s.Spent != both+1 || len(s.Top) != 1 || s.Top[0].Limited != 3 || s.Top[0].Key != "k" ||
			s.Top[0].RetryAfter == 0 {
			t.Errorf("%+v", s)
		}
		if len(l.group.Stats().Policies) != 1 || len(l.group.Policies()) != 1 {
			t.Errorf("%+v", l.group.Policies())
		}
		books(t, l.group)
	})
}

func TestWaitForAShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, Policy{
			Name: "api", Limit: PerSecond(4).WithBurst(4), Shards: 4,
			Lease: Lease{Size: NoLease},
		})[0]
		ctx := t.Context()
		start := time.Now()
		for range 10 { // two at once, then two a second: the process has two of four shards
			if err := l.Wait(ctx, "k"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < 4*second || took > 4500*ms {
			t.Errorf("10 took %v, want 4 s", took)
		}
		start = time.Now()
		for range 4 {
			if err := All(l.For("k"), l.For("j")).Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < second || took > 2500*ms {
			t.Errorf("4 took %v, want 1 to 2 s", took)
		}
	})
}

// In All a key's second shard is asked as for a single key, and its tokens are returned when another key refuses.
func TestAllBorrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("hot", 40, 4), direct("user", 15))
		hot, user := l[0], l[1]
		ctx := t.Context()
		a, b := hot.at("k")
		for range 15 {
			want(t, All(hot.For("k"), user.For("ann")).Allow(ctx), Granted)
		}
		for range 2 { // by Redis, and from what is known
			d := All(hot.For("k"), user.For("ann")).Allow(ctx)
			if want(t, d, Limited); d.Policy != "user" {
				t.Errorf("%+v", d)
			}
		}
		time.Sleep(100 * ms)
		if n := inShards(t, store.Memory, hot, "k"); n[a] != 0 || n[b] != 5 {
			t.Errorf("the shards have %v, want none in %d and 5 in %d: what was refused costs nothing", n, a, b)
		}
		for range 5 {
			want(t, All(hot.For("k"), user.For("bob")).Allow(ctx), Granted)
		}
		d := All(hot.For("k"), user.For("bob")).Allow(ctx)
		if want(t, d, Limited); d.Policy != "hot" || d.Key != "k" || d.Burst != 40 || d.RetryAfter <= 0 {
			t.Errorf("%+v", d)
		}
		time.Sleep(100 * ms)
		if n := level(t, store.Memory, user, "bob"); n != 10 {
			t.Errorf("bob has %d, want 10", n)
		}
		if s := hot.group.Stats().Policies["hot"]; s.Limited != 1 {
			t.Errorf("%+v", s)
		}
		books(t, hot.group)
	})
}

// Both shards are asked within one Budget. If the second one's answer comes later, the first one's counts, and tokens
// that the second granted are returned.
func TestBorrowingStaysWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(15 * ms) // of a Budget of 20
		l := several(t, store, nil, sharded("api", 8, 4))[0]
		ctx := t.Context()
		for range 2 {
			want(t, l.Allow(ctx, "k"), Granted)
		}
		for _, ask := range []func() Decision{
			func() Decision { return l.Allow(ctx, "k") },
			func() Decision { return All(l.For("k")).Allow(ctx) },
		} {
			if err := l.Reset(ctx, "k"); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				want(t, l.Allow(ctx, "k"), Granted)
			}
			start := time.Now()
			d := ask()
			if want(t, d, Limited); time.Since(start) != 20*ms || d.RetryAfter <= 0 {
				t.Errorf("%+v after %v", d, time.Since(start))
			}
			time.Sleep(second)
			_, b := l.at("k")
			if levels := inShards(t, store.Memory, l, "k"); levels[b] != 2 {
				t.Errorf("the second shard has %d, want both of its tokens", levels[b])
			}
		}
	})
}
