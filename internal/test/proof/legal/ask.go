package legal

import (
	"cmp"
	"context"
	"math"
	"slices"
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

// cost returns what a request of a step costs: usually a part of the burst, and sometimes more than
// the burst.
func (p *process) cost(s *Step) int64 {
	l := p.own(s)
	most := burst(l)
	if free(l) {
		most = burst(p.player.plan.Policies[s.Which].Limit)
	}
	costs := [...]int64{1, 1, 1, 2, most / 4, most / 2, most, most, most * 9 / 10, most + 1}
	return max(costs[s.N%len(costs)], 1)
}

// free reports whether nothing is counted by a limit.
func free(l tiered.Limit) bool { return l == tiered.Unlimited() || l == tiered.Blocked() }

// burst returns the most tokens that a limit admits at once.
func burst(l tiered.Limit) int64 {
	if each := l.Each(); len(each) > 1 {
		return burst(slices.MinFunc(each, func(x, y tiered.Limit) int { return cmp.Compare(burst(x), burst(y)) }))
	}
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Tokens
}

// one requests one token of a step's key.
func (p *process) one(s *Step) tiered.Decision {
	return p.ask(0, s.Which, s.Key, 1, false, tiered.Limit{})
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
	if s.Verb == Amid {
		ctx = &meeting{ctx, func() { w.settle(&Step{Verb: Cancel}) }}
	}
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
	if legs := p.decided(w.histories[policy][key], cost, before, after, &d, w.patience(s)); legs != nil && reserve {
		w.reservations = append(w.reservations, &reservation{r, p, legs})
	}
	return d
}

// byOwn checks that a request without a limit went by the key's own, whatever others carried
// before; mu is held.
func (w *player) byOwn(policy int, own tiered.Limit, d *tiered.Decision) {
	of := w.plan.Policies[policy]
	byLimit := tiered.Granted <= d.Reason && d.Reason <= tiered.FallbackSpent
	if want := burst(own); byLimit && single(of.Limit) && of.Standing == 0 && d.Burst != want {
		w.fault("not by its own limit", "at %v: %+v, want a burst of %d", w.now(), d, want)
	}
}

// decided records a decision over one key, and returns what was admitted; mu is held.
func (p *process) decided(b *history, cost int64, before, after time.Duration, d *tiered.Decision, patience time.Duration) []part {
	w := p.player
	p.counts[b.policy].count(d, cost)
	b.dearest = max(b.dearest, cost)
	w.line("process %d policy %d key %d cost %d: %v %v %d", p.slot, b.policy, b.key, cost, d.Reason, d.Tier, d.Remaining)
	w.inTime(before, after, patience, d)
	p.fellBack(b, cost, before, after, d)
	if d.Tier == tiered.Failover {
		b.vain(p, before, after, cost)
	}
	if !d.Allowed || d.Burst == math.MaxInt64 {
		return nil
	}
	legs := []part{{b, after, cost, d.Reason == tiered.Granted}}
	w.admit(before, after, legs)
	return legs
}

// inTime checks how long a request took, and that Redis decided it if there was time for that; mu
// is held.
func (w *player) inTime(before, after, patience time.Duration, d *tiered.Decision) {
	const lanes = 10 * time.Microsecond // requests of one instant leave one after the other
	if took := after - before; took > patience+lanes && !w.plan.Real {
		w.fault("late", "at %v a request took %v, and has %v", w.now(), took, patience)
	}
	if d != nil && w.decides(patience) {
		w.unavailable(d)
	}
}

// unavailable records that a fail mode decided while nothing was disturbed; mu is held.
func (w *player) unavailable(d *tiered.Decision) {
	if d.Tier == tiered.Failover && (w.plan.Class == Calm || w.ends) {
		kind := "health"
		if w.plan.Class != Calm {
			kind = "recovery"
		}
		w.fault(kind, "at %v policy %s, key %s: %v, and nothing is wrong", w.now(), d.Policy, d.Key, d.Reason)
	}
}

// admit records what was admitted; mu is held.
func (w *player) admit(before, after time.Duration, legs []part) {
	for _, x := range legs {
		x.history.admitted(before, after, x.cost, x.sure)
	}
}

// legs returns requests of one key of each policy, and sometimes two of the same policy.
func (p *process) legs(s *Step) (legs []part, uses []tiered.Use) {
	add := func(policy, key int, cost int64) {
		uses = append(uses, p.limiters[policy].For(keyName(key)).N(cost))
		legs = append(legs, part{history: p.player.histories[policy][key], cost: cost})
	}
	if s.Verb == Together && s.N%3 == 0 { // each by itself
		add(s.Which, s.Key, 1)
	}
	for i := range p.limiters {
		add(i, s.Key, 1+int64(s.N)%2)
	}
	if s.N > 5 {
		add(s.Which, (s.Key+1)%keys, 1)
	}
	return legs, uses
}

// apart requests them at once, each by itself, and one of them twice.
func (p *process) apart(s *Step) {
	w := p.player
	legs, uses := p.legs(s)
	each := make([]tiered.Decision, len(uses))
	before := w.enter(0)
	tiered.All(uses...).AllowSeparately(context.Background(), each)
	after := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range legs {
		p.decided(x.history, x.cost, before, after, &each[i], w.plan.Options.Budget)
	}
}

// plan0 is the first plan of each policy that has plans.
const plan0 = "plan0"

// plan notes that requests of some keys carry the limits of plan0, where their policies have it, or
// that they do not any more. It reports whether any has; mu is held.
func (p *process) plan(legs []part, carry bool) (any bool) {
	const beside = 4000 // slots of these limits
	for _, x := range legs {
		limit, ok := p.limiters[x.history.policy].Policy().Plans[plan0]
		if any = any || ok; ok && carry {
			x.history.inForce(beside+p.slot, p.player.now(), limit)
		} else if ok {
			x.history.noMore(beside+p.slot, p.player.now())
		}
	}
	return any
}

// together requests them at once, all or none.
func (p *process) together(s *Step, reserve bool) {
	w := p.player
	legs, uses := p.legs(s)
	// limited reports whether a limit decides and the policy fails closed. Otherwise something else
	// may have admitted.
	limited := func(i int) bool {
		x := p.limiters[legs[i].history.policy]
		l := p.limit(legs[i].history.policy, legs[i].history.key)
		return x.Policy().FailMode == tiered.FailClosed && !free(l)
	}
	before := w.enter(0)
	w.mu.Lock()
	for i := range legs {
		legs[i].sure = limited(i)
	}
	use, planned := tiered.All(uses...), false
	if s.N%2 == 1 { // one plan for all of them
		if planned = p.plan(legs, true); planned {
			use = use.WithPlan(plan0)
		}
	}
	w.mu.Unlock()
	ctx, cancel := s.context()
	defer cancel()
	r := use.Reserve(ctx)
	after, d := w.now(), r.Decision
	w.mu.Lock()
	defer w.mu.Unlock()
	if planned {
		p.plan(legs, false)
	}
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
		if !planned && w.plan.Policies[x.history.policy].Name == d.Policy && keyName(x.history.key) == d.Key { // the strictest
			p.fellBack(x.history, x.cost, before, after, &d)
		}
	}
	if !d.Allowed || d.Tier == tiered.Failover {
		for _, x := range legs {
			x.history.vain(p, before, after, x.cost)
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
			x.history.vain(r.by, now, now, x.cost-n)
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
func (p *process) await(ctx context.Context, lane time.Duration, s *Step) {
	w, l, b := p.player, p.limiters[s.Which], p.player.histories[s.Which][s.Key]
	before := w.enter(lane)
	rule := p.own(s)
	err := l.Wait(ctx, keyName(s.Key))
	after := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.counts[s.Which].unsure = true; err != nil {
		b.vain(p, before, after, 1)
		return
	}
	p.counts[s.Which].admitted++
	p.counts[s.Which].tokens++
	if rule != tiered.Unlimited() {
		b.alone(after, 1)
		w.admit(before, after, []part{{b, after, 1, l.Policy().FailMode == tiered.FailClosed}})
	}
}

// hurry draws callers whose context ends before Budget does, of which some have gone already.
func (d *drawer) hurry(p *Plan) []Step {
	b := p.Options.Budget
	return []Step{{
		Verb: Hurry, Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), Key: d.IntN(keys), N: d.IntN(30),
		After: pick(d, 0, ms, 300*ms, 3*second), Pause: pick(d, 0, b/100, b/20, b/10, b/4, b/2, 9*b/10),
	}}
}

// hurry makes requests whose context ends soon. Each has its answer before a deadline. Who is
// canceled has it then, or within Budget if he makes the call himself.
func (p *process) hurry(s *Step) {
	if s.N%3 == 0 && !p.player.plan.Single {
		p.together(s, s.N%2 == 0)
		return
	}
	for range 1 + s.N/3 {
		p.askBy(s, 0, s.Which, s.Key, p.cost(s), s.N%2 == 0, tiered.Limit{})
	}
}

// context returns the context of a step's requests.
func (s *Step) context() (context.Context, context.CancelFunc) {
	if s.cancels() {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(s.Pause+3, cancel) // at an instant of its own
		return ctx, cancel
	}
	if s.Verb == Hurry {
		return context.WithTimeout(context.Background(), s.Pause)
	}
	return context.Background(), func() {}
}

// meeting is a context in which something happens when it is first asked for its deadline: a request
// has then looked at what its process holds, and has not called Redis yet.
type meeting struct {
	context.Context
	happens func()
}

func (c *meeting) Deadline() (time.Time, bool) {
	if happens := c.happens; happens != nil {
		c.happens = nil
		happens()
	}
	return c.Context.Deadline()
}

// amids draws requests that others meet, after a stream that has a process lease.
func (d *drawer) amids(p *Plan) []Step {
	s := Step{Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), Key: d.IntN(keys), N: 50, Pause: 2 * ms}
	s.Verb = Stream
	scene := []Step{s}
	for range 4 + d.IntN(12) {
		s.Verb, s.N, s.After = Amid, d.IntN(10_000), pick(d, 5*ms, 50*ms, 300*ms)
		scene = append(scene, s)
	}
	return scene
}

// amid takes some tokens and requests more. They come back just before that request calls Redis.
func (p *process) amid(s *Step) {
	most := int64(100)
	if l := p.own(s); !free(l) {
		most = min(most, burst(l))
	}
	back, cost := 1+int64(s.N)%most, 1+int64(s.N)/most%most
	if d := p.ask(0, s.Which, s.Key, back, true, tiered.Limit{}); !d.Allowed {
		return
	}
	p.askBy(s, 0, s.Which, s.Key, cost, true, tiered.Limit{})
}

// cancels reports whether the requests of a step are canceled after Pause.
func (s *Step) cancels() bool { return s.Verb == Hurry && s.N%4 == 3 }

// patience returns how long a request of a step takes at most. It leaves half of what its context
// has, or 10 ms if that is less, for the way back; and half of that if it asks twice.
func (w *player) patience(s *Step) time.Duration {
	if s.Verb == Hurry && !s.cancels() {
		return min(w.plan.Options.Budget, s.Pause*15/16)
	}
	return w.plan.Options.Budget
}

// decides reports whether the store can decide for a caller of a patience. It takes some round
// trips: to find a node, behind the calls that are under way, and of its own. A process that has
// heard few answers asks for nobody who does not wait for 2 ms then. A caller in a hurry may wait
// for no longer than half of what its context has.
func (w *player) decides(patience time.Duration) bool {
	if patience < w.plan.Options.Budget {
		patience = patience * 8 / 15
	}
	return patience >= max(10*w.plan.Trip, 2*ms+2*w.plan.Trip)
}
