package benchmarks

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

// usersRate is the requests per second of all users together: redis_rate's Redis is then busy for
// less than mostBusy of the time, so nobody's figures are those of an overload.
const (
	usersRate = 4000
	mostBusy  = 0.6
)

// turns are of the fleets, one after the other. Before each the fleet works for a while that is not
// measured.
const (
	rounds   = 3
	warmTime = 2 * time.Second
	turnTime = 7 * time.Second

	// eagerTime is so long that what the bucket of a user at three times his limit still has at the
	// end counts little.
	eagerTime = 58 * time.Second
)

// The loads.
var (
	zipf11 = Users{Keys: 100_000, Zipf: 1.1, Rate: usersRate}
	zipf10 = Users{First: 100_000, Keys: 100_000, Zipf: 1.01, Rate: usersRate}

	// light are as many users as have 9 requests per second each: just below a tenth of the limit.
	light = Users{First: 200_000, Keys: usersRate / 9, Rate: usersRate}

	// rare are users who each have one request in 25 s.
	rare = Users{First: 300_000, Keys: 100_000, Rate: usersRate}

	// eager are users who each ask one process for three times their limit.
	eager = Users{First: 400_000, Keys: 8, Rate: 8 * 300, Sticky: true}
)

// TestRatiosUsers has the lines about 100 000 users of 100/s, burst 200, in 4 limiters on one
// Redis: with standing shares, without them, and with redis_rate. A new table of standing shares
// lends nothing for 65 s. Until then those without are measured.
func TestRatiosUsers(t *testing.T) {
	forRatios(t)
	on := oursFleet(t, "standing shares", 1.0/8)
	off := oursFleet(t, "without", 0)
	peer := newFleet(t, RedisRate, func(f *Fleet) Decide { return redisRate(t, f.Server, perUser) })
	before := off.play(t, zipf10, 0, warmTime, turnTime)
	some(t, "Zipf 1.01, without standing shares: Redis calls per decision", calls(before), 1)
	on.awaitShares(t)

	idle := newFleet(t, nobody, func(*Fleet) Decide {
		return func(context.Context, string) Answer { return Admitted }
	})
	var plain, shared, theirs, making []Usage
	var pairs []Pair // of shared and theirs
	for i := range uint64(rounds) {
		plain = append(plain, off.play(t, zipf11, i, warmTime, turnTime))
		shared = append(shared, on.play(t, zipf11, i, warmTime, turnTime))
		theirs = append(theirs, peer.play(t, zipf11, i, warmTime, turnTime))
		making = append(making, idle.play(t, zipf11, i, warmTime, turnTime/2))
		pairs = append(pairs, Pair{shared[i], theirs[i]})
	}
	if busy := middle(theirs, serverLoad); busy > mostBusy {
		t.Errorf("redis_rate's Redis is busy for %.2f of the time: not more than %v can be compared", busy, mostBusy)
	}
	if n := middle(theirs, calls); n < 1 {
		t.Errorf("redis_rate has made %v calls per decision: this was not the work that was to be measured", n)
	}
	some(t, "Zipf 1.1, without standing shares: Redis calls per decision", middle(plain, calls), 1)
	some(t, "Zipf 1.1, without standing shares: part of requests that wait for Redis", middle(plain, waited), 1)
	some(t, "Zipf 1.1, standing shares: Redis calls per decision", middle(shared, calls), 0.11)
	some(t, "Zipf 1.1, standing shares: part of requests that wait for Redis", middle(shared, waited), 0.08)
	p50 := func(u Usage) float64 { return float64(u.P50) }
	p99 := func(u Usage) float64 { return float64(u.P99) }
	atMost(t, "Zipf 1.1, standing shares, p50 of a decision ÷ redis_rate", Quotient(pairs, p50), 0.01)
	atMost(t, "Zipf 1.1, standing shares, p99 of a decision ÷ redis_rate", Quotient(pairs, p99), 1)
	// To make a request takes processor time too: no limiter is to blame for it.
	made := middle(making, cpu)
	t.Logf("with the making of the requests, process and Redis take %.2f of the processor time of redis_rate",
		Quotient(pairs, cpu))
	atMost(t, "Zipf 1.1, standing shares, processor time of process and Redis per decision ÷ redis_rate",
		Quotient(pairs, func(u Usage) float64 { return cpu(u) - made }), 0.3)
	some(t, "Zipf 1.01, standing shares: Redis calls per decision", calls(on.play(t, zipf10, 0, warmTime, turnTime)), 0.11)
	some(t, "users of 9/s each, standing shares: Redis calls per decision",
		calls(on.play(t, light, 0, warmTime, turnTime)), 0.02)
	some(t, "100 000 users at random, standing shares: Redis calls per decision",
		calls(on.play(t, rare, 0, warmTime, turnTime)), 0.02)
	// None is right here: the meter is compared with what Redis executed, and has counted above.
	atMost(t, "100 000 users at once, one request each, standing shares: Redis calls per decision",
		on.rush(t, 500_000, 100_000), 0.02)
	on.play(t, eager, 0, warmTime, eagerTime)

	var below judgement
	for _, u := range []Users{zipf11, zipf10, light, rare} {
		rates := u.rates()
		j := on.judge(u, func(k int) bool { return rates[k] < float64(perUser.Tokens)/2 })
		below.requests, below.wrongly = below.requests+j.requests, below.wrongly+j.wrongly
	}
	t.Logf("of %d requests of users below half of their limit %d were refused", below.requests, below.wrongly)
	atMost(t, "users below half of their limit, standing shares: part of requests refused though an ideal bucket admits them",
		float64(below.wrongly)/float64(below.requests), 0.0005)
	j := on.judge(eager, every)
	atLeast(t, "users at three times their limit, each through one process: admitted ÷ ideal bucket",
		float64(j.admitted)/float64(j.ideal), 0.9)
	over := 0.0
	for _, u := range []Users{zipf11, zipf10, light, rare, eager} {
		over = max(over, on.judge(u, every).over)
	}
	atMost(t, "users, standing shares: tokens over the bound in the worst interval of the worst key", over, 0)
}

// rush lets new users make one request each, as fast as it can. It returns the Redis calls per
// decision.
func (f *Fleet) rush(t *testing.T, first, users int) float64 {
	t.Helper()
	names := tour(first, first+users).keys
	before := f.Server.commands(t)
	var done sync.WaitGroup
	for i, decide := range f.decide {
		done.Go(func() {
			refused := 0
			for k := i; k < users; k += fleetSize {
				if decide(context.Background(), names[k])&(Admitted|Failed) != Admitted {
					refused++
				}
			}
			if refused > 0 {
				t.Errorf("%d of %d new users were refused", refused, users/fleetSize)
			}
		})
	}
	done.Wait()
	return float64(f.Server.commands(t)-before) / float64(users)
}

// middle returns the median of a figure over all turns.
func middle(all []Usage, figure func(Usage) float64) float64 {
	xs := make([]float64, len(all))
	for i, w := range all {
		xs[i] = figure(w)
	}
	return ratio.Median(xs)
}
