package tiered_test

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// ideal returns a limiter that decides like one central one to which no call takes time.
func (f fleetRun) ideal() (admits func(at time.Duration, cost int64) bool) {
	if f.algorithm == tiered.TokenBucket {
		bucket := ideal.NewBucket(f.limit.Tokens, f.limit.Per, burstOf(f.limit))
		return func(at time.Duration, cost int64) bool { return bucket.Take(int64(at), cost) }
	}
	if f.algorithm == tiered.FixedWindow {
		window, used := int64(-1), int64(0)
		return func(at time.Duration, cost int64) bool {
			if w := f.window(at); w > window {
				window, used = w, 0
			}
			if used+cost > f.limit.Tokens {
				return false
			}
			used += cost
			return true
		}
	}
	type entry struct {
		at   time.Duration
		cost int64
	}
	var log []entry
	total := int64(0)
	return func(at time.Duration, cost int64) bool {
		for len(log) > 0 && log[0].at <= at-f.limit.Per {
			total -= log[0].cost
			log = log[1:]
		}
		if total+cost > f.limit.Tokens {
			return false
		}
		total += cost
		log = append(log, entry{at, cost})
		return true
	}
}

// window is the number of the fixed window of an instant. Virtual time begins at a multiple of every window here.
func (f fleetRun) window(at time.Duration) int64 { return int64(at / f.limit.Per) }

// worst judges a key's admissions by the bound of the algorithm.
func (f fleetRun) worst(offers []offer) ideal.Excess {
	if f.algorithm == tiered.TokenBucket {
		return worst(offers, f.limit, 0, math.MaxInt64)
	}
	most := ideal.Excess{Over: math.Inf(-1)}
	if f.algorithm == tiered.FixedWindow {
		sums := map[int64]int64{}
		for _, o := range offers {
			if w := f.window(o.at); o.allowed && w == f.window(o.done) {
				sums[w] += o.cost
			}
		}
		for _, sum := range sums {
			most.Over = max(most.Over, float64(sum-f.limit.Tokens))
		}
		return most
	}
	for i, first := range offers {
		end, sum := first.at+f.limit.Per, int64(0)
		for _, o := range offers[i:] {
			if o.at >= end {
				break
			}
			if o.allowed && o.done < end {
				sum += o.cost
			}
		}
		if over := float64(sum - f.limit.Tokens); over > most.Over {
			most = ideal.Excess{
				From: int64(first.at), To: int64(end), Tokens: sum, Bound: float64(f.limit.Tokens), Over: over,
			}
		}
	}
	return most
}
