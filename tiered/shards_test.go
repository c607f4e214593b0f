package tiered

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// sharded is a policy of a burst that comes back in a day, in k shards that are never leased.
func sharded(name string, burst int64, k int) Policy {
	p := direct(name, burst)
	p.Shards = k
	return p
}

// inShards is the level of each shard of a key, of Memory.
func inShards(t *testing.T, m *remote.Memory, l *Limiter, key string) (levels []int64) {
	t.Helper()
	for _, s := range l.shards {
		c := call(m.Name(s.kind, s.name, s.id(key).Key), s.terms.Load().fresh)
		var r [1]remote.Result
		m.Run(context.Background(), 0, []remote.Call{c}, r[:])
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		levels = append(levels, r[0].Reply.Level)
	}
	return levels
}

// at are the numbers of the two shards of a key that the process uses.
func (l *Limiter) at(key string) (first, second int) {
	a, b := l.places(key)
	return a.kind.Shard, b.kind.Shard
}

func TestShardsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		says   string // "" where nothing is wrong
	}{
		{Policy{Limit: PerSecond(4), Shards: 0}, ""},
		{Policy{Limit: PerSecond(1), Shards: 1}, ""},
		{Policy{Limit: PerSecond(4), Shards: 4}, ""},
		{Policy{Limit: PerSecond(64), Shards: 64}, ""},
		{Policy{Limit: PerSecond(64), Shards: 65}, "Policy.Shards is 65: must be 2 to 64, or 0 or 1 for one bucket"},
		{Policy{Limit: PerSecond(64), Shards: -1}, "Policy.Shards is -1: must be 2 to 64"},
		{Policy{Limit: PerSecond(3), Shards: 4}, "Policy.Shards is 4: must be at most the burst of Limit, 3"},
		{Policy{Limit: PerSecond(3).WithBurst(4), Shards: 4}, ""},
		{Policy{Limit: PerSecond(9).WithBurst(3), Shards: 4}, "Policy.Shards is 4: must be at most the burst of Limit, 3"},
		{Policy{Limit: PerSecond(9), Also: []Limit{PerHour(99), PerDay(100).WithBurst(3)}, Shards: 4}, "Policy.Shards is 4: must be at most the burst of Also[1], 3"},
		{Policy{Limit: PerSecond(9), Also: []Limit{PerHour(99)}, Shards: 4}, ""},
		{Policy{Limit: Limit{Tokens: 9, Per: maxPer}, Shards: 2}, "Policy.Limit.Per is 876000h0m0s: must be at most 438000h0m0s with 2 shards"},
		{Policy{Limit: Limit{Tokens: 9, Per: maxPer / 2}, Shards: 2}, ""},
		{Policy{Limit: PerMinute(9), Algorithm: SlidingLog, Shards: 3}, ""},
		{Policy{Limit: PerMinute(9), Algorithm: FixedWindow, Shards: 10}, "must be at most the burst of Limit, 9"},
		{Policy{Limit: PerSecond(160), Lease: Lease{Size: 11}, Shards: 4}, "Policy.Lease.Size is 11: must be"},
		{Policy{Limit: PerSecond(160), Lease: Lease{Size: 10}, Shards: 4}, ""},
		{Policy{Limit: Unlimited, Shards: 4}, ""},
	} {
		c.policy.Name = "api"
		err := c.policy.validate()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.policy, err, c.says)
		}
	}
	l := several(t, remote.NewMemory(), nil, sharded("api", 100, 4))[0]
	p := l.Policy()
	p.Shards = 8
	if err := l.SetPolicy(p); err == nil || !strings.Contains(err.Error(), "Policy.Shards is 8: must stay 4") {
		t.Error(err)
	}
	plain := several(t, remote.NewMemory(), nil, direct("api", 100))[0]
	p = plain.Policy()
	p.Shards = 1 // the same as 0
	if err := plain.SetPolicy(p); err != nil {
		t.Error(err)
	}
}

// The parts of a limit sum to it: every burst, every window and every rate, exactly, and no two differ by more than a token.
func TestPartsSumToTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(2, maxShards).Draw(t, "k")
		p := Policy{Name: "api", Shards: k, Algorithm: Algorithm(rapid.IntRange(0, int(SlidingWindow)).Draw(t, "algorithm"))}
		limit := func(i int) Limit {
			l := Limit{Tokens: rapid.Int64Range(int64(k), maxEntries).Draw(t, "tokens"), Per: time.Duration(rapid.Int64Range(100, 1e9).Draw(t, "µs")*10+int64(i)) * time.Microsecond}
			if p.Algorithm == TokenBucket {
				l.Burst = rapid.Int64Range(int64(k), maxTokens).Draw(t, "burst")
			}
			return l
		}
		p.Limit = limit(0)
		if p.Algorithm == TokenBucket || p.Algorithm == SlidingWindow {
			for i := range rapid.IntRange(0, 3).Draw(t, "also") {
				p.Also = append(p.Also, limit(i+1))
			}
		}
		if err := p.validate(); err != nil {
			t.Fatal(err)
		}
		burst, rate := make([]int64, len(p.limits())), make([]*big.Rat, len(p.limits()))
		for i := range rate {
			rate[i] = new(big.Rat)
		}
		for j := range k {
			part := p.part(j, k)
			for i, l := range part.limits() {
				whole := p.limits()[i]
				if d := l.burst() - whole.burst()/int64(k); d < 0 || d > 1 {
					t.Errorf("part %d has a burst of %d of %d", j, l.burst(), whole.burst())
				}
				if p.Algorithm != TokenBucket && (l.Per != whole.Per || l.precision() != whole.precision()) {
					t.Errorf("part %d is %+v of %+v", j, l, whole)
				}
				burst[i] += l.burst()
				rate[i].Add(rate[i], big.NewRat(l.Tokens, int64(l.Per)))
			}
		}
		for i, l := range p.limits() {
			if burst[i] != l.burst() || rate[i].Cmp(big.NewRat(l.Tokens, int64(l.Per))) != 0 {
				t.Errorf("the parts of %+v sum to %d and %v", l, burst[i], rate[i])
			}
		}
	})
}

// Every process has two shards of a key, the same at every request; processes and keys are spread over all of them evenly.
func TestProcessesAreSpreadOverTheShards(t *testing.T) {
	const processes, k = 4000, 8
	l := several(t, remote.NewMemory(), nil, sharded("api", 100, k))[0]
	var firsts, pairs [k * k]int
	for i := range uint64(processes) {
		l.group.place = i * 0x9e3779b97f4a7c15
		a, b := l.at("key")
		if a == b {
			t.Fatal("the second is the first")
		}
		firsts[a]++
		pairs[a*k+b]++
	}
	for i := range k {
		if n := firsts[i]; n < processes/k*8/10 || n > processes/k*12/10 {
			t.Errorf("%d of %d processes at shard %d of %d", n, processes, i, k)
		}
		for j := range k {
			if n := pairs[i*k+j]; i != j && (n < processes/k/(k-1)/2 || n > processes/k/(k-1)*2) {
				t.Errorf("%d processes borrow from %d when they are at %d", n, j, i)
			}
		}
	}
	same := 0
	for i := range 1000 {
		if a, _ := l.at(fmt.Sprint(i)); a == 0 {
			same++
		}
	}
	if same > 1000/k*3/2 {
		t.Errorf("%d of 1000 keys at one shard of %d", same, k)
	}
}

// A request that the first shard refuses is admitted by the second. When both refuse, the sooner of them says when to come back.
func TestSecondShardIsAskedBeforeRefusing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("api", 42, 4))[0]
		ctx := t.Context()
		a, b := l.at("k")
		d := l.Allow(ctx, "k")
		if want(t, d, Granted); d.Limit != 42 || d.Remaining < 36 || d.Remaining > 40 || d.Tier != Remote || d.Key != "k" || d.Policy != "api" {
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
				t.Errorf("what is borrowed took %v, want one round trip: the first is known to refuse", time.Since(start))
			}
		}
		for i := range 3 { // by Redis, and then from what is known
			d := l.Allow(ctx, "k")
			want(t, d, Limited)
			// A shard's token takes four times as long, and the first shard was empty first.
			if d.Limit != 42 || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > 4*24*time.Hour || d.ResetAfter < 41*24*time.Hour {
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
		if s.Limited != 3 || s.Spent != both+1 || len(s.Top) != 1 || s.Top[0].Limited != 3 || s.Top[0].Key != "k" || s.Top[0].RetryAfter == 0 {
			t.Errorf("%+v", s)
		}
		if len(l.group.Stats().Policies) != 1 || len(l.group.Policies()) != 1 {
			t.Errorf("%+v", l.group.Policies())
		}
		books(t, l.group)
	})
}

// g is the bucket of a shard of a key in this process.
func g(l *Limiter, shard int, key string) *bucket {
	b, _ := l.group.cache.Find(l.shards[shard].id(key))
	return b
}

// What is leased is decided in the process, by the first shard and by the second.
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
			if want(t, d, ExceedsBurst); d.Limit != 10 || d.RetryAfter != 0 {
				t.Errorf("%+v, want the most that a request may cost", d)
			}
			d = Strictest(l.ForN("k", 11)).Allow(ctx)
			if want(t, d, ExceedsBurst); d.Limit != 10 {
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

// What is given back goes to the shard that it came from; what is owed is charged there.
func TestReservationOfAShardGoesBackThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("api", 40, 4))[0]
		ctx := t.Context()
		a, b := l.at("k")
		own := l.Reserve(ctx, "k", 10)
		lent := l.Reserve(ctx, "k", 6)
		want(t, own.Decision, Granted)
		want(t, lent.Decision, Granted)
		check := func(first, second int64) {
			t.Helper()
			time.Sleep(100 * ms)
			levels := inShards(t, store.Memory, l, "k")
			for i, n := range levels {
				if w := map[int]int64{a: first, b: second}; i == a && n != w[a] || i == b && n != w[b] || i != a && i != b && n != 10 {
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
		r := Strictest(l.ForN("k", 10), l.ForN("j", 1)).Reserve(ctx)
		want(t, r.Decision, Granted)
		q := Strictest(l.ForN("k", 2), l.ForN("j", 1)).Reserve(ctx)
		want(t, q.Decision, Granted)
		check(0, 0)
		q.Cancel()
		check(0, 2)
		r.Settle(1, 1)
		check(9, 2)
		books(t, l.group)
	})
}

func TestWaitForAShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil, Policy{Name: "api", Limit: PerSecond(4).WithBurst(4), Shards: 4, Lease: Lease{Size: NoLease}})[0]
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
			if err := Strictest(l.For("k"), l.For("j")).Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < second || took > 2500*ms {
			t.Errorf("4 took %v, want 1 to 2 s", took)
		}
	})
}

// In Strictest a key is borrowed for as it is alone, and what was borrowed goes back when another key refuses.
func TestStrictestBorrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("hot", 40, 4), direct("user", 15))
		hot, user := l[0], l[1]
		ctx := t.Context()
		a, b := hot.at("k")
		for range 15 {
			want(t, Strictest(hot.For("k"), user.For("ann")).Allow(ctx), Granted)
		}
		for range 2 { // by Redis, and from what is known
			d := Strictest(hot.For("k"), user.For("ann")).Allow(ctx)
			if want(t, d, Limited); d.Policy != "user" {
				t.Errorf("%+v", d)
			}
		}
		time.Sleep(100 * ms)
		if n := inShards(t, store.Memory, hot, "k"); n[a] != 0 || n[b] != 5 {
			t.Errorf("the shards have %v, want none in %d and 5 in %d: what was refused costs nothing", n, a, b)
		}
		for range 5 {
			want(t, Strictest(hot.For("k"), user.For("bob")).Allow(ctx), Granted)
		}
		d := Strictest(hot.For("k"), user.For("bob")).Allow(ctx)
		if want(t, d, Limited); d.Policy != "hot" || d.Key != "k" || d.Limit != 40 || d.RetryAfter <= 0 {
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

// Peek sees all the shards of a key, Reset fills all of them, and what one process resets another one has.
func TestPeekAndResetOfShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := several(t, store, nil, sharded("api", 42, 4))[0]
		ctx := t.Context()
		if d := l.Peek(ctx, "k"); d.Reason != Granted || d.Remaining != 42 || d.Limit != 42 || d.ResetAfter != 0 || d.Tier != Remote {
			t.Errorf("%+v", d)
		}
		n := int64(0)
		for ; l.Allow(ctx, "k").Allowed; n++ {
		}
		d := l.Peek(ctx, "k")
		if d.Reason != Limited || d.Remaining != 42-n || d.RetryAfter <= 0 || d.RetryAfter > 4*24*time.Hour || d.ResetAfter < time.Duration(n-2)*24*time.Hour {
			t.Errorf("after %d: %+v, want what Allow would say, and what the others have", n, d)
		}
		calls := store.runs.Load()
		start := time.Now()
		l.Peek(ctx, "k")
		if time.Since(start) > 2*ms || store.runs.Load()-calls > senders {
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

// Plans, a policy that changes, shadow mode and limits that are none are those of the key, whatever shard decides.
func TestShardsOfLimitsThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		plans := map[string]Limit{"gold": PerDay(1).WithBurst(80), "free": Unlimited, "out": Blocked, "small": PerDay(1).WithBurst(3)}
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
		if d := l.Allow(ctx, "gold"); d.Limit != 80 {
			t.Errorf("%+v", d)
		}
		if d := l.AllowN(ctx, "free", 1e6); d.Reason != Granted || d.Limit != Unlimited.Tokens || d.Remaining != d.Limit {
			t.Errorf("%+v", d)
		}
		if d := l.Allow(ctx, "out"); d.Reason != ExceedsBurst || d.Limit != 0 {
			t.Errorf("%+v", d)
		}
		if d := l.Peek(ctx, "out"); d.Reason != ExceedsBurst {
			t.Errorf("%+v", d)
		}
		// A limit that cannot be split is no answer.
		if d := l.Allow(ctx, "small"); d.Limit != 40 || l.group.Stats().Policies["api"].PerKeyFaults != 1 {
			t.Errorf("%+v", d)
		}
		if s := l.group.Stats().Policies["api"]; s.Unlimited != 1e6 || s.Blocked != 1 {
			t.Errorf("%+v", s)
		}
		plans["gold"] = PerDay(1).WithBurst(400)
		l.Refresh("gold")
		if d := l.Allow(ctx, "gold"); d.Reason != Limited || d.Limit != 400 {
			t.Errorf("%+v, want the new plan, and no gift", d)
		}
		if err := l.Reset(ctx, "gold"); err != nil {
			t.Fatal(err)
		}
		if n := count("gold"); n != 200 {
			t.Errorf("gold: %d", n)
		}
		set(t, l, func(p *Policy) { p.PerKey = nil; p.Limit = PerDay(1).WithBurst(20) })
		if d := l.Allow(ctx, "new"); d.Reason != Granted || d.Limit != 20 {
			t.Errorf("%+v", d)
		}
		if n := count("new"); n != 9 {
			t.Errorf("new: %d, want 10 with the first", n)
		}
		set(t, l, func(p *Policy) { p.Shadow = true })
		if d := l.Allow(ctx, "new"); d.Reason != Shadowed || !d.Allowed {
			t.Errorf("%+v", d)
		}
		if d := Strictest(l.For("new")).Allow(ctx); d.Reason != Shadowed {
			t.Errorf("%+v", d)
		}
		if s := l.group.Stats().Policies["api"]; s.Shadowed != 2 {
			t.Errorf("%+v", s)
		}
		set(t, l, limitTo(Blocked))
		set(t, l, func(p *Policy) { p.Shadow = false })
		want(t, l.Allow(ctx, "new"), ExceedsBurst)
		set(t, l, limitTo(Unlimited))
		want(t, l.AllowN(ctx, "new", 1e6), Granted)
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
	for end := time.Now().Add(10 * time.Second); l.Allow(ctx, "k").Tier != Local; {
		if time.Now().After(end) {
			t.Fatal("no lease within 10 s")
		}
	}
	time.Sleep(300 * ms) // a real clock: the estimate has followed by now, and leases are long
	for range 100_000 {
		l.Allow(ctx, "k")
	}
	if n := testing.AllocsPerRun(10_000, func() {
		if !l.Allow(ctx, "k").Allowed {
			t.Fatal("refused")
		}
	}); n != 0 {
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

// Both shards are asked within one Budget: where the second's answer would come later, the first's stands, and what the second
// granted goes back.
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
			func() Decision { return Strictest(l.For("k")).Allow(ctx) },
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
