package legal

import (
	"context"
	"fmt"
	"time"

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
	if w.plan.standing() {
		time.Sleep(again)
		w.checkShares(again)
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
		if err := p.leave(time.Minute); err != nil {
			w.faultf("recovery", "Close: %v", err)
		}
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

// judge compares what was admitted with the limits; mu is held.
func (w *player) judge(b *history) {
	if n, where := b.overUsed(w.plan.Processes); n > 0 && w.plan.Class == Calm && b.rules.Algorithm == tiered.TokenBucket &&
		len(b.rules.Also) == 0 {
		w.faults = append(w.faults, Fault{"over", fmt.Sprintf("policy %d, key %d: %v too many used in %s", b.policy, b.key, n, where)})
	}
	for i, terms := range b.limits() {
		if n, where := b.over(terms); n > 0 {
			text := fmt.Sprintf("policy %d, key %d, limit %d: %v too many in %s", b.policy, b.key, i+1, n, where)
			w.faults = append(w.faults, Fault{"over", text})
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
	if err := p.leave(time.Minute); err != nil {
		w.faultf("recovery", "Close: %v", err)
	}
}
