package legal

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// end ends all disturbances and checks the final state.
func (w *player) end() {
	w.tell("all is well")
	w.disturb(func(n *network) { *n = network{} })
	if w.withoutNode() {
		w.move(&Step{N: 1})
	}
	w.streams.Wait()
	w.recover()
	w.checkBreakers()
	w.checkPlaces()
	if w.plan.standing() {
		quiet := again
		for _, x := range w.plan.Policies { // who had the whole limit may have leased it for sixteen
			quiet = max(quiet, again+17*x.Lease.Period)
		}
		time.Sleep(quiet)
		w.checkShares(quiet)
	}
	w.mu.Lock()
	w.ends = !w.plan.Real
	w.mu.Unlock()
	for _, p := range w.slots {
		for i := range p.limiters {
			for k := range keys {
				p.ask(0, i, k, 1, false, tiered.Limit{})
				if !w.plan.Books {
					w.reset(p, i, k)
				}
			}
		}
	}
	for _, p := range w.slots {
		p.ends()
		p.audit(true)
	}
	if w.plan.Books && w.plan.Class == Calm {
		w.count()
	}
	w.mu.Lock()
	for _, all := range w.histories {
		for _, b := range all {
			w.judge(b)
		}
	}
	for _, p := range append(w.slots, w.gone...) {
		p.judgeFallbacks()
	}
	w.mu.Unlock()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, p := range w.gone {
		_ = p.group.Close(gone)
		p.audit(false)
	}
	w.others.Wait()
	if !w.plan.Real {
		time.Sleep(3*w.plan.Options.Timeout + 3*second)
	}
	w.backend.Close()
}

// recover plays 20 s of low demand.
func (w *player) recover() {
	rounds, length := 40, 20*second
	if w.plan.Thin {
		rounds = 8
	}
	if w.plan.Real {
		length = 3 * second
	}
	for range rounds {
		for _, p := range w.slots {
			for i := range p.limiters {
				for k := range keys {
					p.ask(0, i, k, 1, false, tiered.Limit{})
				}
			}
		}
		time.Sleep(length / time.Duration(rounds))
	}
}

// checkBreakers checks that every process asks every node again: none that left stays in trouble
// for ever. A process that has asked no other node since, because all its keys are unlimited or
// blocked, does not know that one left.
func (w *player) checkBreakers() {
	if w.plan.Real {
		return
	}
	for _, p := range w.slots {
		all := p.group.Stats().Nodes
		there := func(name string) bool {
			return !w.several() || slices.Contains(w.backend.Nodes.Ring().Nodes(), remote.Node(name))
		}
		asks := slices.ContainsFunc(slices.Collect(maps.Keys(all)), there)
		for name, n := range all {
			if n.Outages.Breaker != "closed" && (asks || there(name)) {
				w.faultf("recovery", "process %d: the breaker of node %q is %s", p.slot, name, n.Outages.Breaker)
			}
		}
	}
}

// ends closes a process, which must succeed.
func (p *process) ends() {
	if err := p.leave(time.Minute); err != nil {
		p.player.faultf("recovery", "Close: %v", err)
	}
}

// leave closes a process, and records its figures.
func (p *process) leave(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w := p.player
	w.mu.Lock()
	p.leaves = true
	w.mu.Unlock()
	err := p.group.Close(ctx)
	// Close checks again after each Budget or when it is notified. Which comes first depends on the
	// processors.
	if !w.plan.Real {
		time.Sleep(second - w.now()%second)
	}
	s := p.group.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range w.plan.Policies {
		w.burnt[i] += s.Policies[x.Name].Leases.Burnt
	}
	return err
}

// audit checks a process' figures.
func (p *process) audit(left bool) {
	w, s := p.player, p.group.Stats()
	for i, x := range w.plan.Policies {
		y := s.Policies[x.Name]
		w.mu.Lock()
		c := p.counts[i]
		w.mu.Unlock()
		if r := y.Requests; !c.parts && (r.Allowed != c.admitted || !c.unsure && (r.Refused != c.refused ||
			r.GrantedByRedis+r.LimitedByRedis != c.byRedis)) {
			w.faultf("requests", "policy %d counts %+v, and there were %+v", i, r, c)
		}
		alone, sum := y.Tokens.Fallback+y.Tokens.Open, y.Leases.Spent+y.Standing.Spent+y.Costs.Refunded+y.Costs.Charged+y.Tokens.Fallback+y.Tokens.Open+y.Tokens.Unlimited
		if !c.vague && (!c.dearer || y.Tokens.Unlimited == 0) && (sum != c.tokens || !c.unsure && !c.parts && alone != c.alone) {
			w.faultf("requests", "policy %d counts %d tokens, %d by fail modes, of %d, %d: %+v", i, sum, alone, c.tokens, c.alone, y)
		}
		if alone == 0 && y.Costs.Settled != 0 {
			w.faultf("requests", "policy %d reported %d tokens of an outage that admitted none", i, y.Costs.Settled)
		}
		ledger := invariant.Ledger{Granted: y.Leases.Granted, Spent: y.Leases.Spent, Returned: y.Leases.Returned, Burnt: y.Leases.Burnt, Held: y.Leases.Held}
		f := ledger.Check(0)
		if f.Is(left && y.Leases.Held != 0, float64(y.Leases.Held), "a process that left holds tokens: %+v", ledger); f.Broken() {
			w.faultf("recovery", "%v", f)
		}
		if y.Faults.Rejected != 0 || y.Faults.PerKey != 0 || y.Faults.UnknownPlans != 0 {
			w.faultf("health", "poisoned %d, no limits %d, no plans %d", y.Faults.Rejected, y.Faults.PerKey, y.Faults.UnknownPlans)
		}
	}
	for _, n := range s.Nodes {
		if n.Calls.Misconfigured > 0 || w.plan.Class == Calm && n.Calls.Failed > 0 {
			w.faultf("health", "%d calls failed, %d as misconfigured, and nothing was wrong", n.Calls.Failed,
				n.Calls.Misconfigured)
		}
	}
}

// judge compares what was admitted with the limits; mu is held.
func (w *player) judge(b *history) {
	if n, where := b.overUsed(w.plan.Processes); n > 0 && w.plan.Class == Calm && b.rules.Algorithm == tiered.TokenBucket &&
		single(b.rules.Limit) {
		w.fault("over", "policy %d, key %d: %v too many used in %s", b.policy, b.key, n, where)
	}
	for i, terms := range b.limits() {
		if n, where := b.over(terms); n > 0 {
			w.fault("over", "policy %d, key %d, limit %d: %v too many in %s", b.policy, b.key, i+1, n, where)
		}
	}
}

// count lets a new process read what is left of each key.
func (w *player) count() {
	time.Sleep(2 * second)
	w.open(0, 0, tiered.Limit{}, network{})
	p := w.slots[0]
	time.Sleep(100 * ms)
	for i := range p.limiters {
		for k := range keys {
			b := w.histories[i][k]
			now := w.enter(0)
			d := p.limiters[i].Peek(context.Background(), keyName(k))
			w.mu.Lock()
			least := b.left(now, w.burnt[i])
			w.mu.Unlock()
			if d.Remaining < least {
				w.faultf("under", "policy %d, key %d: %d of %d are left, and there must be %d: %v",
					i, k, d.Remaining, d.Burst, least, d.Reason)
			}
		}
	}
	p.ends()
}
