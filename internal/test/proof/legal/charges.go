package legal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// charge draws costs that are known afterwards, gifts, parts and waiters.
func (d *drawer) charge(p *Plan) []Step {
	s := Step{
		Verb: pick(d, Meter, Meter, Charge, Refund, AtMost, AtMost, Queue, Reset), Who: d.IntN(p.Processes),
		Which: d.IntN(len(p.Policies)), Key: d.IntN(keys), N: d.IntN(200), After: pick(d, 0, 20*ms, 2*second, 2*time.Minute),
		Pause: pick(d, ms, 10*ms, 50*ms, 300*ms),
	}
	if p.Single && s.Verb == Queue {
		return nil
	}
	return []Step{s}
}

// splitting makes p a plan of an ordinary policy whose standing shares are full at its first step.
func (d *drawer) splitting(p *Plan) {
	x := tiered.Policy{
		Name: "p0", Standing: 1.0 / 8, FailMode: pick(d, tiered.FailClosed, tiered.FailClosed, tiered.FailLocal),
		Limit: tiered.Limit{Tokens: pick(d, int64(100), 400, 1000), Per: pick(d, second, 10*second, time.Minute), Burst: pick(d, int64(100), 200, 400)},
	}
	x.MaxDebt = x.Limit.Burst * pick(d, int64(1), 1, 4)
	p.Class, p.Policies, p.Plans, p.Repeats = Calm, []tiered.Policy{x}, []bool{false}, false
	p.Warm = 100*second + x.Limit.Per*time.Duration(x.Limit.Burst)/time.Duration(x.Limit.Tokens)
	p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool {
		return s.Verb == Rule || s.Verb == Change || !s.Verb.suits(p, 0) || d.one(2)
	})
	for i := range p.Steps {
		p.Steps[i].Which, p.Steps[i].Limit = 0, tiered.Limit{}
	}
	if d.one(3) {
		p.Single, p.Processes, p.Policies[0].FailMode = false, 1, tiered.FailClosed
		for i := range p.Steps {
			p.Steps[i].Who = 0
		}
		p.Steps = slices.Insert(p.Steps, 0, Step{Verb: Queue})
	}
}

// later returns a cost that is known afterwards: from one token to twice the largest debt.
func (p *process) later(s *Step) int64 {
	l := p.own(s)
	if free(l) {
		l = p.player.plan.Policies[s.Which].Limit
	}
	most := max(burst(l), p.player.plan.Policies[s.Which].MaxDebt)
	return min(max([...]int64{1, most / 10, most / 2, most, 2 * most}[s.N%5], 1), 1<<40)
}

// took requests one token, and reports whether Redis' tokens admitted that for sure.
func (p *process) took(s *Step) bool {
	w, b := p.player, p.player.histories[s.Which][s.Key]
	sure := func() int { w.mu.Lock(); defer w.mu.Unlock(); return len(b.sure) }
	before := sure()
	p.one(s)
	return sure() > before
}

// meter requests one token, again and again, and charges each request that was admitted.
func (p *process) meter(s *Step) {
	w, cost := p.player, p.later(s)
	b := w.histories[s.Which][s.Key]
	for range 10 + s.N/2 {
		if p.took(s) && w.busy.Load() == 0 {
			p.charge(s, cost, true)
		}
		time.Sleep(s.Pause)
	}
	w.mu.Lock()
	b.meters++
	w.mu.Unlock()
}

// charge charges a key. Only what an admitted request costs is used.
func (p *process) charge(s *Step, n int64, used bool) {
	w, b := p.player, p.player.histories[s.Which][s.Key]
	now := w.enter(0)
	if err := p.limiters[s.Which].For(keyName(s.Key)).N(n).Charge(); err != nil {
		w.faultf("health", "Charge: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line("process %d policy %d key %d is charged %d", p.slot, s.Which, s.Key, n)
	c := &p.counts[s.Which]
	if l := p.limit(s.Which, s.Key); !free(l) { // otherwise nothing is counted
		c.tokens += n
	}
	c.vague = c.vague || w.plan.Plans[s.Which]
	b.charged = now
	b.spent = append(b.spent, spending{now, now, n})
	b.alone(now, n)
	if used {
		b.later = max(b.later, n)
		b.used = append(b.used, ideal.Admission{Before: int64(now), After: int64(now), Tokens: n})
	}
}

// refund gives tokens to a key.
func (p *process) refund(s *Step) {
	w, b, n := p.player, p.player.histories[s.Which][s.Key], p.later(s)
	before := w.enter(0)
	err := p.limiters[s.Which].Refund(context.Background(), keyName(s.Key), n)
	w.mu.Lock()
	b.credit(before, w.now()+max(back, b.life), n)
	b.fills(p)
	w.line("refund of %d: %v", n, err)
	w.mu.Unlock()
	unsupported := w.plan.Policies[s.Which].Algorithm != tiered.TokenBucket
	if w.plan.Class == Calm && !w.moved && (err != nil) != unsupported || unsupported && !errors.Is(err, errors.ErrUnsupported) {
		w.faultf("recovery", "Refund: %v", err)
	}
}

// atMost takes a part of what it asks for. Its context may end before Redis answers.
func (p *process) atMost(s *Step) {
	w, b := p.player, p.player.histories[s.Which][s.Key]
	n := max(p.later(s), 2)
	most := pick(&drawer{rand.New(rand.NewPCG(w.plan.Seed, uint64(s.N)))}, w.plan.Trip/4, w.plan.Trip/2, w.plan.Trip, 3*w.plan.Trip/2, second)
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	before := w.enter(0)
	granted, d := p.limiters[s.Which].AllowAtMost(ctx, keyName(s.Key), n)
	after := w.now()
	if granted > 0 != d.Allowed || granted > n {
		w.faultf("requests", "at %v %d of %d tokens beside %v", after, granted, n, d.Reason)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inTime(before, after, min(4*w.plan.Options.Budget, most), nil) // for up to four attempts
	w.line("process %d policy %d key %d: %d of %d, %v", p.slot, s.Which, s.Key, granted, n, d.Reason)
	p.counts[s.Which].parts = true
	p.counts[s.Which].tokens += granted
	b.vain(p, before, after, n-granted) // an attempt that ended early may have been granted
	if d.Tier == tiered.Failover {
		b.alone(after, granted)
	}
	if granted > 0 && d.Burst != math.MaxInt64 {
		w.admit(before, after, []part{{b, after, granted, d.Reason == tiered.Granted && w.plan.Class == Calm}})
	}
}

// queue lets many wait for one token each, for as long as some tens of them take. If this process
// has all of the limit, what comes in that time is given to them: nobody is refused as too late
// whose token comes in time.
func (p *process) queue(s *Step) {
	w, l, b := p.player, p.limiters[s.Which], p.player.histories[s.Which][s.Key]
	const tokens = 40
	limit := p.own(s)
	patience := perOf(limit) / time.Duration(max(limit.Tokens, 1)) * tokens
	if free(limit) || limit.Tokens > 1<<20 || patience < 2*second || patience > 10*time.Minute {
		return
	}
	whole := p.whole(s.Which, s.Key) && w.busy.Load() == 0 && l.Policy().FailMode == tiered.FailClosed && single(w.plan.Policies[s.Which].Limit)
	if whole { // a queue forms where nothing is left
		for range 2 * burst(limit) {
			if !p.took(s) {
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	start := w.enter(0)
	for range tokens + 10 {
		w.meanwhile(func(lane time.Duration) { p.await(ctx, lane, s) })
		time.Sleep(ms)
	}
	w.streams.Wait()
	if w.mu.Lock(); whole && w.plan.Policies[s.Which].Algorithm == tiered.TokenBucket {
		served := int64(0)
		for _, a := range b.sure {
			if time.Duration(a.Before) >= start {
				served += a.Tokens
			}
		}
		least := int64(tokens - 1) // these tokens came before the waiters' deadline, but for a part of one
		if w.plan.Policies[s.Which].Standing > 0 {
			least-- // in Redis and in the share
		}
		if b.level(start) && served < least {
			w.fault("recovery", "policy %d, key %d: %d of %d waiters were served from %v to %v",
				s.Which, s.Key, served, tokens+10, start, w.now())
		}
	}
	w.mu.Unlock()
}

// level reports whether a key surely had no debt at a time: nothing was charged to it before.
func (b *history) level(at time.Duration) bool {
	return !slices.ContainsFunc(b.spent, func(x spending) bool { return x.at <= at && x.n > burst(b.rules.Limit) }) && b.charged == 0
}

// whole reports whether a process has all of a policy's limit for itself, and has had it for so
// long that the standing share of a key, if there is one, can be full.
func (p *process) whole(policy, key int) bool {
	w, x := p.player, p.player.plan.Policies[policy]
	if w.plan.Class != Calm || w.plan.Processes > 1 || len(w.gone) > 0 || w.moved || w.several() { // a node that is new has yet to count
		return false
	}
	if x.Standing == 0 {
		return true
	}
	w.mu.Lock()
	limit := p.limit(policy, 0)
	other := p.limit(policy, 1) != limit || len(w.histories[policy][0].terms)+len(w.histories[policy][1].terms) > 2
	since := p.opened
	if w.plan.Plans[policy] { // PerKey is asked when a key comes first, and its share is empty then
		since = w.now()
		if b := w.histories[policy][key]; len(b.spent) > 0 {
			since = b.spent[0].at
		}
	}
	w.mu.Unlock()
	if other || free(limit) {
		return false
	}
	s := p.group.Stats()
	if s.Standing.Fraction < 0.999 || s.Standing.Quarantine {
		return false
	}
	full := time.Duration(float64(burst(limit)) * float64(perOf(limit)) / float64(limit.Tokens))
	return s.Policies[x.Name].Standing.Outside == 0 && full < time.Hour && w.now()-p.opened > 80*second+full && w.now()-since > full && len(w.reloaded) == 0
}

// overUsed returns by how much what admitted requests cost in the end exceeds the limit. A key may
// use its burst, MaxDebt and the refill. Beyond it each process may admit one request before
// anybody knows its cost: at the beginning of each step that charges, and each time when the debt
// is paid.
func (b *history) overUsed(processes int) (worst float64, where string) {
	if b.later == 0 {
		return 0, ""
	}
	used := append(slices.Clone(b.sure), b.used...)
	f := newFlow(b.terms, b.horizon(used)+1)
	if f == nil {
		return 0, ""
	}
	least := int64(math.MaxInt64)
	for _, t := range b.terms {
		least = min(least, burst(t.Limit))
	}
	least = max(least, b.rules.MaxDebt)
	unknown := int64(processes) * b.later
	times := 1 + (unknown+least-1)/least // so much faster the refill pays for what nobody knew
	e := ideal.WorstNet(f.admissions(used), f.credits(b.credits), times, time.Duration(f.unit), b.most()+max(b.most(), b.rules.MaxDebt)+unknown*int64(1+b.meters))
	return e.Over - f.error()*float64(times), fmt.Sprintf("%s: with later costs of up to %d", f.describe(e), b.later)
}

// amending gives a plan an ordinary policy.
func (d *drawer) amending(p *Plan) {
	x := tiered.Policy{
		Algorithm: pick(d, tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog), Name: "p0",
		Limit: tiered.Limit{Tokens: pick(d, int64(100), 400, 2000), Per: pick(d, 10*second, time.Minute, time.Hour)},
	}
	leased := x
	if leased.Lease = d.lease(); valid(leased) {
		x = leased
	}
	p.only(Calm, x)
}

// amend draws a reservation that is given back, and a charge of the same key that Redis hears of in
// the same call.
func (d *drawer) amend(p *Plan) []Step {
	which := d.IntN(len(p.Policies))
	return []Step{{
		Verb: Amend, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: d.IntN(100), Pause: pick(d, 0, ms, 40*ms),
		After: pick(d, 0, 20*ms, min(perOf(p.Policies[which].Limit)/2, time.Minute)),
	}}
}

// amend takes a part of what a key may have, gives it back, and charges a part. What was given back
// makes room for that, so the window counts the charge in full or is full. Either way it does not
// admit what the charge leaves, and a token more.
func (p *process) amend(s *Step) {
	w, x, b := p.player, p.player.plan.Policies[s.Which], p.player.histories[s.Which][s.Key]
	w.streams.Wait()
	w.mu.Lock()
	limit := p.limit(s.Which, s.Key)
	moved := w.moved || len(b.moves) > 0
	w.mu.Unlock()
	if x.Algorithm == tiered.TokenBucket || !single(x.Limit) || moved || w.plan.Real || w.withoutNode() ||
		free(limit) || limit.Tokens < 10 || limit.Tokens > 1<<20 || perOf(limit) < second {
		return
	}
	n := limit.Tokens * int64(1+s.N%3) / 4
	d := p.ask(0, s.Which, s.Key, n, true, tiered.Limit{})
	if d.Tier == tiered.Failover || !d.Allowed || x.Algorithm == tiered.FixedWindow && d.ResetAfter < second/2 {
		return
	}
	w.settle(&Step{Verb: Cancel})
	time.Sleep(s.Pause)
	charge := limit.Tokens * int64(4+s.N/3%4) / 8
	p.charge(s, charge, false)
	time.Sleep(200 * ms)
	if d := p.ask(0, s.Which, s.Key, limit.Tokens-charge+1, false, tiered.Limit{}); d.Allowed && d.Tier != tiered.Failover {
		w.faultf("over", "policy %d, key %d: %d of %d were charged beside %d that came back, and %d more are admitted",
			s.Which, s.Key, charge, limit.Tokens, n, d.Cost)
	}
}
