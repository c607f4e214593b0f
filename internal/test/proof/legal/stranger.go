package legal

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// forStranger gives a plan an ordinary policy whose standing shares are full at its first step.
func (d *drawer) forStranger(p *Plan) bool {
	if p.Class != Calm {
		return false
	}
	p.only(Calm, tiered.Policy{
		Standing: tiered.StandingOn, FailMode: tiered.FailMode(d.IntN(3)),
		Limit: tiered.Limit{Tokens: pick(d, int64(20), 80, 200), Per: second, Burst: pick(d, int64(100), 200, 400)},
	})
	p.Warm = 100 * second
	return true
}

// stranger draws a process without standing shares that comes, uses a key and leaves, and then a surge of that key: soon, or
// when the key is full again.
func (d *drawer) stranger(p *Plan) []Step {
	l, key := p.Policies[0].Limit, d.IntN(keys)
	full := time.Duration(l.Burst) * l.Per / time.Duration(l.Tokens)
	return []Step{
		{Verb: Stranger, Key: key, N: 1 + d.IntN(200), After: pick(d, 0, 30*second), Pause: pick(d, ms, 10*ms, 50*ms)},
		{Verb: Surge, Who: d.IntN(p.Processes), Key: key, After: pick(d, full, time.Duration(d.Int64N(int64(15*second))).Truncate(ms))},
	}
}

// stranger is a process without standing shares that comes, uses a key and leaves.
func (w *player) stranger(s *Step) {
	const beside = 3000 // its slot
	if w.plan.Policies[s.Which].Standing == tiered.StandingOff || w.plan.Real || w.plan.Thin {
		return
	}
	n, _ := w.slots[s.Who].wire.state()
	p := w.start(beside, n, func(_ int, x *tiered.Policy) { x.Standing = tiered.StandingOff })
	p.register()
	p.ask(0, s.Which, s.Key, 1, false, tiered.Limit{})
	time.Sleep(4 * second) // the others notice it within 3 s: until then a key may get the eighth too much that the guide names
	for range s.N {
		p.ask(0, s.Which, s.Key, 1, false, tiered.Limit{})
		time.Sleep(s.Pause)
	}
	if err := p.leave(time.Minute); err != nil {
		w.faultf("recovery", "Close: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = append(w.gone, p)
	for _, all := range w.histories {
		for _, b := range all {
			b.noMore(beside, w.now())
		}
	}
}

// surge takes all that a key has, in one process after the other.
func (w *player) surge(s *Step) {
	for i := range w.slots {
		p := w.slots[(s.Who+i)%len(w.slots)]
		for refused := 0; refused < 10; {
			if d := p.ask(0, s.Which, s.Key, 1, false, tiered.Limit{}); d.Allowed {
				refused = 0
			} else {
				refused++
			}
			if w.plan.Thin || w.plan.Real {
				break
			}
		}
	}
}
