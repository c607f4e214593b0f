package legal

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// reservation is tokens that may be given back.
type reservation struct {
	tiered.Reservation
	by    *process
	parts []part
}

// part is the part of a request that concerns one key.
type part struct {
	history *history
	at      time.Duration // when it was admitted
	cost    int64
	sure    bool // by Redis' tokens; otherwise it may have been
}

// do plays a step.
func (w *player) do(i int, s *Step) {
	time.Sleep(s.After)
	w.tell("step %d: %v", i, *s)
	p := w.slots[s.Who]
	l := p.limiters[s.Which]
	ctx := context.Background()
	switch s.Verb {
	case Ask:
		p.ask(0, s.Which, s.Key, p.cost(s), false, tiered.Limit{})
	case Reserve:
		p.ask(0, s.Which, s.Key, p.cost(s), true, tiered.Limit{})
	case Together, Both:
		if s.Verb == Together && s.N%3 == 0 {
			p.apart(s)
			return
		}
		p.together(s, s.Verb == Both)
	case Crowd:
		for range s.N {
			w.meanwhile(func(lane time.Duration) { p.ask(lane, s.Which, s.Key, 1, true, tiered.Limit{}) })
		}
	case Stream:
		p.stream(0, s)
	case Behind:
		w.meanwhile(func(lane time.Duration) { p.stream(lane, s) })
	case Cancel, Settle:
		w.settle(s)
	case Await:
		p.await(s)
	case Peek:
		w.enter(0)
		l.Peek(ctx, keyName(s.Key))
		p.group.Stats()
	case Others:
		for n := range s.N {
			w.enter(0)
			d := l.Allow(ctx, fmt.Sprintf("other%d.%d", i, n))
			w.mu.Lock()
			p.counts[s.Which].count(&d, 1)
			w.mu.Unlock()
		}
	case Rule:
		w.mu.Lock()
		p.rules[s.Which][s.Key] = s.Limit
		w.mu.Unlock()
		carries := w.plan.Policies[s.Which].Standing == tiered.StandingOff && s.Limit != (tiered.Limit{})
		if s.N%2 == 1 && carries { // a request carries what PerKey returns from now on
			p.register()
			p.ask(0, s.Which, s.Key, 1, false, s.Limit)
			return
		}
		l.Refresh(keyName(s.Key))
		p.register()
	case Change:
		p.change(s.Which, func(x *tiered.Policy) { x.Limit = s.Limit })
	case Tune:
		p.change(s.Which, func(x *tiered.Policy) { x.Lease, x.FailMode = s.Lease, s.FailMode })
	case Move:
		w.move(s)
	case Meter:
		p.meter(s)
	case Charge:
		p.charge(s, p.later(s), false)
	case Refund:
		p.refund(s)
	case AtMost:
		p.atMost(s)
	case Queue:
		p.queue(s)
	case Handover:
		p.handover(s)
	case Return:
		p.comeBack(s)
	case Alternate:
		p.alternate(s)
	case Stranger:
		w.stranger(s)
	case Surge:
		w.surge(s)
	case Hurry:
		p.hurry(s)
	case Steady:
		p.steady(s)
	case Amend:
		p.amend(s)
	case Reload:
		p.reload(s)
	case Reset:
		w.reset(p, s.Which, s.Key)
	case Restart, Crash:
		w.restart(s)
	case Forget:
		w.backend.Forget()
	case Back, Ahead, Vanish:
		w.accident(s)
	default:
		w.setNetwork(s)
	}
}

// setNetwork changes the disturbances of network and store.
func (w *player) setNetwork(s *Step) {
	w.disturb(func(n *network) {
		switch s.Verb {
		case Lossy:
			n.loss = s.N
		case Slow:
			n.slow = s.Pause
		case Far:
			n.far, n.slow = s.Pause, s.Pause
		case Repeat:
			n.repeat = true
		case Down:
			n.down, n.hangs = true, s.N%2 == 0
		case Well:
			*n = network{}
		}
	})
}

// change sets another policy in a process, if validation accepts it.
func (p *process) change(policy int, change func(*tiered.Policy)) {
	l := p.limiters[policy]
	x := l.Policy()
	change(&x)
	p.player.enter(0)
	if err := l.SetPolicy(x); err != nil {
		p.player.tell("%v", err)
		return
	}
	p.register()
}

// cost returns what a request of a step costs: usually a part of the burst, and sometimes more than the burst.
func (p *process) cost(s *Step) int64 {
	p.player.mu.Lock()
	l := p.limit(s.Which, s.Key)
	p.player.mu.Unlock()
	most := burst(l)
	if l == tiered.Unlimited() || l == tiered.Blocked() {
		most = burst(p.player.plan.Policies[s.Which].Limit)
	}
	costs := [...]int64{1, 1, 1, 2, most / 4, most / 2, most, most, most * 9 / 10, most + 1}
	return max(costs[s.N%len(costs)], 1)
}

// burst returns the most tokens that a limit admits at once.
func burst(l tiered.Limit) int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Tokens
}

// ask requests tokens of one key. A limit that is not zero is carried by the request.
func (p *process) ask(lane time.Duration, policy, key int, cost int64, reserve bool, limit tiered.Limit) tiered.Decision {
	return p.askBy(&Step{}, lane, policy, key, cost, reserve, limit)
}

// askBy is ask in the context of a step.
func (p *process) askBy(s *Step, lane time.Duration, policy, key int, cost int64, reserve bool, limit tiered.Limit) tiered.Decision {
	w, l := p.player, p.limiters[policy]
	var r tiered.Reservation
	before := w.enter(lane)
	ctx, cancel := s.context()
	defer cancel()
	w.mu.Lock()
	own := p.limit(policy, key)
	w.mu.Unlock()
	if limit != (tiered.Limit{}) {
		r.Decision = carry(l, keyName(key), cost, limit).Allow(ctx)
	} else if reserve {
		r = l.ReserveN(ctx, keyName(key), cost)
	} else {
		r.Decision = l.AllowN(ctx, keyName(key), cost)
	}
	after, d := w.now(), r.Decision
	time.Sleep(lane) // others may have got the same answer
	w.mu.Lock()
	defer w.mu.Unlock()
	if limit == (tiered.Limit{}) && own == p.limit(policy, key) {
		w.byOwn(policy, own, &d)
	}
	if legs := p.decided(policy, key, cost, before, after, &d, w.patience(s)); legs != nil && reserve {
		w.reservations = append(w.reservations, &reservation{r, p, legs})
	}
	return d
}

// byOwn checks that a request without a limit went by the key's own, whatever others carried before; mu is held.
func (w *player) byOwn(policy int, own tiered.Limit, d *tiered.Decision) {
	of := w.plan.Policies[policy]
	byLimit := tiered.Granted <= d.Reason && d.Reason <= tiered.FallbackSpent
	if want := burst(own); byLimit && len(of.Also) == 0 && of.Standing == tiered.StandingOff && d.Burst != want {
		w.faults = append(w.faults, Fault{"not by its own limit", fmt.Sprintf("at %v: %+v, want a burst of %d", w.now(), d, want)})
	}
}

// decided records a decision over one key, and returns what was admitted; mu is held.
func (p *process) decided(policy, key int, cost int64, before, after time.Duration, d *tiered.Decision, patience time.Duration) []part {
	w := p.player
	p.counts[policy].count(d, cost)
	w.histories[policy][key].dearest = max(w.histories[policy][key].dearest, cost)
	w.line("process %d policy %d key %d cost %d: %v %v %d", p.slot, policy, key, cost, d.Reason, d.Tier, d.Remaining)
	w.inTime(before, after, patience, d)
	p.fellBack(policy, key, cost, before, after, d)
	if d.Tier == tiered.Failover {
		w.histories[policy][key].vain(before, after, cost)
		w.histories[policy][key].fills(p)
	}
	if !d.Allowed || d.Burst == math.MaxInt64 {
		return nil
	}
	legs := []part{{w.histories[policy][key], after, cost, d.Reason == tiered.Granted}}
	w.admit(before, after, legs)
	return legs
}

// inTime checks how long a request took, and that Redis decided it if there was time for that; mu is held.
func (w *player) inTime(before, after, patience time.Duration, d *tiered.Decision) {
	const lanes = 10 * time.Microsecond // requests of one instant leave one after the other
	if took := after - before; took > patience+lanes && !w.plan.Real {
		w.faults = append(w.faults, Fault{"late", fmt.Sprintf("at %v a request took %v, and has %v", w.now(), took, patience)})
	}
	if d != nil && w.decides(patience) {
		w.unavailable(d)
	}
}

// apart requests one key of each policy at once, each by itself, and one of them twice.
func (p *process) apart(s *Step) {
	w := p.player
	type asked struct {
		policy, key int
		cost        int64
	}
	all := []asked{{s.Which, s.Key, 1}}
	for i := range p.limiters {
		all = append(all, asked{i, s.Key, 1 + int64(s.N)%2})
	}
	if s.N > 5 {
		all = append(all, asked{s.Which, (s.Key + 1) % keys, 1})
	}
	uses, each := make([]tiered.Use, len(all)), make([]tiered.Decision, len(all))
	for i, a := range all {
		uses[i] = p.limiters[a.policy].For(keyName(a.key)).N(a.cost)
	}
	before := w.enter(0)
	tiered.All(uses...).AllowSeparately(context.Background(), each)
	after := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, a := range all {
		p.decided(a.policy, a.key, a.cost, before, after, &each[i], w.plan.Options.Budget)
	}
}

// unavailable records that a fail mode decided while nothing was disturbed; mu is held.
func (w *player) unavailable(d *tiered.Decision) {
	if d.Tier == tiered.Failover && (w.plan.Class == Calm || w.ends) {
		kind := "health"
		if w.plan.Class != Calm {
			kind = "recovery"
		}
		text := fmt.Sprintf("at %v policy %s, key %s: %v, and nothing is wrong", w.now(), d.Policy, d.Key, d.Reason)
		w.faults = append(w.faults, Fault{kind, text})
	}
}

// together requests one key of each policy at once, and sometimes two of the same policy.
func (p *process) together(s *Step, reserve bool) {
	w := p.player
	var uses []tiered.Use
	var legs []part
	add := func(policy, key int, cost int64) {
		uses = append(uses, p.limiters[policy].For(keyName(key)).N(cost))
		legs = append(legs, part{history: w.histories[policy][key], cost: cost})
	}
	for i := range p.limiters {
		add(i, s.Key, 1+int64(s.N)%2)
	}
	if s.N > 5 {
		add(s.Which, (s.Key+1)%keys, 1)
	}
	// limited reports whether a limit decides and the policy fails closed. Otherwise something else may have admitted.
	limited := func(i int) bool {
		x := p.limiters[legs[i].history.policy]
		l := p.limit(legs[i].history.policy, legs[i].history.key)
		return x.Policy().FailMode == tiered.FailClosed && l != tiered.Unlimited() && l != tiered.Blocked()
	}
	before := w.enter(0)
	w.mu.Lock()
	for i := range legs {
		legs[i].sure = limited(i)
	}
	w.mu.Unlock()
	ctx, cancel := s.context()
	defer cancel()
	r := tiered.All(uses...).Reserve(ctx)
	after, d := w.now(), r.Decision
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line("process %d together: %v %v", p.slot, d.Reason, d.Tier)
	w.inTime(before, after, w.patience(s), &d)
	for _, x := range legs {
		c := &p.counts[x.history.policy]
		if c.unsure = true; d.Allowed {
			c.admitted++
			c.tokens += x.cost
		} else { // a fail mode may have admitted a part
			c.vague = true
		}
		if w.plan.Policies[x.history.policy].Name == d.Policy && keyName(x.history.key) == d.Key { // the strictest
			p.fellBack(x.history.policy, x.history.key, x.cost, before, after, &d)
		}
	}
	if !d.Allowed || d.Tier == tiered.Failover {
		for _, x := range legs {
			x.history.vain(before, after, x.cost)
			x.history.fills(p)
		}
	}
	if !d.Allowed {
		return
	}
	for i := range legs {
		legs[i].at, legs[i].sure = after, legs[i].sure && limited(i)
		if d.Tier == tiered.Failover {
			legs[i].history.alone(after, legs[i].cost)
		}
	}
	w.admit(before, after, legs)
	if reserve {
		w.reservations = append(w.reservations, &reservation{r, p, legs})
	}
}

// admit records what was admitted; mu is held.
func (w *player) admit(before, after time.Duration, legs []part) {
	for _, x := range legs {
		x.history.admitted(before, after, x.cost, x.sure)
	}
}

// stream requests one token, again and again.
func (p *process) stream(lane time.Duration, s *Step) {
	if s.Limit != (tiered.Limit{}) {
		p.twoPlans(lane, s)
		return
	}
	for range s.N {
		p.ask(lane, s.Which, s.Key, 1, s.N%5 == 0, tiered.Limit{})
		time.Sleep(s.Pause)
	}
}

// settle gives a reservation back, in full or in part, or charges more.
func (w *player) settle(s *Step) {
	now := w.enter(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.reservations) == 0 {
		return
	}
	i := len(w.reservations) - 1 - s.N%min(len(w.reservations), 3)
	r := w.reservations[i]
	w.reservations = append(w.reservations[:i], w.reservations[i+1:]...)
	cancel := s.Verb == Cancel
	var actual []int64
	for _, x := range r.parts {
		n := [...]int64{0, x.cost / 2, x.cost, x.cost + 1, 2*x.cost + 3}[s.N%5]
		if cancel {
			n = 0
		}
		if actual = append(actual, n); n > x.cost {
			x.history.charged = now
		}
		if c := &r.by.counts[x.history.policy]; n > x.cost {
			c.tokens += min(n, 2<<40) - x.cost // Settle takes no more
			c.dearer = true
		}
		if n < x.cost && r.Tier == tiered.Failover { // once Redis has heard of it, it does not come back
			x.history.vain(now, now, x.cost-n)
		} else {
			x.history.settled(now, x.at, x.cost, n)
		}
		x.history.fills(r.by)
	}
	w.mu.Unlock()
	if cancel {
		r.Cancel()
	} else {
		r.Settle(actual...)
		r.Cancel() // the second call has no effect
	}
	w.mu.Lock()
}

// await waits for a token. It records the admission as certain only if the policy fails closed.
func (p *process) await(s *Step) {
	w, l := p.player, p.limiters[s.Which]
	ctx, cancel := context.WithTimeout(context.Background(), s.Pause)
	defer cancel()
	mode := l.Policy().FailMode
	before := w.enter(0)
	w.mu.Lock()
	rule := p.limit(s.Which, s.Key)
	w.mu.Unlock()
	err := l.Wait(ctx, keyName(s.Key))
	after := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.counts[s.Which].unsure = true; err == nil {
		p.counts[s.Which].admitted++
		p.counts[s.Which].tokens++
	}
	if err != nil {
		w.histories[s.Which][s.Key].vain(before, after, 1)
		w.histories[s.Which][s.Key].fills(p)
	}
	if err != nil || rule == tiered.Unlimited() {
		return
	}
	w.histories[s.Which][s.Key].alone(after, 1)
	w.admit(before, after, []part{{w.histories[s.Which][s.Key], after, 1, mode == tiered.FailClosed}})
}

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
	// Leases of other processes stay until they are over, and so does the last lease of a process that is gone.
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
	if over && !w.moved && w.plan.Policies[policy].Standing == tiered.StandingOff || p.whole(policy, key) {
		least = d.Burst
		for _, l := range w.plan.Policies[policy].Also { // Burst may be that of another limit than has the fewest tokens
			least = min(least, burst(l), burst(rule))
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
