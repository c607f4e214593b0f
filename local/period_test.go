package local

import (
	"testing"
	"time"
)

// A key over a slow limit is leased until there are two tokens for each process.
func TestPeriodOfAKeyOverASlowLimit(t *testing.T) {
	usual := 250 * ms
	minute := Policy{Cap: 100, Tokens: 100, Per: time.Minute}
	hour := Policy{Cap: 1000, Tokens: 1000, Per: time.Hour}
	second := Policy{Cap: 200, Tokens: 100, Per: time.Second}
	split := func(p Policy) Policy {
		p.Parent = new(Policy)
		return p
	}
	sized := minute
	sized.Size = 5
	several := minute
	several.First = Numbers{100, 100, time.Minute}
	for _, c := range []struct {
		name   string
		policy Policy
		fleet  int32
		rate   float64 // tokens/s of this process
		scarce bool
		want   time.Duration
	}{
		{"over a slow limit: 4 s at most", minute, 4, 1, true, 4 * time.Second},
		{"over it, fewer processes: 4 tokens", minute, 2, 3, true, 2400 * ms},
		{"over it, with standing shares", split(minute), 2, 3, true, 2400 * ms},
		{"over it, with too little demand for a lease", hour, 4, 0.49, true, usual},
		{"less than one and a half times its part", minute, 1, 2.4, true, usual},
		{"more than that", minute, 1, 2.6, true, 1200 * ms},
		{"over a slow limit, but Redis has tokens", minute, 2, 3, false, usual},
		{"over a fast limit", second, 4, 1000, true, usual},
		{"a lease of a fixed size", sized, 2, 3, true, usual},
		{"several limits", several, 2, 3, true, usual},
	} {
		p := c.policy
		p.Period = usual
		var b Bucket
		b.Init(&p, "k")
		b.view.fleet, b.demand.rate = c.fleet, c.rate
		if c.scarce {
			b.denied.Store(&denial{at: 1})
		}
		if got := b.size(0, ms).period; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
