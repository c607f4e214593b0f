package benchmarks

import (
	"hash/maphash"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestRatiosShares compares a take from a standing share with bare x/time/rate, 100 000 keys at random each. The take is
// all that a share needs: the hash of the key, the clock, and the key's place. The bare limiters are an array, and nobody
// has to find them by a key. Both wait for memory.
func TestRatiosShares(t *testing.T) {
	forRatios(t)
	const keys = 100_000
	walks := newWalks(keys) // a turn works through one
	takes, bare := takesOf(t), allowsOf(keys)
	turns := 0
	pairs := undisturbed(9, func() Pair {
		var round []Pair
		for range brief(1).Tries {
			w := walks[turns%len(walks)]
			turns++
			p := Pair{A: Usage{N: len(w.ids)}, B: Usage{N: len(w.ids)}}
			start := time.Now()
			if taken := takes(w); taken != len(w.ids) {
				t.Fatalf("%d of %d takes from a share succeeded", taken, len(w.ids))
			}
			p.A.Wall = time.Since(start)
			start = time.Now()
			if allowed := bare(w); allowed != len(w.ids) {
				t.Fatalf("bare limiters admitted %d of %d", allowed, len(w.ids))
			}
			p.B.Wall = time.Since(start)
			round = append(round, p)
		}
		return fastest(round)
	})
	atMost(t, "take from a standing share ÷ bare rate.Limiter.Allow, 100 000 random keys each", Quotient(pairs, Wall), 2)
}

// takesOf returns what takes a token of each key of a walk from its share, and counts the takes that succeed. The process
// is one of four.
func takesOf(t *testing.T) func(*walk) int {
	t.Helper()
	seed, base := maphash.MakeSeed(), time.Now()
	shares := new(standing.Shares)
	shares.Open(standing.PlaceBits)
	part, _, err := standing.Split(standing.Rate{Burst: plenty.Tokens, Tokens: plenty.Tokens, Per: plenty.Per})
	if err != nil {
		t.Fatal(err)
	}
	limit := shares.Begin(0, part)
	renew := func() {
		p, ok := shares.Poll(time.Since(base), func() string { return "member" })
		if !ok {
			t.Fatal("there is nothing to poll")
		}
		shares.Accept(time.Since(base), p.Member, p.Seq, lua.PollReply{Grant: lua.Pool / fleetSize, Members: fleetSize, Epoch: 1})
	}
	renew()
	time.Sleep(10 * time.Millisecond) // a share begins empty
	return func(w *walk) (taken int) {
		if shares.State(time.Since(base)).Left < standing.TTL/2 {
			renew()
		}
		for _, key := range w.keys {
			if _, ok := shares.Take(time.Since(base), maphash.String(seed, key), limit, 1, nil); ok {
				taken++
			}
		}
		return taken
	}
}

// allowsOf returns what asks the limiter of each key of a walk, and counts what is admitted.
func allowsOf(keys int) func(*walk) int {
	limiters := make([]rate.Limiter, keys)
	for i := range limiters {
		limiters[i].SetLimit(rate.Limit(perSecond(plenty)))
		limiters[i].SetBurst(int(plenty.Tokens))
	}
	return func(w *walk) (allowed int) {
		for _, id := range w.ids {
			if limiters[id].Allow() {
				allowed++
			}
		}
		return allowed
	}
}
