package tiered

import (
	"context"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
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
		c := call(m.Name(s.kind, s.name, s.id(key).Key), s.settings.Load().initial)
		var r [1]remote.Result
		m.Run(context.Background(), 0, []lua.Call{c}, r[:])
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		levels = append(levels, r[0].Reply.Level)
	}
	return levels
}

// at are the numbers of the two shards of a key that the process uses.
func (l *Limiter) at(key string) (first, second int) {
	a, b := l.shardsOf(key)
	return a.kind.Shard, b.kind.Shard
}

// g is the bucket of a shard of a key in this process.
func g(l *Limiter, shard int, key string) *bucket {
	b, _ := l.group.cache.Find(l.shards[shard].id(key))
	return b
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
		{
			Policy{Limit: PerSecond(9).WithBurst(3), Shards: 4},
			"Policy.Shards is 4: must be at most the burst of Limit, 3",
		},
		{
			Policy{Limit: PerSecond(9), Also: []Limit{PerHour(99), PerDay(100).WithBurst(3)}, Shards: 4},
			"Policy.Shards is 4: must be at most the burst of Also[1], 3",
		},
		{Policy{Limit: PerSecond(9), Also: []Limit{PerHour(99)}, Shards: 4}, ""},
		{
			Policy{Limit: Limit{Tokens: 9, Per: maxPer}, Shards: 2},
			"Policy.Limit.Per is 876000h0m0s: must be at most 438000h0m0s with 2 shards",
		},
		{Policy{Limit: Limit{Tokens: 9, Per: maxPer / 2}, Shards: 2}, ""},
		{Policy{Limit: PerMinute(9), Algorithm: SlidingLog, Shards: 3}, ""},
		{Policy{Limit: PerMinute(9), Algorithm: FixedWindow, Shards: 10}, "must be at most the burst of Limit, 9"},
		{Policy{Limit: PerSecond(160), Lease: Lease{Size: 11}, Shards: 4}, "Policy.Lease.Size is 11: must be"},
		{Policy{Limit: PerSecond(160), Lease: Lease{Size: 10}, Shards: 4}, ""},
		{Policy{Limit: Unlimited(), Shards: 4}, ""},
	} {
		c.policy.Name = "api"
		err := c.policy.Validate()
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

// The parts of a limit sum to it: every burst, every window and every rate, exactly, and no two differ by more than
// a token.
func TestPartsSumToTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(2, maxShards).Draw(t, "k")
		p := Policy{Name: "api", Shards: k, Algorithm: Algorithm(rapid.IntRange(0, int(SlidingWindow)).Draw(t,
			"algorithm"))}
		limit := func(i int) Limit {
			per := time.Duration(rapid.Int64Range(1000, 40_000).Draw(t, "per")) * time.Microsecond
			// so far apart that no two count by the same blocks; three times, still below maxPer ÷ maxShards
			for range i {
				per *= 1000
			}
			l := Limit{Tokens: rapid.Int64Range(int64(k), maxEntries).Draw(t, "tokens"), Per: per}
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
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		burst, rate := make([]int64, len(p.limits())), make([]*big.Rat, len(p.limits()))
		for i := range rate {
			rate[i] = new(big.Rat)
		}
		for j := range k {
			part := p.shard(j, k)
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

// Every process has two shards of a key, the same at every request; processes and keys are spread over all of them
// evenly.
func TestProcessesAreSpreadOverTheShards(t *testing.T) {
	const processes, k = 4000, 8
	l := several(t, remote.NewMemory(), nil, sharded("api", 100, k))[0]
	var firsts, pairs [k * k]int
	for i := range uint64(processes) {
		l.group.shardSeed = i * 0x9e3779b97f4a7c15
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
