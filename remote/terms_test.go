package remote_test

import (
	"fmt"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// versions are limits that processes believe in during a deploy: rates and bursts that differ by
// much.
var versions = []lua.Limit{
	{Cap: 10, Tokens: 1, Period: 1e6},
	{Cap: 10, Tokens: 20, Period: 1e6},
	{Cap: 100, Tokens: 1, Period: 60e6},
	{Cap: 1000, Tokens: 20, Period: 1e6},
	{Cap: 3, Tokens: 7, Period: 3e6},
}

// rate is what a limit brings in a µs.
func rate(l lua.Limit) *big.Rat { return big.NewRat(l.Tokens, l.Period) }

// piecewise is the bucket of several versions by its definition, in exact fractions. The larger
// burst and the larger rate govern, each by itself, until nobody has used them for a hold. Time
// counts by what governed.
type piecewise struct {
	several bool // by the script of several buckets: nothing that was ever stored makes a key live shorter
	exists  bool
	level   *big.Rat
	at      int64 // µs
	by      lua.Limit
	holds   [2]int64 // until when the burst governs, and the rate
	mixed   bool     // somebody had a smaller limit: a denied take that finds half of a hold left notes what it uses
	noted   int64    // when the holds were stored last; 0 if nobody has had a smaller limit
	most    int64    // the largest burst: a process that has it must not find a full bucket sooner than it would be full
	until   int64    // ms in which it is forgotten
}

// find reports the level now, and whether there is a bucket.
func (p *piecewise) find(now int64, l lua.Limit) (level *big.Rat, exists bool) {
	if !p.exists || now/1000 > p.until {
		return big.NewRat(l.Cap, 1), false
	}
	turn := now
	if rate(l).Cmp(rate(p.by)) < 0 { // once the larger rate does not govern any more, it brings nothing
		turn = min(now, max(p.at, p.holds[1]))
	}
	level = new(big.Rat).Mul(rate(p.by), big.NewRat(turn-p.at, 1))
	if turn < now {
		level.Add(level, new(big.Rat).Mul(rate(l), big.NewRat(now-turn, 1)))
	}
	level.Add(level, p.level)
	if full := big.NewRat(p.by.Cap, 1); level.Cmp(full) > 0 {
		level = full
	}
	return level, true
}

// govern returns what governs after a call by l, until when, and whether less than half of a hold
// was left of what l has.
func (p *piecewise) govern(now int64, l lua.Limit) (by lua.Limit, holds [2]int64, expiring bool) {
	by, holds = l, [2]int64{now + 10e6, now + 10e6}
	if l.Cap < p.by.Cap && now < p.holds[0] {
		by.Cap, holds[0] = p.by.Cap, p.holds[0]
	} else if now+5e6 > p.holds[0] {
		expiring = true
	}
	if rate(l).Cmp(rate(p.by)) < 0 && now < p.holds[1] {
		by.Tokens, by.Period, holds[1] = p.by.Tokens, p.by.Period, p.holds[1]
	} else if now+5e6 > p.holds[1] {
		expiring = true
	}
	return by, holds, expiring
}

// take is a direct take of n tokens by l, or with 0 a look.
func (p *piecewise) take(now int64, l lua.Limit, n int64) (granted bool) {
	level, exists := p.find(now, l)
	if !exists {
		*p = piecewise{several: p.several, by: l}
	}
	by, holds, expiring := p.govern(now, l)
	if full := big.NewRat(by.Cap, 1); level.Cmp(full) > 0 {
		level = full
	}
	granted = new(big.Rat).Add(level, big.NewRat(1, 1e9)).Cmp(big.NewRat(n, 1)) >= 0
	if n == 0 || !granted {
		notes := n > 0 && p.mixed && expiring && now > p.at
		if !exists || p.by == by && !notes {
			return granted
		}
		n = 0
	}
	lesser, longest := by != l, p.until
	switch {
	case lesser || p.mixed && by != p.by:
		p.noted = now
	case p.noted == now && !p.several: // the time of the level shows a use, and one in the microsecond of the note is not later
		holds = p.holds
	}
	p.exists, p.at, p.by, p.holds, p.most = true, now, by, holds, max(p.most, l.Cap)
	p.mixed = p.mixed || lesser
	p.level = new(big.Rat).Sub(level, big.NewRat(n, 1))
	missing := new(big.Rat).Quo(new(big.Rat).Sub(big.NewRat(p.most, 1), p.level), rate(by))
	us, _ := missing.Float64()
	until := now/1000 + (int64(us)+999)/1000 + 1000
	if p.until = until; p.several {
		p.until = max(until, longest)
	}
	return granted
}

// Processes with different limits share one bucket, by one script or the other: what governs is as
// defined, and together they are admitted no more than one bucket of the largest burst and rate
// that was used within a hold, also when the key ends.
func TestLimitsThatDiffer(t *testing.T) {
	for _, also := range []bool{false, true} {
		t.Run(fmt.Sprint("also ", also), func(t *testing.T) {
			server, checks, changes := realEngine(t), 0, 0
			rapid.Check(t, func(t *rapid.T) {
				checks++
				limits := rapid.SliceOfN(rapid.SampledFrom(versions), 2, 3).Draw(t, "limits")
				model, memory := &piecewise{several: also}, memoryEngine()
				var admitted uses
				now := scriptStart
				for range rapid.IntRange(2, 30).Draw(t, "calls") {
					now += rapid.SampledFrom([]int64{0, 1, 50e3, 333_333, 1e6, 1_500_001, 4e6, 6e6, 10e6, 30e6, 300e6}).Draw(t, "later")
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
					admitted = append(admitted, use{now, l, a.reply.Grant})
				}
				if over := admitted.over(); over > 1e-6 {
					t.Fatalf("%+v together: %v tokens more than a bucket of what was used within a hold", limits, over)
				}
			})
			if changes < checks {
				t.Errorf("%d changes in %d histories", changes, checks)
			}
		})
	}
}

// uses are calls with the tokens that they were granted, in order of time.
type uses []use

type use struct {
	at      int64 // µs
	by      lua.Limit
	granted int64
}

// over returns by how much the worst interval exceeds a bucket of the largest burst and the largest
// rate that any call had in it, or within a hold before it.
func (all uses) over() (worst float64) {
	for i, first := range all {
		burst, perMicro, sum := int64(0), 0.0, int64(0)
		for _, u := range all[:i] {
			if first.at-u.at < lua.TermsHold.Microseconds() {
				burst, perMicro = max(burst, u.by.Cap), max(perMicro, float64(u.by.Tokens)/float64(u.by.Period))
			}
		}
		for _, u := range all[i:] {
			burst, perMicro = max(burst, u.by.Cap), max(perMicro, float64(u.by.Tokens)/float64(u.by.Period))
			sum += u.granted
			worst = max(worst, float64(sum-burst)-perMicro*float64(u.at-first.at))
		}
	}
	return worst
}
