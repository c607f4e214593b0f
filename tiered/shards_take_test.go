package tiered

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Leased tokens are decided in the process, by the first shard and by the second.
func TestShardsAreLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, Policy{Name: "api", Limit: PerSecond(1000).WithBurst(400), Shards: 4})[0]
		var local, borrowed, admitted, refused int
		for range 5000 { // twice what one shard has, half of the limit
			d := l.Allow(t.Context(), "k")
			switch {
			case !d.Allowed:
				refused++
			default:
				admitted++
				if d.Tier == Local {
					local++
				}
			}
			time.Sleep(2 * ms)
		}
		a, b := l.at("k")
		borrowed = int(g(l, b, "k").Stats().Spent)
		if own := int(g(l, a, "k").Stats().Spent); own+borrowed != admitted || own < 2000 || borrowed < 2000 {
			t.Errorf("%d from the first and %d from the second, of %d", own, borrowed, admitted)
		}
		if refused > 150 || local < admitted*9/10 {
			t.Errorf("%d admitted, %d of them by leases, %d refused", admitted, local, refused)
		}
		if calls := store.calls.Load(); calls > 1000 {
			t.Errorf("%d calls", calls)
		}
		books(t, l.group)
	})
}

// No request may cost more than the smallest shard holds: by any process, whichever shards it has.
func TestRequestLargerThanAShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 8 {
			l := several(t, newDistant(ms), nil, sharded("api", 42, 4))[0]
			ctx := t.Context()
			d := l.AllowN(ctx, "k", 11) // some have 11
			if want(t, d, ExceedsBurst); d.Burst != 10 || d.RetryAfter != 0 {
				t.Errorf("%+v, want the most that a request may cost", d)
			}
			d = All(l.ForN("k", 11)).Allow(ctx)
			if want(t, d, ExceedsBurst); d.Burst != 10 {
				t.Errorf("%+v", d)
			}
			if err := l.WaitN(ctx, "k", 11); !errors.Is(err, ErrExceedsBurst) {
				t.Errorf("%v", err)
			}
			want(t, l.AllowN(ctx, "k", 10), Granted)
			want(t, l.AllowN(ctx, "k", 0), InvalidCost)
			want(t, l.AllowN(ctx, "", 1), InvalidKey)
		}
	})
}

// Returned tokens go to the shard that they came from, and debts are charged there.
func TestReservationOfAShardGoesBackThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("api", 40, 4))[0]
		ctx := t.Context()
		a, b := l.at("k")
		own := l.ReserveN(ctx, "k", 10)
		lent := l.ReserveN(ctx, "k", 6)
		want(t, own.Decision, Granted)
		want(t, lent.Decision, Granted)
		check := func(first, second int64) {
			t.Helper()
			time.Sleep(100 * ms)
			levels := inShards(t, store.Memory, l, "k")
			for i, n := range levels {
				if w := map[int]int64{a: first, b: second}; i == a && n != w[a] || i == b && n != w[b] ||
					i != a && i != b && n != 10 {
					t.Fatalf("the shards have %v, want %d in %d and %d in %d", levels, first, a, second, b)
				}
			}
		}
		check(0, 4)
		lent.Settle(8)
		check(0, 2)
		own.Cancel()
		check(10, 2)
		lent.Cancel() // once
		check(10, 2)
		time.Sleep(6 * second) // a denial is believed for 5 s
		r := All(l.ForN("k", 10), l.ForN("j", 1)).Reserve(ctx)
		want(t, r.Decision, Granted)
		q := All(l.ForN("k", 2), l.ForN("j", 1)).Reserve(ctx)
		want(t, q.Decision, Granted)
		check(0, 0)
		q.Cancel()
		check(0, 2)
		r.Settle(1, 1)
		check(9, 2)
		books(t, l.group)
	})
}

// An evicted key comes back at the same shards, and nothing that was counted of it is lost.
func TestEvictedShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, &Options{MaxKeys: 4}, sharded("api", 8, 4))[0]
		ctx := t.Context()
		admitted, refused := int64(0), int64(0)
		for round := range 5 {
			for key := range 20 {
				if l.Allow(ctx, fmt.Sprint(key)).Allowed {
					admitted++
				} else {
					refused++
				}
			}
			_ = round
		}
		if admitted != 20*4 || refused != 20 {
			t.Errorf("%d admitted, %d refused", admitted, refused)
		}
		s := l.group.Stats().Policies["api"]
		if s.Spent != admitted || s.Limited != refused || len(s.Top) != topKeys {
			t.Errorf("%+v", s)
		}
		for _, k := range s.Top {
			if k.Limited != 1 {
				t.Errorf("%+v", k)
			}
		}
		books(t, l.group)
	})
}

func TestShardsAllocateNothing(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	ctx := context.Background()
	l, err := New(remote.NewMemory(), Policy{Name: "api", Limit: PerSecond(1 << 36), Shards: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	warmed(t, func() bool { return l.Allow(ctx, "k").Tier == Local })
	if n := allocates(t, l, "k"); n != 0 {
		t.Errorf("%v allocations per decision from a shard's lease", n)
	}
	d, err := New(remote.NewMemory(), Policy{Name: "api", Limit: PerDay(4), Shards: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(ctx)
	for d.Allow(ctx, "k").Allowed {
	}
	if n := testing.AllocsPerRun(10_000, func() {
		if d.Allow(ctx, "k").Reason != Limited {
			t.Fatal("not refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations per decision that both shards are known to refuse", n)
	}
}
