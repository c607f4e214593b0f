package legal

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// alternating gives a plan two processes and an ordinary token bucket.
func (d *drawer) alternating(p *Plan) {
	x := tiered.Policy{Name: "p0", FailMode: tiered.FailMode(d.IntN(3)), Limit: d.ordinary(), Lease: d.lease()}
	for !valid(x) {
		x.Lease = d.lease()
	}
	p.only(Calm, x)
	p.Processes, p.Single = max(p.Processes, 2), false
}

// ordinary draws a limit of a second or so.
func (d *drawer) ordinary() tiered.Limit {
	rate := pick(d, int64(20), 50, 100, 200)
	return tiered.Limit{Tokens: rate, Per: second, Burst: rate * pick(d, int64(1), 2, 4) / 2}
}

// larger draws two callers of one key with different limits.
func (d *drawer) larger(p *Plan) []Step {
	other := d.ordinary()
	if q := p.Policies[0]; !single(q.Limit) || q.Standing > 0 || q.CheckLimit(other) != nil {
		return nil
	}
	scene := []Step{{
		Verb: Alternate, Who: d.IntN(p.Processes), Key: d.IntN(keys), N: d.IntN(100), Limit: other,
		After: pick(d, 0, second, 12*second),
	}}
	p.name(d, 0, other)
	return scene
}

// alternate has two callers ask for one key, by the key's limit and by another one that their
// requests carry, in one process or in two. Together they ask for more than the larger rate brings,
// and must get 0.95 of that. What leases hold and Redis has at the end counts, less what they had
// at the beginning: it was not lost. What the key had saved goes first, and does not: it is that of
// the smaller burst if its caller was the first. The worst of 292 such scenes had 0.968. In fleets
// that begin with a full bucket, and count only what was admitted, it is 0.94 to 0.98: see
// TestProcessesWithDifferentLimits of package tiered.
func (p *process) alternate(s *Step) {
	const (
		drains = second      // what was left of the key
		length = 10 * second // what is judged
		least  = 0.95
	)
	w, next, beside := p.player, p.player.slots[(s.Who+s.N%3)%len(p.player.slots)], 2000+p.slot
	w.streams.Wait()
	b := w.histories[s.Which][s.Key]
	w.mu.Lock()
	own, owes := p.limit(s.Which, s.Key), len(b.unasked) > 0 // what a fail mode admitted is charged meanwhile
	w.mu.Unlock()
	if free(own) || owes || w.plan.Thin || w.plan.Real || w.moved {
		return
	}
	rate := float64(max(own.Tokens, s.Limit.Tokens)) / second.Seconds()
	asks := [...][2]float64{{0.75, 0.75}, {1.5, 0.15}, {1.5, 1.5}, {0.15, 1.5}}[s.N%4]
	w.enter(0)
	w.mu.Lock()
	b.inForce(beside, w.now(), s.Limit)
	w.mu.Unlock()
	for range 20 { // what the key has saved
		d := p.ask(0, s.Which, s.Key, 1, false, own)
		p.ask(0, s.Which, s.Key, max(d.Remaining, 1), false, own)
	}
	random := rand.New(rand.NewPCG(w.plan.Seed, uint64(s.N)))
	alternate := func(length time.Duration) {
		for start := w.now(); ; {
			time.Sleep(time.Duration(random.ExpFloat64() / (asks[0] + asks[1]) / rate * 1e9))
			if w.now()-start > length {
				return
			}
			q, limit := p, own
			if random.Float64()*(asks[0]+asks[1]) > asks[0] {
				q, limit = next, s.Limit
			}
			w.meanwhile(func(lane time.Duration) { q.ask(lane, s.Which, s.Key, 1, false, limit) })
		}
	}
	most := max(burst(own), burst(s.Limit))
	held := func() (n int64) {
		for _, q := range w.slots {
			n += q.group.Stats().Policies[w.plan.Policies[s.Which].Name].Leases.Held
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return n + b.waits(w.now(), rate, most) // while all hold off
	}
	alternate(drains)
	before, from := held(), w.now()
	alternate(length)
	to := w.now()
	got := held() - before
	w.streams.Wait()
	time.Sleep(lua.TermsHold + second) // until then a request that carries less leaves a key the larger limit
	for _, q := range []*process{p, next} {
		q.ask(0, s.Which, s.Key, 1, false, own)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range b.sure {
		if t := time.Duration(a.After); t > from && t <= to {
			got += a.Tokens
		}
	}

	if float64(got) < least*rate*length.Seconds() {
		w.fault("under", "policy %d, key %d: two callers with %s and %s got %d tokens in %v",
			s.Which, s.Key, proof.Code(own), proof.Code(s.Limit), got, to-from)
	}
	b.noMore(beside, w.now())
}

// waits returns what waits in Redis, since the last call and at a rate per second. It does not come
// into the room of a lease before that is over.
func (b *history) waits(now time.Duration, rate float64, most int64) int64 {
	leases, level, at := map[string]held{}, 0.0, time.Duration(0)
	for _, c := range b.calls {
		level, at = float64(c.Level), c.at
		if c.Lease != "" {
			leases[c.Lease] = held{c.Hold + granted(c), c.at + time.Duration(c.TTL)*time.Microsecond}
		}
	}
	room := float64(most)
	var live []held
	for _, l := range leases {
		if l.until > at {
			live, room = append(live, l), room-float64(l.tokens)
		}
	}
	slices.SortFunc(live, func(x, y held) int { return cmp.Compare(x.until, y.until) })
	for _, l := range append(live, held{0, now}) {
		until := min(l.until, now)
		level = min(level+rate*(until-at).Seconds(), room)
		if at = until; l.until <= now {
			room += float64(l.tokens)
		}
	}
	return int64(level)
}

// twoPlans draws a stream whose requests carry the key's limit or another one.
func (d *drawer) twoPlans(p *Plan) []Step {
	which := d.IntN(len(p.Policies))
	x := p.Policies[which]
	if x.Algorithm != tiered.TokenBucket || !single(x.Limit) {
		return nil
	}
	other := d.another(x)
	if free(other) {
		return nil
	}
	scene := []Step{{
		Verb: Stream, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: 20 + d.IntN(100), Limit: other,
		Pause: pick(d, ms, 10*ms, 40*ms, 300*ms), After: pick(d, 0, 20*ms, second, 12*second),
	}}
	p.name(d, which, other)
	return scene
}

// listing gives a plan a policy of two or three limits, which plans, PerKey and changes give other
// numbers.
func (d *drawer) listing(p *Plan) {
	x := tiered.Policy{Name: "p0", Algorithm: pick(d, tiered.TokenBucket, tiered.SlidingWindow), FailMode: tiered.FailMode(d.IntN(3))}
	for {
		x.Lease, x.Limit = d.lease(), d.limit(x.Algorithm)
		for range pick(d, 1, 1, 2) {
			x.Limit = x.Limit.And(d.limit(x.Algorithm))
		}
		if valid(x) {
			break
		}
	}
	x = d.withStanding(x)
	p.only(p.Class, x)
	p.Plans[0] = d.one(2)
	for range 30 + d.IntN(40) {
		s := d.step(p)
		// So far Change and Restart are of the first limit only. In another window of it no list of x is valid.
		if s.Limit.Also != (tiered.Further{}) && (x.Algorithm == tiered.SlidingWindow || d.one(2)) {
			s.Limit = d.others(x)
		}
		p.Steps = append(p.Steps, s)
	}
}

// lists reports whether keys or requests have lists of limits, which have the windows of the policy.
func (p *Plan) lists() bool {
	return p.Plans[0] && !single(p.Policies[0].Limit) || slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Verb == Stream && !single(s.Limit) })
}

// others draws as many limits as a policy has, of the same periods.
func (d *drawer) others(x tiered.Policy) tiered.Limit {
	for {
		each := x.Limit.Each()
		for i := range each {
			switch l := &each[i]; d.IntN(3) {
			case 0:
				l.Tokens = max(l.Tokens*pick(d, int64(2), 4, 100)/pick(d, int64(1), 8, 20), 1)
			case 1:
				l.Burst = d.tokens()
			}
			if x.Algorithm != tiered.TokenBucket {
				each[i].Burst = 0
			}
		}
		next := x
		next.Limit = each[0].And(each[1:]...)
		if valid(next) && x.CheckLimit(next.Limit) == nil {
			return next.Limit
		}
	}
}

// twoLists is twoPlans of several limits.
func (d *drawer) twoLists(p *Plan) []Step {
	which := d.IntN(len(p.Policies))
	if single(p.Policies[which].Limit) || !calm(p) {
		return nil
	}
	other := d.others(p.Policies[which])
	p.name(d, which, other)
	return []Step{{
		Verb: Stream, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: 20 + d.IntN(100), Limit: other,
		Pause: pick(d, ms, 10*ms, 40*ms, 300*ms), After: pick(d, 0, 20*ms, second, 12*second),
	}}
}

// name makes a limit that requests carry that of a plan of the policy, often if it can. Then they
// carry the plan's name.
func (p *Plan) name(d *drawer, which int, limit tiered.Limit) {
	with := p.Policies[which]
	with.Plans = maps.Clone(with.Plans)
	if with.Plans == nil {
		with.Plans = map[string]tiered.Limit{}
	}
	with.Plans[fmt.Sprint("plan", len(with.Plans))] = limit
	if !d.one(3) && p.stays(which, with) {
		p.Policies[which] = with
	}
}

// stays reports whether a policy is valid, alone and with each limit that the steps give it.
func (p *Plan) stays(which int, x tiered.Policy) bool {
	ok := !p.Plans[which] && valid(x)
	for _, s := range p.Steps {
		if next := x; ok && s.Which == which && (s.Verb == Change || s.Verb == Restart) && s.Limit != (tiered.Limit{}) {
			next.Limit = s.Limit
			ok = valid(next)
		}
	}
	return ok
}

// carry returns a use that goes by a limit: by the name of the plan that has it, if there is one.
func carry(l *tiered.Limiter, key string, cost int64, limit tiered.Limit) tiered.Use {
	x, u := l.Policy(), l.For(key).N(cost)
	for name, of := range x.Plans {
		if of == limit {
			return u.WithPlan(name)
		}
	}
	if len(x.Plans) > 0 && limit == x.Limit {
		return u.WithPlan("")
	}
	return u.WithLimit(limit)
}

// twoPlans is a stream whose requests carry the key's limit and another one by turns, as while a
// token is replaced.
func (p *process) twoPlans(lane time.Duration, s *Step) {
	const beside = 1000 // slots of limits that are in force beside those of the processes
	w, b := p.player, p.player.histories[s.Which][s.Key]
	own := p.own(s)
	if free(own) {
		return
	}
	w.enter(lane)
	w.mu.Lock()
	b.inForce(beside+p.slot, w.now(), s.Limit)
	w.mu.Unlock()
	for i := range s.N {
		limit := own
		if i%2 == 1 || s.N%3 == 0 && i > s.N/2 {
			limit = s.Limit
		}
		p.ask(lane, s.Which, s.Key, 1, false, limit)
		time.Sleep(s.Pause)
	}
	p.ask(lane, s.Which, s.Key, 1, false, own)
	w.mu.Lock()
	b.noMore(beside+p.slot, w.now())
	w.mu.Unlock()
}

// noMore records that a slot has no limit any more.
func (b *history) noMore(slot int, now time.Duration) {
	if i, ok := b.open[slot]; ok {
		b.terms[i].closed = now
		delete(b.open, slot)
	}
}

// uses reports whether a call of a token bucket uses the burst or the rate of a term: a key whose
// requests carry different limits may have the one of this and the other of that.
func (b *history) uses(t *term, c *lua.Call) bool {
	limits := c.Limits()
	for i, l := range t.Each() {
		if limits[i].Cap == burst(l) || limits[i].Tokens == l.Tokens && limits[i].Period == l.Per.Microseconds() {
			return true
		}
	}
	return b.by(t, c)
}
