package local

import (
	"iter"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// pending is what a bucket has only while somebody waits or a call is under way. A nil *pending has
// neither.
//
// Invariant: between two steps a bucket has one if, and only if, idle reports false; see
// [Bucket.deliver].
type pending struct {
	line    fifo.Queue[*Waiter] // they wait for tokens
	decided fifo.Queue[*Waiter] // they have an outcome that is not delivered yet
	credits []*Waiter           // they wait for tokens to be given to the bucket, their cost, or for a reset, in order
	call    Call                // under way; Seq 0 if none is
	again   bool                // the call is made a second time: it was late, or its credit came to nothing
}

var pendings = sync.Pool{New: func() any { return new(pending) }}

// orNew returns a new pending state for a bucket that has none.
func (p *pending) orNew() *pending {
	if p == nil {
		return pendings.Get().(*pending)
	}
	return p
}

// idle reports whether there is nothing to wait for.
func (p *pending) idle() bool {
	return p.line.Len() == 0 && len(p.credits) == 0 && p.call.Seq == 0 && !p.again
}

// calling reports whether a call is under way.
func (p *pending) calling() bool { return p != nil && p.call.Seq != 0 }

// carries reports whether the call seq is under way.
func (p *pending) carries(seq int64) bool { return p.calling() && p.call.Seq == seq }

// end takes the call seq off. It reports false if that call is not under way.
func (p *pending) end(seq int64) (Call, bool) {
	if !p.carries(seq) {
		return Call{}, false
	}
	c := p.call
	p.call = Call{}
	return c, true
}

// cancel ends the call under way, if there is one: its reply will be ignored.
func (p *pending) cancel() (c Call, ok bool) {
	if !p.calling() {
		return Call{}, false
	}
	return p.end(p.call.Seq)
}

// stopRepeating notes that the call is not made a second time.
func (p *pending) stopRepeating() {
	if p != nil {
		p.again = false
	}
}

// count reports how many wait for tokens.
func (p *pending) count() int {
	if p == nil {
		return 0
	}
	return p.line.Len()
}

// waiting yields those who wait for tokens, first come first. The one that is yielded may leave.
func (p *pending) waiting() iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		if p == nil {
			return
		}
		for place := p.line.First(); place != nil; {
			next := place.Next()
			if !yield(place.Member) {
				return
			}
			place = next
		}
	}
}

// join has w wait for tokens.
func (p *pending) join(w *Waiter) {
	w.waits = true
	p.line.Join(&w.place)
}

// leave takes out w, which waits for tokens.
func (p *pending) leave(w *Waiter) {
	p.line.Leave(&w.place)
	w.waits, w.asked = false, false
}

// decide takes w out with an outcome, which [Bucket.deliver] delivers.
func (p *pending) decide(w *Waiter, o Outcome) {
	p.leave(w)
	w.outcome = o
	p.decided.Join(&w.place)
}

// serve gives tokens of the pot to callers that wait, in order. It passes over a caller that needs
// more than there is. If Redis too is known to have less, it refuses the caller if it is known when
// the tokens may be there, or if the caller cannot wait for another round trip. Others go on
// waiting for an answer of their own. The first caller that the call was for has its answer now, so
// it is refused too. The pot makes up for a part of a cost if calls lease. A direct take has to
// find all of it in Redis.
func (p *pending) serve(h *Hot, now time.Duration, level int64, leases bool, trip time.Duration) {
	answered := false // the first that the call was for
	for w := range p.waiting() {
		own := w.asked && !answered
		answered = answered || own
		if held, ok := h.lease.take(now, w.cost); ok {
			w.Short = level != unlimited
			p.decide(w, h.grant(w, Remote, h.remaining(held)))
			continue
		}
		need := w.cost
		if leases {
			need -= h.lease.live(now)
		}
		if need > level {
			d := h.denied.Load()
			if !own && !d.tells(need) && !d.reserves() && w.until > now+trip { // the next call asks for it
				continue
			}
			retry, _ := w.refusal(d, now, need)
			p.decide(w, h.refuse(w, Remote, now, retry))
		} else if level == unlimited {
			break
		}
	}
}

// serveAsked gives tokens of the pot to those for whom the call was made, and what v says to those
// who get none.
func (p *pending) serveAsked(h *Hot, now time.Duration, v Outcome) {
	for w := range p.waiting() {
		if !w.asked {
			continue
		}
		if held, ok := h.lease.take(now, w.cost); ok {
			p.decide(w, h.grant(w, Remote, h.remaining(held)))
		} else {
			p.decide(w, v)
		}
	}
}

// handOut gives a direct grant to those it was asked for, with an outcome, and what they leave to
// others who waited already when the call was sent: together they wanted more than a burst. It
// reports what nobody takes any more.
func (p *pending) handOut(h *Hot, grant int64, sent time.Duration) int64 {
	left := h.remaining(0)
	rest := grant // when all have what they cost
	for w := range p.waiting() {
		if w.asked && w.cost <= rest {
			rest -= w.cost
		}
	}
	for w := range p.waiting() {
		if w.asked && w.cost <= grant {
			w.MoreGranted = min(w.more, rest)
			rest -= w.MoreGranted
			grant -= w.cost + w.MoreGranted
			p.decide(w, h.grant(w, Remote, left))
		}
	}
	for w := range p.waiting() {
		if !w.asked && w.since <= sent && w.cost <= grant {
			grant -= w.cost
			p.decide(w, h.grant(w, Remote, left))
		}
	}
	return grant
}

// reporting is the part of the debt that a call under way reports and that refill may pay.
func (p *pending) reporting() int64 {
	if p.calling() {
		return p.call.Debt - p.call.certain
	}
	return 0
}

// request is what those who wait ask of a call.
type request struct {
	first   int64 // cost of the first of them, tokens
	cost    int64 // of all of them, at most one burst
	more    int64 // besides, for others
	n       int   // their number
	allWait bool  // each of them waits and asks again
	hurried bool  // one of them never waits as long as an answer takes

	last time.Duration // when the last of them gives up
}

// request marks those who wait for another trip or longer, and sums up what they ask for. An answer
// comes no sooner. It also marks those in a hurry, who never wait for so long: otherwise Redis
// would never hear of them, and what comes is for the next. A caller that has waited in vain until
// now is left out: otherwise a node just above its capacity would do nothing else.
func (p *pending) request(now, trip, answer time.Duration, burst int64) request {
	r := request{allWait: true}
	for w := range p.waiting() {
		w.asked, w.more = false, 0
		hurried := w.hurried(answer)
		if w.until <= now || w.until <= now+trip && !hurried || r.cost+w.cost > burst {
			continue
		}
		r.hurried = r.hurried || hurried
		if r.n == 0 {
			r.first = w.cost
		}
		w.asked = true
		r.cost += w.cost
		r.more += w.More
		r.n++
		r.last = max(r.last, w.until)
		r.allWait = r.allWait && w.AskAgain
	}
	return r
}

// addMore adds what the waiters want for others to the cost of a direct take for them. That is a
// quarter of the burst at most for each, because it is lost with the reply.
func (p *pending) addMore(cost int64, policy *Policy) int64 {
	for w := range p.waiting() {
		if w.asked {
			w.more = min(w.More, policy.quarter(), policy.Cap-cost)
			cost += w.more
		}
	}
	return cost
}

// Fill is a credit that fills a bucket to its room: a reset.
const Fill = unlimited

// crediting reports how many credits wait.
func (p *pending) crediting() int {
	if p == nil {
		return 0
	}
	return len(p.credits)
}

// credited returns what those who wait for a credit give together. It returns Fill if one of them
// wants a reset.
func (p *pending) credited() (tokens int64) {
	for _, w := range p.credits {
		if w.cost == Fill {
			return Fill
		}
		tokens = min(tokens+w.cost, lua.MostTokens)
	}
	return tokens
}

// creditsAnswered answers those whose credits a call carried out. One that Redis did not carry out,
// because its deadline lay too far ahead on a clock that was set back, is made a second time: this
// reply has told what the clock is.
func (p *pending) creditsAnswered(c Call, r lua.Reply, second bool) {
	if c.credits == 0 {
		return
	}
	reason := Granted
	if r.Flags&lua.Unapplied != 0 && c.settles == nil { // of a log it is the settling that came to nothing
		if !second {
			p.again = true
			return
		}
		reason = Unavailable
	}
	p.endCredits(c.credits, reason)
}

// failAll ends all that wait: those for tokens as serveAsked does, and the credits.
func (p *pending) failAll(h *Hot, now time.Duration, v Outcome) {
	for w := range p.waiting() {
		w.asked = true
	}
	p.serveAsked(h, now, v)
	p.failCredits()
}

// failCredits answers all credits that wait: they were not carried out.
func (p *pending) failCredits() {
	if p != nil {
		p.endCredits(len(p.credits), Unavailable)
	}
}

// endCredits ends the first n credits. Theirs is delivered at once: nobody else depends on it.
func (p *pending) endCredits(n int, r Reason) {
	for _, w := range p.credits[:n] {
		w.C <- because(r)
	}
	p.credits = p.credits[n:]
}
