package legal

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What operators do, and what befalls the store.

// reset fills a bucket.
func (w *player) reset(p *process, policy, key int) {
	before := w.enter(0)
	err := p.limiters[policy].Reset(context.Background(), keyName(key))
	w.mu.Lock()
	rule := p.limit(policy, key)
	w.histories[policy][key].reset(before, w.now())
	w.histories[policy][key].fills(p)
	w.line("reset: %v", err)
	w.mu.Unlock()
	if err != nil {
		// After a step of the clock it may be unknown whether Redis did it.
		if w.plan.Class == Calm && !w.moved {
			w.faultf("recovery", "Reset: %v", err)
		}
		return
	}
	// Leases of other processes stay until they are over, and so does the last lease of a process
	// that is gone.
	b := w.histories[policy][key]
	over := before > b.lent
	alone := w.plan.Processes == 1 && w.plan.Class == Calm && len(w.gone) == 0 ||
		w.plan.Policies[policy].Algorithm == tiered.SlidingLog || over
	if rule == tiered.Blocked() || w.plan.Class != Calm && !w.ends || !alone || w.busy.Load() > 0 {
		return
	}
	if w.moved && w.plan.Policies[policy].Algorithm == tiered.FixedWindow {
		return // the first call after a step back counts on in another window: a reset that was meant for the one before comes too late
	}
	w.enter(0)
	d := p.limiters[policy].Peek(context.Background(), keyName(key))
	least := int64(1)
	// A share fills in its own process only.
	if over && !w.moved && w.plan.Policies[policy].Standing == 0 || p.whole(policy, key) {
		least = d.Burst
		for _, l := range rule.Each() { // Burst may be that of another limit than has the fewest tokens
			least = min(least, burst(l))
		}
	}
	if d.Remaining < least {
		w.faultf("recovery", "Reset of policy %d returned nil, and then %d of %d remain, not %d: %v",
			policy, d.Remaining, d.Burst, least, d.Reason)
	}
}

// restart closes a process, or kills it, and starts another in its place.
func (w *player) restart(s *Step) {
	p := w.slots[s.Who]
	patience := [...]time.Duration{0, 100 * ms, 2 * second}[s.N%3]
	if w.plan.Class == Calm {
		patience = time.Minute
	}
	w.streams.Wait() // running requests end first
	n, _ := p.wire.state()
	if s.Verb == Crash {
		p.wire.mu.Lock()
		p.wire.dead = true
		p.wire.mu.Unlock()
		w.mu.Lock()
		p.leaves = true
		w.mu.Unlock()
	} else if err := p.leave(patience); err != nil && w.plan.Class == Calm {
		w.faultf("recovery", "Close: %v", err)
	}
	w.mu.Lock()
	w.gone = append(w.gone, p)
	mine := w.reservations[:0]
	for _, r := range w.reservations { // a process' reservations end with it
		if r.by != p {
			mine = append(mine, r)
		}
	}
	w.reservations = mine
	w.mu.Unlock()
	w.open(s.Who, s.Which, s.Limit, n)
}

// accident plays a fault of the store itself.
func (w *player) accident(s *Step) {
	b := w.backend
	if b.Step == nil {
		return
	}
	now := w.enter(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s.Verb {
	case Vanish:
		w.vanished = true
		for bucket, book := range w.buckets {
			if book.policy == s.Which && book.key == s.Key {
				b.Lose(bucket)
				book.accident(now, math.MaxInt64)
			}
		}
	case Back, Ahead:
		by := s.Pause
		if s.Verb == Back {
			by = -by
		}
		b.Step(by)
		w.moved, w.ahead = true, w.ahead || by > 0
		for _, all := range w.histories {
			for _, book := range all {
				book.moved(now, by)
			}
		}
	}
}

// reload draws a reload.
func (d *drawer) reload(p *Plan) []Step {
	return []Step{{
		Verb: Reload, Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), N: d.IntN(10),
		Pause: pick(d, 0, 0, 20*ms, second),
	}}
}

// reload removes a policy from a process and adds it again, as two reloads of a configuration do,
// or three with another policy of the name between, which nobody uses. Whether requests go on with
// the Limiter of before or with that of now makes no difference.
func (p *process) reload(s *Step) {
	w, name := p.player, p.player.plan.Policies[s.Which].Name
	w.enter(0)
	var all []tiered.Policy
	for i := range w.plan.Policies {
		if l, ok := p.group.Limiter(w.plan.Policies[i].Name); ok {
			all = append(all, l.Policy())
		}
	}
	others := slices.DeleteFunc(slices.Clone(all), func(x tiered.Policy) bool { return x.Name == name })
	changed := func() {
		w.mu.Lock()
		w.reloaded[s.Which] = w.now()
		delete(p.agreed, name)
		w.mu.Unlock()
	}
	changed()
	if err := p.group.SetPolicies(others); err != nil {
		w.faultf("health", "SetPolicies: %v", err)
	}
	p.register() // without its policy a Limiter fails closed
	if s.N >= 6 {
		between := append(slices.Clone(others), tiered.Policy{Name: name, Limit: tiered.PerSecond(1), Algorithm: tiered.SlidingLog})
		for _, list := range [][]tiered.Policy{between, others} {
			if err := p.group.SetPolicies(list); err != nil {
				w.faultf("health", "SetPolicies: %v", err)
			}
		}
		runtime.GC() // takes its Limiter
	}
	time.Sleep(s.Pause)
	changed()
	if err := p.group.SetPolicies(all); err != nil {
		w.faultf("health", "SetPolicies: %v", err)
	}
	if l, ok := p.group.Limiter(name); !ok {
		w.faultf("health", "no policy %s after a reload", name)
	} else if s.N%2 == 0 {
		p.limiters[s.Which] = l
	}
	p.register()
}
