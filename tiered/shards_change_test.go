package tiered

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
)

// Peek sees all the shards of a key, Reset fills all of them, and what one process resets another one has.
func TestPeekAndResetOfShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("api", 42, 4))[0]
		ctx := t.Context()
		if d := l.Peek(ctx, "k"); d.Reason != Granted || d.Remaining != 42 || d.Burst != 42 || d.ResetAfter != 0 ||
			d.Tier != Remote {
			t.Errorf("%+v", d)
		}
		n := int64(0)
		for ; l.Allow(ctx, "k").Allowed; n++ {
		}
		d := l.Peek(ctx, "k")
		if d.Reason != Limited || d.Remaining != 42-n || d.RetryAfter <= 0 || d.RetryAfter > 4*24*time.Hour ||
			d.ResetAfter < time.Duration(n-2)*24*time.Hour {
			t.Errorf("after %d: %+v, want what Allow would say, and what the others have", n, d)
		}
		calls := store.runs.Load()
		start := time.Now()
		l.Peek(ctx, "k")
		if time.Since(start) > 2*ms || store.runs.Load()-calls > dispatch.MaxSenders {
			t.Errorf("%v and %d pipelines", time.Since(start), store.runs.Load()-calls)
		}
		if err := l.Reset(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		if levels := inShards(t, store.Memory, l, "k"); levels[0]+levels[1]+levels[2]+levels[3] != 42 {
			t.Errorf("after Reset: %v", levels)
		}
		want(t, l.Allow(ctx, "k"), Granted)
		if d := l.Peek(ctx, "k"); d.Remaining != 41 {
			t.Errorf("%+v", d)
		}
		store.Fail(errors.New("down"))
		if d := l.Peek(ctx, "unknown"); d.Reason != Unavailable {
			t.Errorf("%+v", d)
		}
		if d := l.Peek(ctx, "k"); d.Reason != Granted || d.Tier != Local || d.Remaining < 20 {
			t.Errorf("%+v, want what is known here", d)
		}
		if err := l.Reset(ctx, "k"); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		if d := l.Peek(ctx, ""); d.Reason != InvalidKey {
			t.Errorf("%+v", d)
		}
	})
}

// PerKey, SetPolicy, shadow mode, Unlimited and Blocked apply to the key, whichever shard decides.
func TestShardsOfLimitsThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		plans := map[string]Limit{
			"gold": PerDay(1).WithBurst(80), "free": Unlimited(), "out": Blocked(),
			"small": PerDay(1).WithBurst(3),
		}
		asked := 0
		p := sharded("api", 40, 4)
		p.PerKey = func(key string) Limit { asked++; return plans[key] }
		l := several(t, store, nil, p)[0]
		ctx := t.Context()
		count := func(key string) (n int64) {
			t.Helper()
			for l.Allow(ctx, key).Allowed {
				n++
			}
			return n
		}
		if n := count("gold"); n != 40 {
			t.Errorf("gold: %d, want two shards of four", n)
		}
		if n := count("none"); n != 20 || asked != 4 {
			t.Errorf("none: %d after %d look-ups", n, asked)
		}
		if d := l.Allow(ctx, "gold"); d.Burst != 80 {
			t.Errorf("%+v", d)
		}
		if d := l.AllowN(ctx, "free", 1e6); d.Reason != Granted || d.Burst != Unlimited().Tokens ||
			d.Remaining != d.Burst {
			t.Errorf("%+v", d)
		}
		if d := l.Allow(ctx, "out"); d.Reason != ExceedsBurst || d.Burst != 0 {
			t.Errorf("%+v", d)
		}
		if d := l.Peek(ctx, "out"); d.Reason != ExceedsBurst {
			t.Errorf("%+v", d)
		}
		// A limit that cannot be split is no answer.
		if d := l.Allow(ctx, "small"); d.Burst != 40 || l.group.Stats().Policies["api"].PerKeyFaults != 1 {
			t.Errorf("%+v", d)
		}
		if s := l.group.Stats().Policies["api"]; s.Unlimited != 1e6 || s.Blocked != 1 {
			t.Errorf("%+v", s)
		}
		plans["gold"] = PerDay(1).WithBurst(400)
		l.Refresh("gold")
		if d := l.Allow(ctx, "gold"); d.Reason != Limited || d.Burst != 400 {
			t.Errorf("%+v, want the new plan, and no gift", d)
		}
		if err := l.Reset(ctx, "gold"); err != nil {
			t.Fatal(err)
		}
		if n := count("gold"); n != 200 {
			t.Errorf("gold: %d", n)
		}
		set(t, l, func(p *Policy) { p.PerKey = nil; p.Limit = PerDay(1).WithBurst(20) })
		if d := l.Allow(ctx, "new"); d.Reason != Granted || d.Burst != 20 {
			t.Errorf("%+v", d)
		}
		if n := count("new"); n != 9 {
			t.Errorf("new: %d, want 10 with the first", n)
		}
		set(t, l, func(p *Policy) { p.Shadow = true })
		if d := l.Allow(ctx, "new"); d.Reason != Shadowed || !d.Allowed {
			t.Errorf("%+v", d)
		}
		if d := All(l.For("new")).Allow(ctx); d.Reason != Shadowed {
			t.Errorf("%+v", d)
		}
		if s := l.group.Stats().Policies["api"]; s.Shadowed != 2 {
			t.Errorf("%+v", s)
		}
		set(t, l, limitTo(Blocked()))
		set(t, l, func(p *Policy) { p.Shadow = false })
		want(t, l.Allow(ctx, "new"), ExceedsBurst)
		set(t, l, limitTo(Unlimited()))
		want(t, l.AllowN(ctx, "new", 1e6), Granted)
		books(t, l.group)
	})
}
