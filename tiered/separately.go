package tiered

import "context"

// AllowSeparately decides several uses in their order, each as [Use.Allow] would: one that is refused takes nothing, and
// changes nothing for the others. It writes the Decision of the i-th use to each[i]. If each is longer than uses, its
// last elements stay as they are. If it is shorter, the last Decisions are dropped.
//
// What this process does not know goes to Redis in one pipeline per node. All wait at the same time, each at most for
// its Options.Budget, and no longer than [Limiter.AllowN] if ctx has a deadline. So the call takes no longer than the
// longest of them.
func AllowSeparately(ctx context.Context, uses []Use, each []Decision) {
	var room [inlineParts]part
	r := request(room[:0])
	for _, u := range uses {
		r = append(r, part{taking: taking{limiter: u.limiter, key: u.key, cost: u.cost}, limit: u.limit})
	}
	r.decideSeparately(ctx)
	for i := range min(len(r), len(each)) {
		r[i].write(&each[i])
	}
}

// decideSeparately decides over each part by itself.
func (r request) decideSeparately(ctx context.Context) {
	for i := range r {
		alone := r[i : i+1]
		alone.begin()
		alone[0].peek()
	}
	for r.has(undecided) || r.has(fallback) {
		for i := range r {
			if p := &r[i]; p.state == undecided {
				p.takeFromPot()
			}
		}
		r.askRedis(ctx)
		for i := range r {
			if p := &r[i]; p.state == fallback {
				p.fallBack()
			}
		}
	}
	for i := range r {
		p := &r[i]
		r[i : i+1].end(p.state == refused)
		if l := p.limiter; l != nil && l.mode.Load()&modeTraced != 0 {
			var d Decision
			p.write(&d)
			l.group.trace.decision(d)
		}
	}
}
