package remote_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// versions are limits that processes believe in during a deploy: rates and bursts that differ by much.
var versions = []lua.Limit{
	{Cap: 10, Tokens: 1, Period: 1e6},
	{Cap: 10, Tokens: 20, Period: 1e6},
	{Cap: 100, Tokens: 1, Period: 60e6},
	{Cap: 1000, Tokens: 20, Period: 1e6},
	{Cap: 3, Tokens: 7, Period: 3e6},
}

// rate is what a limit brings in a µs.
func rate(l lua.Limit) *big.Rat { return big.NewRat(l.Tokens, l.Period) }

// piecewise is the bucket of two versions by its definition, in exact fractions: time counts by the limit of
// whoever wrote last, and every call by another limit writes.
type piecewise struct {
	several bool // by the script of several buckets: nothing that was ever stored makes a key live shorter
	exists  bool
	level   *big.Rat
	at      int64 // µs
	by      lua.Limit
	most    int64 // the largest burst: whoever has it must not find a full bucket sooner than it would be full
	until   int64 // ms in which it is forgotten
}

// level reports what a caller by l finds, and whether there is a bucket.
func (p *piecewise) find(now int64, l lua.Limit) (level *big.Rat, exists bool) {
	if !p.exists || now/1000 > p.until {
		return big.NewRat(l.Cap, 1), false
	}
	level = new(big.Rat).Mul(rate(p.by), big.NewRat(now-p.at, 1))
	level.Add(level, p.level)
	for _, burst := range []int64{p.by.Cap, l.Cap} {
		if full := big.NewRat(burst, 1); level.Cmp(full) > 0 {
			level = full
		}
	}
	return level, true
}

// take is a direct take of n tokens by l, or with 0 a look.
func (p *piecewise) take(now int64, l lua.Limit, n int64) (granted bool) {
	level, exists := p.find(now, l)
	granted = new(big.Rat).Add(level, big.NewRat(1, 1e9)).Cmp(big.NewRat(n, 1)) >= 0
	if n == 0 || !granted {
		if !exists || p.by == l {
			return granted
		}
		n = 0
	}
	if !exists {
		*p = piecewise{several: p.several}
	}
	longest := p.until
	p.exists, p.at, p.by, p.most = true, now, l, max(p.most, l.Cap)
	p.level = new(big.Rat).Sub(level, big.NewRat(n, 1))
	missing := new(big.Rat).Quo(new(big.Rat).Sub(big.NewRat(p.most, 1), p.level), rate(l))
	us, _ := missing.Float64()
	until := now/1000 + (int64(us)+999)/1000 + 1000
	if p.until = until; p.several {
		p.until = max(until, longest)
	}
	return granted
}

// Processes with different limits share one bucket, by one script or the other: each interval brings what the limit
// of its last writer says, every call by another limit writes, and together they are admitted no more than one
// bucket of the largest burst and rate, also when the key ends.
func TestLimitsThatDiffer(t *testing.T) {
	for _, also := range []bool{false, true} {
		t.Run(fmt.Sprint("also ", also), func(t *testing.T) {
			server, checks, changes := realEngine(t), 0, 0
			rapid.Check(t, func(t *rapid.T) {
				checks++
				limits := rapid.SliceOfN(rapid.SampledFrom(versions), 2, 3).Draw(t, "limits")
				largest := limits[0]
				for _, l := range limits {
					largest.Cap = max(largest.Cap, l.Cap)
					if rate(l).Cmp(rate(largest)) > 0 {
						largest.Tokens, largest.Period = l.Tokens, l.Period
					}
				}
				model, memory := &piecewise{several: also}, memoryEngine()
				admitted := ideal.NewPolicer(largest.Tokens, time.Duration(largest.Period)*time.Microsecond,
					largest.Cap)
				now := scriptStart
				for range rapid.IntRange(2, 30).Draw(t, "calls") {
					now += rapid.SampledFrom([]int64{0, 1, 50e3, 333_333, 1e6, 1_500_001, 30e6, 300e6}).Draw(t, "later")
					l := rapid.SampledFrom(limits).Draw(t, "limit")
					n := rapid.SampledFrom([]int64{0, 1, l.Cap / 2, l.Cap}).Draw(t, "n")
					c := lua.Call{
						Algorithm: lua.TokenBucket, Bucket: fmt.Sprintf("{terms/%v/%d}", also, checks),
						Cap: l.Cap, Tokens: l.Tokens, Period: l.Period, TTL: 1e6, Fleet: 1,
					}
					if also { // of which the bucket is named by its period: this one refuses nothing
						scale := 60e6 / l.Period
						c.Algorithm, c.Tokens, c.Period = lua.TokenBuckets, l.Tokens*scale, 60e6
						c.Also = []lua.Limit{{Cap: 1 << 30, Tokens: 1 << 30, Period: 1}}
					}
					if _, exists := model.find(now, l); !exists {
						server.client.Del(t.Context(), c.Bucket) // it lives by another clock
					} else if model.by != l {
						changes++
					}
					a, real := memory.at(t, now, take(c, n)), server.at(t, now, take(c, n))
					if real != a {
						t.Fatalf("%v, redis %v", a, real)
					}
					if granted := model.take(now, l, n); granted != (a.reply.Code == lua.Granted) {
						t.Fatalf("%d by %+v: %v, the definition says %v: %+v", n, l, a, granted, model)
					}
					if a.reply.Grant > 0 {
						admitted.Admit((now-scriptStart)*1000, a.reply.Grant)
					}
				}
				if worst := admitted.Worst(); worst.Over > 1e-6 {
					t.Fatalf("%+v together: %v", limits, worst)
				}
			})
			if changes < checks {
				t.Errorf("%d changes in %d histories", changes, checks)
			}
		})
	}
}
