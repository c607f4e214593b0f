package benchmarks

import (
	"context"
	"hash/maphash"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestRatiosShares compares a take from a standing share with bare x/time/rate, 100 000 keys at
// random each. The take is all that a share needs: the hash of the key, the clock, and the key's
// place. The bare limiters are an array, and nobody has to find them by a key. Both wait for
// memory.
func TestRatiosShares(t *testing.T) {
	forRatios(t)
	random := Load{Name: "random keys", Keys: 100_000, Limit: plenty}
	subject := func(name string, decide Decide) *Subject {
		return &Subject{Contestant: Contestant{Name: name}, Load: random, decide: decide, walks: newWalks(random.Keys)}
	}
	pairs := brief(1).Against(t, subject("share", takes(t)), subject("bare", allows(random.Keys)))
	atMost(t, "take from a standing share ÷ bare rate.Limiter.Allow, 100 000 random keys each", Quotient(pairs, Wall), 2)
}

// takes returns what takes a token of a key from its share, for one goroutine. The process is one
// of four.
func takes(t *testing.T) Decide {
	t.Helper()
	seed, base := maphash.MakeSeed(), time.Now()
	shares := new(standing.Shares)
	shares.Open(standing.PlaceBits)
	part, _, err := standing.Split(standing.Rate{Burst: plenty.Tokens, Tokens: plenty.Tokens, Per: plenty.Per}, 1)
	if err != nil {
		t.Fatal(err)
	}
	limit := shares.Begin(0, part)
	renew := func() {
		p, ok := shares.Poll(time.Since(base), func() string { return "member" })
		if !ok {
			t.Fatal("there is nothing to poll")
		}
		shares.Accept(time.Since(base), p.Member, p.Seq, lua.PollReply{
			Grant: lua.Pool / fleetSize, Members: fleetSize, Epoch: 1,
		})
	}
	renew()
	time.Sleep(10 * time.Millisecond) // a share begins empty
	taken := 0
	return func(_ context.Context, key string) Answer {
		if taken++; taken%steps == 0 && shares.State(time.Since(base)).Left < standing.TTL/2 {
			renew()
		}
		_, ok := shares.Take(standing.At{Now: time.Since(base)}, maphash.String(seed, key), limit, 1, nil)
		return verdict(ok, nil)
	}
}

// allows returns what asks the limiters of random keys, for one goroutine.
func allows(keys int) Decide {
	limiters := make([]rate.Limiter, keys)
	for i := range limiters {
		limiters[i].SetLimit(rate.Limit(perSecond(plenty)))
		limiters[i].SetBurst(int(plenty.Tokens))
	}
	ids, next := newWalk(keys, mostGoroutines).ids, 0
	return func(context.Context, string) Answer {
		next = (next + 1) % steps
		return verdict(limiters[ids[next]].Allow(), nil)
	}
}
