package legal

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/nodes"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// mostNodes is how many nodes a store has at most, at different times.
const mostNodes = 4

// forNodes gives a plan a store of several nodes, whose map each process has to find first.
func (d *drawer) forNodes(p *Plan) bool {
	p.Nodes = 1 + d.IntN(3)
	return true
}

// move draws a step that moves the slots.
func (d *drawer) move(p *Plan) []Step {
	s := Step{Verb: Move, After: d.after(second), Key: d.IntN(mostNodes), N: 1 + d.IntN(3)}
	if p.Class != Calm && d.one(4) {
		s.N = 0
	}
	return []Step{s}
}

// move gives the slots to other nodes: N of them, from the one with number Key on. Without any the store is down.
func (w *player) move(s *Step) {
	if n := w.backend.Nodes; n != nil && w.plan.Nodes > 0 {
		w.enter(0)
		all := nodes.Names(mostNodes)
		n.Share(slices.Concat(all, all)[s.Key : s.Key+s.N]...)
	}
}

// store returns the store of a new process.
func (w *player) store() remote.Store {
	if w.backend.Nodes == nil || w.plan.Nodes == 0 {
		return w.backend.Store
	}
	return w.backend.Nodes.Cluster()
}

// several reports whether the store has several nodes, and their map has to be found.
func (w *player) several() bool { return w.backend.Nodes != nil && w.plan.Nodes > 0 }

// withoutNode reports whether the store has no node now.
func (w *player) withoutNode() bool { return w.several() && len(w.backend.Nodes.Ring().Nodes()) == 0 }

// Locate is a message like the others, unless the process has the map.
func (w *wire) Locate(ctx context.Context, bucket string) (remote.Node, error) {
	if id := w.Store.Node(bucket); id != "" {
		return id, nil
	}
	n, dead := w.state()
	dice := mix(w.salt, 6, hashText(bucket), uint64(w.player.now()))
	switch {
	case dead:
		return "", errDead
	case n.down && !n.hangs:
		w.arrive(w.lane, w.player.plan.Trip)
		return "", io.EOF
	case n.down, int(dice%100) < n.loss:
		<-ctx.Done()
		return "", ctx.Err()
	}
	there, back := w.way(n, mix(dice, 1)), w.way(n, mix(dice, 2))
	if end, ok := ctx.Deadline(); ok && there+back+time.Microsecond > time.Until(end) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	w.arrive(w.lane, there)
	id, err := w.Store.Locate(ctx, bucket)
	time.Sleep(back)
	return id, err
}

// checkBreakers checks that every process asks every node again: none that left stays in trouble for ever. A process that has
// asked no other node since, because all its keys are unlimited or blocked, does not know that one left.
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

const (
	// first is how long shares take to be in use: a new table lends nothing for 65 s. The poll that makes it may come a period
	// of 3 s after the start, because the first refresh may leave before the policy is added, and another period goes by until
	// the poll that brings a fraction.
	first = 72 * second

	// again is how long they take whatever was before: what a killed process held is lent after 65 s.
	again = 80 * second
)

// standing reports whether a policy has standing shares, and the plan can wait for them.
func (p *Plan) standing() bool {
	return !p.Real && slices.ContainsFunc(p.Policies, func(x tiered.Policy) bool { return x.Standing == tiered.StandingOn })
}

// checkShares checks that all standing shares are in use after a quiet time.
func (w *player) checkShares(quiet time.Duration) {
	if quiet < first || !w.plan.standing() {
		return
	}
	sum := 0.0
	for _, p := range w.slots {
		sum += p.group.Stats().Standing.Fraction
		w.mu.Lock()
		for _, x := range w.plan.Policies {
			if x.Standing == tiered.StandingOn && !p.agreed[x.Name] {
				text := fmt.Sprintf("process %d does not use those of policy %s after %v", p.slot, x.Name, quiet)
				w.faults = append(w.faults, Fault{"shares", text})
			}
		}
		w.mu.Unlock()
	}
	if sum < 0.99 {
		w.faultf("shares", "the processes have %v of the standing shares after %v", sum, quiet)
	}
}
