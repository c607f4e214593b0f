package tiered

import (
	"context"
	"math"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// request is what one caller asks for: tokens of one key, or of several keys that are decided together, all or nothing.
type request []part

// decide decides over all parts. It returns the part whose Decision it is; nil without parts.
func (r request) decide(ctx context.Context, d *Decision) *part {
	if len(r) == 0 {
		*d = Decision{}
		return nil
	}
	r.begin()
	for i := range r {
		r[i].peek()
	}
	return r.decideRest(ctx, d)
}

// begin sets the time from which on nobody waits: the shortest Budget counts.
func (r request) begin() {
	budget := forever
	for i := range r {
		if l := r[i].limiter; l != nil {
			budget = min(budget, l.group.options.Budget)
		}
	}
	for i := range r {
		p := &r[i]
		switch p.several = len(r) > 1; {
		case p.limiter == nil:
			continue
		case i > 0 && r[i-1].limiter != nil && r[i-1].limiter.group == p.limiter.group:
			p.now = r[i-1].now
		default:
			p.now = p.limiter.group.now()
		}
		p.until = p.now + budget
	}
}

// carryOut decides what peek has left open.
//
// The order keeps what is given back small. What this process knows to be refused is refused before anything is taken.
// Pots are next, because they take back what they gave; then Redis, all keys at once. Fail modes are last, because
// nothing puts tokens back into a share.
func (r request) decideRest(ctx context.Context, d *Decision) *part {
	for r.pending() {
		for i := range r {
			if p := &r[i]; p.state == undecided {
				p.takeFromPot()
			}
		}
		r.askRedis(ctx)
		r.fallBack()
	}
	back := r.has(refused)
	r.end(back)
	p := r.strictest(back)
	*d = p.d
	if l := p.limiter; l != nil && l.mode.Load()&modeTraced != 0 && !(p.asksAgain() && d.waitHelps()) {
		l.group.trace.decision(*d)
	}
	return p
}

// open reports whether a part is still to be decided, while none refuses.
func (r request) pending() bool {
	open := false
	for i := range r {
		switch r[i].state {
		case refused:
			return false
		case undecided, fallback:
			open = true
		}
	}
	return open
}

func (r request) has(s partState) bool {
	for i := range r {
		if r[i].state == s {
			return true
		}
	}
	return false
}

// maxTries is how often a bucket that is evicted before it can be asked is looked up again. With more keys in a request
// than MaxKeys, and PerKey to be asked for each, they would evict each other for ever.
const maxTries = 8

// askRedis asks for all undecided parts at once. It waits for all answers, because the Decision names who refused for
// longest.
func (r request) askRedis(ctx context.Context) {
	for r.has(undecided) {
		for i := range r { // this may call PerKey, which is the user's, so it does not hold up the lines of others
			p := &r[i]
			if p.state != undecided {
				continue
			}
			switch {
			case p.tries == 0:
				p.decideByRule()
			case p.tries == maxTries, p.limiter.group.now() >= p.until:
				p.noAnswer()
			default:
				p.findAgain(local.FromLease)
			}
			p.tries++
		}
		r.join()
		r.send()
		for i := range r {
			if p := &r[i]; p.state == waiting {
				p.wait(ctx)
			}
		}
	}
}

// join puts the undecided parts into the lines of their buckets. Several parts join one request after the other: who is
// first in one line is first in all of them.
func (r request) join() {
	if len(r) > 1 {
		lines := &r[0].limiter.group.joinMu
		lines.Lock()
		defer lines.Unlock()
	}
	for i := range r {
		if p := &r[i]; p.state == undecided {
			p.join()
		}
	}
}

// send sends the calls that the parts need.
func (r request) send() {
	var room [inlineParts]dispatch.Routed
	calls := room[:0]
	for i := range r {
		if p := &r[i]; p.call.Node != nil {
			calls = append(calls, p.call)
			p.call = dispatch.Routed{}
		}
	}
	dispatch.Push(calls)
}

// fallBack lets the fail modes decide, once all that Redis was asked for is taken. Of several parts each is asked first
// whether it would admit.
func (r request) fallBack() {
	if !r.pending() {
		return
	}
	if len(r) > 1 {
		for i := range r {
			p := &r[i]
			p.firstOnly = true
			if p.state == fallback {
				p.foresee()
			}
		}
	}
	for i := range r {
		if p := &r[i]; p.state == fallback && !r.has(refused) {
			p.fallBack()
		}
	}
}

// end gives back what was taken, if a part refused. Else it asks for renewals: what has left for Redis is not put back.
func (r request) end(back bool) {
	for i := range r {
		switch p := &r[i]; {
		case p.bucket == nil: // it took nothing
		case back && p.state == taken:
			p.correctCost(0)
		case back && p.state == undecided && p.first.bucket != nil: // its second shard was never asked
			p.undoFirstRefusal(0)
		case !back && p.renew:
			p.bucket.apply(p.now, p.bucket.Renew(p.now))
		}
	}
}

// strictest returns the part whose Decision is that of all: of those that refuse the one for which waiting helps least,
// else the one that admits the fewest more such requests.
func (r request) strictest(back bool) (strictest *part) {
	for i := range r {
		p := &r[i]
		switch {
		case back && p.state != refused:
		case strictest == nil, back && p.refusesLonger(strictest), !back && p.admitsMore() < strictest.admitsMore():
			strictest = p
		}
	}
	return strictest
}

// refusesLonger reports whether waiting helps p less than q.
func (p *part) refusesLonger(q *part) bool {
	if mine, other := p.unavailability(), q.unavailability(); mine != other {
		return mine > other
	}
	return p.d.RetryAfter > q.d.RetryAfter
}

// unavailability ranks refusals by how little waiting helps; 0 means that waiting helps.
func (p *part) unavailability() int {
	switch p.d.Reason {
	case Limited:
		return 0
	case ShareSpent:
		if p.d.RetryAfter > 0 {
			return 0
		}
		return 1
	case Unavailable:
		return 1
	case ExceedsBurst:
		return 2
	case Canceled:
		return 3
	}
	return 4
}

// more reports how many more such requests the part would admit, by what is known.
func (p *part) admitsMore() float64 {
	if p.shadow() {
		return math.Inf(1) // it is not in force, so it is not what the caller hears of
	}
	return float64(p.d.Remaining) / float64(p.cost)
}
