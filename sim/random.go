package sim

import (
	"math"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// newRand returns a source of random numbers that depends on the seed and its own name only.
func newRand(seed uint64, name string) *rand.Rand {
	return rand.New(rand.NewPCG(seed, stable.Hash(name)))
}

// concurrentRand is a source of random numbers for goroutines that draw concurrently. What it
// returns depends on the instant and on how many numbers were drawn at it before, not on all that
// were drawn since the start. Two goroutines that run at one instant may swap their numbers; the
// rest of the run stays the same.
type concurrentRand struct {
	seed uint64
	base time.Time

	mu   sync.Mutex
	last time.Duration
	n    uint64
}

func newConcurrentRand(seed uint64, name string, base time.Time) *concurrentRand {
	return &concurrentRand{seed: stable.Mix(seed ^ stable.Hash(name)), base: base}
}

// uniform draws from [0,1).
func (d *concurrentRand) uniform() float64 {
	now := time.Since(d.base)
	d.mu.Lock()
	if now != d.last {
		d.last, d.n = now, 0
	}
	d.n++
	n := d.n
	d.mu.Unlock()
	return float64(stable.Mix(stable.Mix(d.seed^uint64(now))+n)>>11) / (1 << 53)
}

// exponential draws a duration whose mean is given.
func (d *concurrentRand) exponential(mean time.Duration) time.Duration {
	return time.Duration(-math.Log(1-d.uniform()) * float64(mean))
}

// zipf chooses among n things, the i-th with a weight of (i+1)^-skew; 0 is uniform. Unlike
// rand.Zipf it takes any skew.
type zipf struct {
	n   int
	sum []float64 // of the weights up to each; nil if uniform
}

func newZipf(n int, skew float64) zipf {
	z := zipf{n: n}
	if skew == 0 {
		return z
	}
	z.sum = make([]float64, n)
	total := 0.0
	for i := range z.sum {
		total += math.Pow(float64(i+1), -skew)
		z.sum[i] = total
	}
	return z
}

// draw chooses one, by one number of the source.
func (z zipf) draw(r *rand.Rand) int {
	if z.sum == nil {
		return r.IntN(z.n)
	}
	x := r.Float64() * z.sum[z.n-1]
	return min(sort.SearchFloat64s(z.sum, x), z.n-1)
}
