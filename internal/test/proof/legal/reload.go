package legal

import (
	"runtime"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// reload draws a reload.
func (d *drawer) reload(p *Plan) []Step {
	return []Step{{
		Verb: Reload, Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), N: d.IntN(10),
		Pause: pick(d, 0, 0, 20*ms, second),
	}}
}

// reload removes a policy from a process and adds it again, as two reloads of a configuration do, or three with another
// policy of the name between, which nobody uses. Whether requests go on with the Limiter of before or with that of now makes
// no difference.
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
