package tiered

import (
	"context"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// leg is one of the keys that are decided together.
type leg struct {
	taking
	state legState
	renew bool          // its lease is at its low-water mark
	now   time.Duration // since its Group's base
	until time.Duration // from here on nobody waits for it
	tries int           // to join its bucket's line

	first firstRefusal // of a policy with Shards: once the second shard is asked
	last  bool         // nobody else is asked any more

	patient *patient  // while it waits
	to      addressed // its call, that is to be sent
	d       Decision  // its own, once it is taken or refused
}

type legState uint8

const (
	undecided legState = iota // nothing is taken
	alone                     // Redis does not answer: the fail mode is asked last
	waiting                   // in line for Redis' answer
	taken
	refused
)

// together decides over all legs: all or nothing.
//
// The order keeps what is given back small. What refuses at home refuses before anything is taken. Pots are next, as they
// take back what they gave; then Redis, all keys at once. Shares are last and are first asked whether they would admit,
// for nothing puts tokens back into a share.
//
// It returns the leg whose Decision it is, nil when there is none.
func together(ctx context.Context, legs []leg, d *Decision) *leg {
	if len(legs) == 0 {
		*d = Decision{}
		return nil
	}
	for i := range legs {
		t := &legs[i]
		if t.limiter == nil {
			t.state = refused
			continue
		}
		if i > 0 && legs[i-1].limiter != nil && legs[i-1].limiter.group == t.limiter.group {
			t.now = legs[i-1].now
		} else {
			t.now = t.limiter.group.now()
		}
		t.atHome()
	}
	if !anyOf(legs, refused) {
		for i := range legs {
			legs[i].fromPot()
		}
		if anyOf(legs, undecided) {
			askRedis(ctx, legs)
		}
		if !anyOf(legs, refused) && anyOf(legs, alone) {
			goAlone(legs)
		}
		end(legs)
	} else {
		for i := range legs { // whose second shard is not asked, for another key refuses
			if t := &legs[i]; t.state == undecided && t.first.bucket != nil {
				t.takeBack(0)
			}
		}
	}
	t := strictest(legs)
	*d = t.d
	if l := t.limiter; l != nil && l.mode.Load()&modeTraced != 0 && !(t.asksAgain() && d.waits()) {
		l.group.trace.decision(*d)
	}
	return t
}

func anyOf(legs []leg, s legState) bool {
	for i := range legs {
		if legs[i].state == s {
			return true
		}
	}
	return false
}

// decided notes what d says. A policy that is only tried out refuses nobody.
func (t *leg) decided() {
	if t.first.bucket != nil {
		t.borrowed()
	} else if !t.d.Allowed && t.other() {
		return
	}
	if !t.d.Allowed && t.shadow() {
		t.limiter.shadowed.Add(max(t.cost, 0))
		t.d.Allowed, t.d.Reason = true, Shadowed
		t.nothing()
	}
	t.state = refused
	if t.d.Allowed {
		t.state = taken
	}
}

func (t *leg) shadow() bool { return t.limiter.mode.Load()&modeShadow != 0 }

// byRule decides the leg when no limit does.
func (t *leg) byRule() bool {
	if !t.limiter.byRule(t.bucket, t.key, t.cost, &t.taking, &t.d) {
		return false
	}
	t.decided()
	return true
}

// again looks for the leg's bucket: it was forgotten, or its policy was changed. It reports whether that decides.
func (t *leg) again(s local.Source) bool {
	t.from(t.limiter.group.find(t.now, t.bucket.ID()), s)
	return t.byRule()
}

// atHome refuses the leg if this process can, and takes nothing.
func (t *leg) atHome() {
	l, g := t.limiter, t.limiter.group
	if r := valid(t.key, t.cost); r != Granted {
		l.invalid(&t.d, t.key, r)
		t.decided()
		return
	}
	if l.mode.Load()&modeUnlimited != 0 {
		l.free.Add(t.cost)
		l.unlimited(&t.d, t.key)
		t.decided()
		return
	}
	b := g.find(t.now, l.home(t.key))
	if l.shards != nil && l.tooDear(b, t.key, t.cost, &t.d) {
		t.decided()
		return
	}
	t.from(b, local.FromLease)
	if b.Holds(t.now, t.cost) {
		return
	}
	if t.byRule() {
		return
	}
	if g.closed.Load() {
		t.foresee()
		return
	}
	n := b.whereabouts()
	if n == nil || n.guard.State() == failover.Closed {
		if v, ok := t.known(t.now, b, t.cost); ok {
			l.decide(&t.d, t.now, b, t.key, Limited, Local, v.Left, v.Retry)
			t.refused(b, t.cost)
			t.decided()
		}
		return
	}
	if n.guard.ReadyAt(t.now) {
		b.apply(t.now, b.Probe())
	}
	t.foresee()
}

// foresee leaves the leg to the fail mode, and refuses it at once where that would.
func (t *leg) foresee() {
	t.state = alone
	for {
		v := t.bucket.Foresee(t.now, t.cost, t.limiter.group.fleetOf(t.bucket))
		switch v.Outcome {
		case local.Gone:
			if t.again(local.FromShare) {
				return
			}
			continue
		case local.ShareSpent, local.Failed:
			t.limiter.byItself(&t.d, t.now, t.bucket, t.key, t.cost, v)
			t.decided()
		}
		return
	}
}

// fromPot takes the leg's tokens from its lease, if it holds them.
func (t *leg) fromPot() {
	if t.state != undecided {
		return
	}
	if left, ok, renew := t.bucket.Take(t.now, t.cost); ok {
		t.limiter.decide(&t.d, t.now, t.bucket, t.key, Granted, Local, left, 0)
		t.state, t.renew = taken, renew
		if t.first.bucket != nil {
			t.takeBack(t.cost)
		}
	}
}

// askRedis asks for all that is undecided at once, and waits for the answers: no longer than the shortest Budget, and to the
// last of them, for it is named who refused for longest.
func askRedis(ctx context.Context, legs []leg) {
	budget := legs[0].limiter.group.options.Budget
	for i := range legs {
		budget = min(budget, legs[i].limiter.group.options.Budget)
	}
	for i := range legs {
		if legs[i].until == 0 {
			legs[i].until = legs[i].now + budget
		}
	}
	for anyOf(legs, undecided) {
		for i := range legs { // PerKey may be asked, which is the user's: not while others are kept out of the lines
			t := &legs[i]
			switch {
			case t.state != undecided:
			case t.tries > 0 && t.limiter.group.now() >= t.until, t.tries >= mostTries: // its bucket is pushed out again and again
				t.unanswered()
			default:
				t.tries++
				t.again(local.FromLease)
			}
		}
		join(legs)
		send(legs)
		for i := range legs {
			if t := &legs[i]; t.state == waiting {
				t.wait(ctx)
			}
		}
	}
}

// mostTries is how often a bucket that is pushed out before it could be asked is looked up again. With fewer MaxKeys than
// keys in a request, and PerKey to be asked for each, they push each other out for ever.
const mostTries = 8

// join puts the undecided into their buckets' lines, one request after the other: who is first in one line is first in all of
// them.
func join(legs []leg) {
	lines := &legs[0].limiter.group.lines
	lines.Lock()
	defer lines.Unlock()
	for i := range legs {
		if t := &legs[i]; t.state == undecided {
			t.join()
		}
	}
}

// join puts the leg into its bucket's line. It stays undecided if the bucket was forgotten, or its policy was changed.
func (t *leg) join() {
	g := t.limiter.group
	p := g.patient()
	p.Patient = t.asksAgain()
	v, effect := t.bucket.Ask(t.now, t.cost, t.until, p.Waiter)
	if v.Outcome == local.Gone { // pushed out since, perhaps by another leg's
		if t.from(g.find(t.now, t.bucket.ID()), local.FromLease); t.bucket.Policy().Rule == local.ByLimit {
			v, effect = t.bucket.Ask(t.now, t.cost, t.until, p.Waiter)
		}
	}
	if effect.Send {
		t.to = t.bucket.route()
		effect.Send = false
	}
	t.bucket.apply(t.now, effect)
	if v.Outcome == local.Waiting {
		t.state, t.patient = waiting, p
		t.from(t.bucket, local.FromRedis)
		return
	}
	g.patients.Put(p)
	if v.Outcome != local.Gone {
		t.verdict(v, Local)
	}
}

// send sends the calls that the legs need.
func send(legs []leg) {
	var room [few]addressed
	jobs := room[:0]
	for i := range legs {
		if t := &legs[i]; t.to.node != nil {
			jobs = append(jobs, t.to)
			t.to = addressed{}
		}
	}
	push(jobs)
}

// wait waits for the answer.
func (t *leg) wait(ctx context.Context) {
	g := t.limiter.group
	v, reason := t.patient.wait(ctx, t.until-g.now(), t.bucket)
	g.patients.Put(t.patient)
	t.patient = nil
	g.settle(uint64(t.until)) // others may have waited for the same answer; no two of them began to wait at one instant
	t.now = g.now()
	switch reason {
	case Canceled:
		t.limiter.decide(&t.d, t.now, t.bucket, t.key, Canceled, None, 0, 0)
		t.d.Expired = expired(ctx)
		t.decided()
	case Unavailable:
		if n := t.bucket.node.Load(); n != nil {
			n.overran()
		}
		t.unanswered()
	default:
		t.verdict(v, Remote)
	}
}

// verdict notes the bucket's answer.
func (t *leg) verdict(v local.Verdict, tier Tier) {
	switch v.Outcome {
	case local.Admitted:
		t.counted(v)
		t.limiter.decide(&t.d, t.now, t.bucket, t.key, Granted, tier, v.Left, 0)
	case local.Refused:
		t.limiter.decide(&t.d, t.now, t.bucket, t.key, Limited, tier, v.Left, v.Retry)
	case local.Failed:
		t.unanswered()
		return
	case local.Gone:
		t.state = undecided
		t.again(local.FromLease)
		return
	}
	t.decided()
}

// goAlone lets the fail modes decide, when all that Redis was asked for is taken.
func goAlone(legs []leg) {
	for i := range legs {
		legs[i].last = true
		if legs[i].state == alone {
			legs[i].foresee()
		}
	}
	for i := range legs {
		if anyOf(legs, refused) {
			return
		}
		if t := &legs[i]; t.state == alone {
			t.limiter.alone(t.now, t.bucket, t.key, t.cost, &t.taking, &t.d)
			t.decided()
		}
	}
}

// end gives back what was taken when one refused. Renewals come last: what has left for Redis is not put back.
func end(legs []leg) {
	back := anyOf(legs, refused)
	for i := range legs {
		switch t := &legs[i]; {
		case t.bucket == nil: // it took nothing
		case t.state == taken && back:
			t.settle(0)
		case t.renew && !back:
			t.bucket.apply(t.now, t.bucket.Renew(t.now))
		}
	}
}

// strictest is the leg whose Decision is that of all.
func strictest(legs []leg) *leg {
	var most *leg
	if !anyOf(legs, refused) {
		for i := range legs {
			if t := &legs[i]; most == nil || t.more() < most.more() {
				most = t
			}
		}
		return most
	}
	for i := range legs {
		t := &legs[i]
		if t.state == refused && (most == nil || t.hopeless() > most.hopeless() ||
			t.hopeless() == most.hopeless() && t.d.RetryAfter > most.d.RetryAfter) {
			most = t
		}
	}
	return most
}

// more is how many more such requests the leg would admit, as far as is known.
func (t *leg) more() float64 {
	if t.shadow() {
		return math.Inf(1) // not in force, so not what the caller is told of
	}
	return float64(t.d.Remaining) / float64(t.cost)
}

// hopeless is 0 when waiting helps, and else the greater, the less does.
func (t *leg) hopeless() int {
	switch t.d.Reason {
	case Limited:
		return 0
	case ShareSpent:
		if t.d.RetryAfter > 0 {
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
