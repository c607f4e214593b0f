package legal

import (
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// returning gives a plan an ordinary policy.
func (d *drawer) returning(p *Plan) {
	p.only(Rough, tiered.Policy{
		Algorithm: pick(d, Algorithms...), FailMode: pick(d, tiered.FailLocal, tiered.FailOpen),
		Limit: tiered.Limit{Tokens: pick(d, int64(100), 400), Per: pick(d, second, 10*second, time.Minute)},
	})
}

// comesBack draws a scene with a key that comes back at its end: after an outage, a changed window,
// a reset of what others leased, or a reservation that was given back late.
func (d *drawer) comesBack(p *Plan) []Step {
	which := d.IntN(len(p.Policies))
	x := p.Policies[which]
	per := min(perOf(x.Limit), 10*time.Minute)
	scene := d.scene(p, x, per)
	key, who := pick(d, 0, 0, 0, 1), d.IntN(p.Processes)
	for i := range scene {
		s := &scene[i]
		s.Which, s.Key = which, key
		if s.Verb != Stream && s.Verb != Others || d.one(2) { // others may have used it
			s.Who = who
		}
	}
	return append(scene, Step{
		Verb: Return, Who: who, Which: which, Key: key, Pause: pick(d, 0, per/8, per/2, per, per+per/8, 3*per),
	})
}

// scene draws what happens to a key before it comes back.
func (d *drawer) scene(p *Plan, x tiered.Policy, per time.Duration) []Step {
	other := func() int { return d.IntN(p.Processes) }
	spend := Step{Verb: Stream, Who: other(), N: 20 + d.IntN(80), Pause: pick(d, 0, ms, 3*ms)}
	switch n := d.IntN(4); {
	case n < 2 && p.Class != Calm:
		n := 20 + d.IntN(200)
		alone := Step{Verb: Stream, Who: other(), N: n, Pause: pick(d, 0, ms, per/time.Duration(2*n), 3*per/time.Duration(n))}
		others := Step{Verb: Others, Who: alone.Who, N: 5 + d.IntN(5)} // they open the breaker, and find out that all is well
		return []Step{
			{Verb: Ask, N: d.IntN(6)}, {Verb: Down, N: d.IntN(2)}, others, alone, others, {Verb: Well, After: pick(d, 0, per/4)}, others,
		}
	case n < 3 && x.Algorithm == tiered.SlidingWindow && !p.lists():
		to := x.Limit
		to.Per = pick(d, x.Limit.Per/2, x.Limit.Per/20, x.Limit.Per, 3*x.Limit.Per).Truncate(time.Microsecond)
		to.Precision = pick(d, 0, to.Per/7, to.Per/50).Truncate(time.Microsecond)
		if x.Limit = to; valid(x) {
			return []Step{{Verb: Ask, N: 6}, {Verb: Change, Limit: to, After: pick(d, 0, per/2)}, {Verb: Ask}, {Verb: Ask}}
		}
	case n < 3:
		return []Step{{Verb: Reserve, N: d.IntN(6)}, spend, {Verb: Ask, After: per / 20}, {Verb: Cancel, After: per / 20}}
	}
	last := spend
	last.Who = other()
	return []Step{spend, last, {Verb: Reset, After: pick(d, 0, 1300*ms, 2*second, 5*second)}}
}

// asked is a call of a process that the store executed.
type asked struct {
	at time.Duration
	lua.Call
	lua.Reply
}

// held is what a lease holds, and until when.
type held struct {
	tokens int64
	until  time.Duration
}

// countsFrom returns the tokens of a lease that a window counts that begins then: a lease that is
// still there counts until its process says what was spent, and that counts from then on. If it
// never says, all counts from the end of the lease on.
func (l held) countsFrom(from time.Duration) int64 {
	if l.until <= from {
		return 0
	}
	return l.tokens
}

// alone records tokens that a key may be charged with later, at a time or up to a quarter of a
// window after it.
func (b *history) alone(at time.Duration, n int64) {
	b.unasked = append(b.unasked, spending{at, at, n})
}

// counts returns an upper bound of the tokens that a window counts now: what the store granted to
// anybody in the time that it may count, less what came back, and what it may have been charged
// with. from is the beginning of that time.
func (b *history) counts(from, quarter time.Duration) (used int64) {
	leases, told, forgot := map[string]held{}, map[string]bool{}, time.Duration(-1)
	start := time.Duration(b.base.UnixMicro()) * time.Microsecond
	for _, c := range b.calls {
		old := leases[c.Lease]
		if c.Lease != "" {
			leases[c.Lease] = held{c.Hold, c.at + time.Duration(c.TTL)*time.Microsecond}
		}
		if c.at < from {
			if c.Lease != "" {
				leases[c.Lease] = held{c.Hold + granted(c), leases[c.Lease].until}
			}
			continue
		}
		if c.Lease != "" && !told[c.Lease] { // granted before
			told[c.Lease] = true
			used += max(c.Hold, old.countsFrom(from))
		}
		again := c.Code == lua.Replay // nothing comes back twice
		if c.Ret > 0 && old.until > c.at && !again {
			used -= min(c.Ret, old.tokens)
		}
		if at := time.Duration(c.At)*time.Microsecond - start; c.Refund > 0 && c.Flags&lua.Unapplied == 0 && !again && at >= from && at > forgot {
			used -= c.Refund
		}
		if c.Call.Reset > 0 && c.Flags&lua.Unapplied == 0 {
			used, forgot = c.Hold, c.at
			for id, l := range leases {
				if id != c.Lease && l.until > c.at {
					used += l.tokens
				} else if id != c.Lease {
					delete(leases, id)
				}
			}
			for id := range leases {
				told[id] = true
			}
		}
		used += granted(c)
		if c.Lease != "" {
			leases[c.Lease] = held{c.Hold + granted(c), leases[c.Lease].until}
		}
	}
	for id, l := range leases {
		if !told[id] {
			used += l.countsFrom(from)
		}
	}
	for _, x := range b.unasked {
		if after(x.at, quarter) >= from {
			used += x.n
		}
	}
	return used
}

func granted(c asked) int64 {
	if c.Code != lua.Granted {
		return 0
	}
	return c.Grant
}

// least returns the tokens that a key must have now by a limit of its policy, as far as that is
// known from what was admitted and granted. It is 0 if nothing is known.
func (b *history) least(now time.Duration, limit tiered.Limit) int64 {
	if len(b.moves) > 0 {
		return 0 // it is unknown when a clock was set
	}
	least := int64(math.MaxInt64)
	for _, l := range limit.Each() {
		if b.rules.Algorithm == tiered.TokenBucket {
			if !b.idle(now, l) {
				return 0
			}
			least = min(least, burst(l))
			continue
		}
		span, longest := perOf(l), perOf(l)
		if b.rules.Algorithm == tiered.SlidingWindow {
			span = after(span, 2*precision(l))
			for _, t := range b.terms { // a limit that the store does not know begins with the blocks of another
				for _, other := range t.Each() {
					span, longest = after(span, precision(other)), max(longest, other.Per)
				}
			}
		}
		least = min(least, l.Tokens-b.counts(now-span, after(longest/4, 2*ms)))
	}
	return max(least, 0)
}

// idle reports whether nobody used a bucket for so long that it is full, however low it was.
func (b *history) idle(now time.Duration, l tiered.Limit) bool {
	last := b.lent
	for _, c := range b.calls {
		if c.Grant+c.Hold+c.Ret+c.Debt+c.Refund > 0 {
			last = max(last, c.at)
		}
	}
	for _, all := range [][]spending{b.unasked, b.spent} {
		for _, x := range all {
			last = max(last, x.at)
		}
	}
	for _, t := range b.terms {
		if t.Limit != b.terms[0].Limit {
			return false
		}
	}
	lowest := float64(burst(l)+max(burst(l), b.rules.MaxDebt)) / float64(l.Tokens) * float64(l.Per)
	return float64(now-last) > lowest+float64(3*second)
}

// comeBack has a key asked for after it was idle for a while. It must have what nobody used.
func (p *process) comeBack(s *Step) {
	w, x, b := p.player, p.player.plan.Policies[s.Which], p.player.histories[s.Which][s.Key]
	if w.plan.Real || x.Standing > 0 || w.withoutNode() {
		return
	}
	w.streams.Wait()
	w.disturb(func(n *network) { *n = network{} })
	time.Sleep(max(s.Pause, 6*second)) // no refusal is believed for longer
	start := w.now()
	for {
		w.mu.Lock()
		limit := p.limit(s.Which, s.Key)
		least := b.least(w.now(), limit)
		w.mu.Unlock()
		if free(limit) || least < 1 {
			return
		}
		d := p.ask(0, s.Which, s.Key, least, false, tiered.Limit{})
		if d.Allowed && d.Tier != tiered.Failover {
			return
		}
		if w.now()-start > 6*second {
			w.faultf("under", "policy %d, key %d is refused %d of %d for 6 s, and nobody used them: %v, %d remain",
				s.Which, s.Key, least, d.Burst, d.Reason, d.Remaining)
			return
		}
		time.Sleep(300 * ms)
	}
}

// handing gives a plan two processes and an ordinary window.
func (d *drawer) handing(p *Plan) {
	p.only(Calm, tiered.Policy{
		Algorithm: pick(d, tiered.FixedWindow, tiered.SlidingWindow),
		Limit:     tiered.Limit{Tokens: pick(d, int64(100), 400, 2000), Per: pick(d, 10*second, time.Minute, time.Hour)},
	})
	p.Processes, p.Warm = max(p.Processes, 2), pick(d, 0, 10*second)
}

// handover draws a move of all requests of a key from one process to another, as after a client has
// connected again.
func (d *drawer) handover(p *Plan) []Step {
	which := slices.IndexFunc(p.Policies, func(x tiered.Policy) bool {
		return x.Algorithm == tiered.FixedWindow || x.Algorithm == tiered.SlidingWindow
	})
	if which < 0 || p.Processes < 2 {
		return nil
	}
	return []Step{{
		Verb: Handover, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: d.IntN(100),
		After: pick(d, 0, min(perOf(p.Policies[which].Limit)/2, time.Minute)),
	}}
}

// handover sends most of what a key may have through one process, as fast as it can, and what is
// left through another. The first process holds some of it in a lease. The second may be refused
// until that lease is over, and no longer.
func (p *process) handover(s *Step) {
	w, x, b := p.player, p.player.plan.Policies[s.Which], p.player.histories[s.Which][s.Key]
	next := w.slots[(s.Who+1)%len(w.slots)]
	w.streams.Wait()
	w.mu.Lock()
	limit := p.limit(s.Which, s.Key)
	same := limit == next.limit(s.Which, s.Key) && limit == x.Limit && len(b.terms) > 0
	for _, t := range b.terms {
		same = same && t.Limit == x.Limit
	}
	w.mu.Unlock()
	if !same || limit.Tokens > 5000 || !single(x.Limit) || x.Standing > 0 || w.moved || w.withoutNode() || w.plan.Real || w.plan.Thin {
		return
	}
	for range limit.Tokens * int64(50+s.N/2) / 100 {
		p.one(s)
	}
	// A lease that is idle is prolonged once, and then given back. The rest is for the call that
	// asks again.
	patience := b.life + b.life/2 + 300*ms
	refused := time.Duration(-1)
	for start := w.now(); w.now()-start < 4*b.life && w.now()-start < 2*time.Minute; time.Sleep(20 * ms) {
		w.mu.Lock()
		used := b.mayCount(w.now(), limit)
		w.mu.Unlock()
		if d := next.one(s); d.Allowed || used >= limit.Tokens {
			refused = -1
		} else if refused < 0 {
			refused = w.now()
		}
		if refused >= 0 && w.now()-refused > patience {
			w.faultf("under", "policy %d, key %d is refused for %v while %d of %d are used", s.Which, s.Key, w.now()-refused, used,
				limit.Tokens)
			return
		}
	}
}

// mayCount returns the most tokens that a window may count now: all that was admitted or charged in
// its length.
func (b *history) mayCount(now time.Duration, l tiered.Limit) (used int64) {
	span := perOf(l)
	if b.rules.Algorithm == tiered.SlidingWindow {
		span = after(span, 2*precision(l))
	}
	for _, x := range b.spent {
		if x.n > 0 && after(x.at, span) >= now {
			used += x.n
		}
	}
	return used
}
