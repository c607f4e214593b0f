package adversary

import (
	"maps"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// request is a call on its way to the server.
type request struct {
	process *process
	bucket  *bucket
	call    local.Call
	direct  bool // what it is granted is for those in line, and in no lease

	repeated int
	givenUp  bool          // by its process: its reply is not wanted
	lost     bool          // it arrives for nothing
	granted  int64         // to its lease, by an execution: may still be accepted
	until    time.Duration // from here on what it is granted is dead on arrival
	refunds  []refund      // canceled tokens among those that it gives back
	credited bool
	sent     time.Duration // by its process' clock
	charged  int64         // debt, with the calls before it that nobody heard of
}

// reply is an answer on its way back.
type reply struct {
	to       *request
	answer   lua.Reply
	event    int // of the admissions: when it was executed
	repeated int
}

// refund is tokens that were admitted at an event and are to go back.
type refund struct {
	event int
	n     int64
}

// newest are the last of the refunds, most tokens of them: what came before is burnt.
func newest(all []refund, most int64) (kept []refund) {
	for i := len(all) - 1; i >= 0 && most > 0; i-- {
		n := min(all[i].n, most)
		kept = append(kept, refund{all[i].event, n})
		most -= n
	}
	return kept
}

// request puts a call into the network.
func (w *World) request(b *bucket, c local.Call) *request {
	p := b.process
	r := &request{process: p, bucket: b, call: c, direct: c.Direct || c.Unleased, sent: p.now()}
	if c.Refund > 0 && !r.resets() {
		r.refunds, b.refunding = newest(b.refunding, c.Refund), nil
	}
	w.requests = append(w.requests, r)
	if len(w.requests) > maxMessages {
		w.requests = w.requests[1:]
	}
	w.tellf("%s sends %d: want %d min %d ack %d hold %d ret %d refund %d debt %d owed %d direct %t to %d ttl %v, wanted for %v",
		p.id, c.Seq, c.Want, c.Min, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Owed, c.Direct, c.To, time.Duration(c.TTL)*time.Microsecond, time.Duration(c.Deadline-w.server())*time.Microsecond)
	return r
}

// maxMessages bounds what is under way in each direction; beyond it the oldest is lost.
const maxMessages = 6

// resets reports whether the call fills the bucket: by saying so, or a single bucket by refunding more than there can be.
func (r *request) resets() bool {
	return r.call.Reset > 0 || r.call.Algorithm == lua.TokenBucket && r.call.Refund > 2*r.call.Cap
}

// wire is what all calls of a policy have.
func (w *World) wire(p *local.Policy) lua.Call {
	c := p.Call
	c.Bucket = w.bucket
	return c
}

// ask has the server execute a call, now by its clock.
func (w *World) ask(c lua.Call) lua.Reply {
	c.Now = w.server()
	if w.keyEnd > 0 && c.Now/1000 > w.keyEnd {
		w.lose() // it expired
	}
	w.turn()
	w.calls++
	answer, err := w.bank.run(c)
	if err != nil {
		w.failf("the script refuses %+v: %v", c, err)
		return answer
	}
	s, err := w.bank.state(w.scope.Algorithm, w.bucket)
	if err != nil {
		w.failf("the bucket is damaged: %v", err)
	}
	wrote := s.Exists && (s.pttl > w.state.pttl || !maps.Equal(s.fields, w.state.fields))
	before := w.state
	w.state = s
	w.begin()
	if wrote {
		w.keyEnd = c.Now/1000 + s.pttl
		w.written = w.segment
		w.window = w.blockOf(w.limits[0], s.Last)
	}
	own, owned := before.Records[c.Lease]
	w.rule.asked(w, &invariant.Exchange{
		Call: &c, Reply: &answer, Before: &before.Bucket, After: &s.Bucket, Own: own, Owned: owned, Conceded: w.harmed,
	})
	return answer
}

// execute lets a request arrive.
func (w *World) execute(r *request) {
	if r.lost {
		return
	}
	before := w.state.Records[r.call.Lease]
	answer := w.ask(r.call.Call)
	w.tellf("%s %d executed: %+v, %v", r.process.id, r.call.Seq, answer, w.state.fields)
	done := answer.Code == lua.Granted || answer.Code == lua.Denied
	if done && answer.Flags&lua.Adopted != 0 && w.scope.Books {
		w.failf("%s: what it holds was not on record, though nothing was lost", r.process.id)
	}
	if done && !r.call.Direct {
		r.process.charge(r)
	}
	if done && r.call.Debt > 0 && !r.resets() && w.forgotten == 0 && (before.Debt == 0 || r.call.Ack >= before.Seq) && !w.harmed {
		w.rule.owed(w, r)
	}
	dated := r.call.Deadline > 0 && r.call.Deadline <= w.server()+r.call.TTL
	if told := answer.Flags&lua.Unapplied != 0; done && !told && !dated && r.call.Refund+r.call.Reset > 0 {
		w.failf("%s %d: what it gives back did not count, and the reply does not say so", r.process.id, r.call.Seq)
	} else if told && done && dated && !w.scope.windows() {
		w.failf("%s %d: what it gives back counted, and the reply says otherwise", r.process.id, r.call.Seq)
	}
	if done && dated && !r.credited {
		switch {
		case r.resets():
			r.credited = true
			w.uncovered()
			w.rule.reset(w, r)
		case r.call.Refund > 0:
			r.credited = true
			w.credited += r.call.Refund
			w.rule.refund(w, r, answer.Flags)
		}
	}
	if answer.Code == lua.Granted || answer.Code == lua.Replay {
		if r.direct {
			w.vain += answer.Grant
		} else {
			r.granted = max(r.granted, answer.Grant)
			left := time.Duration(min(r.call.TTL, answer.TTLLeft)) * time.Microsecond
			r.until = max(r.until, r.sent+left-left/100)
		}
	}
	w.replies = append(w.replies, &reply{to: r, answer: answer, event: w.open()})
	if len(w.replies) > maxMessages {
		w.replies = w.replies[1:]
	}
}

// flow lets everything that is due be sent, arrive in order, and be answered.
func (w *World) flow() {
	for _, p := range w.processes {
		for _, b := range append([]*bucket(nil), p.buckets...) {
			if b.queued {
				b.send()
			}
		}
	}
	for ; len(w.requests) > 0; w.requests = w.requests[1:] {
		w.execute(w.requests[0])
	}
	for ; len(w.replies) > 0; w.replies = w.replies[1:] {
		w.replies[0].to.process.deliver(w.replies[0])
	}
}

// outsider takes n tokens directly, or none; with 0 all there are.
func (w *World) outsider(n int64) {
	c := w.wire(w.policies[0])
	c.Want, c.Min = n, n
	switch {
	case n == 0:
		c.Want, c.Min = c.Cap, 1
	case n > c.Cap:
		return
	}
	answer := w.ask(c)
	w.tellf("an outsider asked for %d: %+v, %v", n, answer, w.state.fields)
	w.admit(w.open(), answer.Grant)
	w.outside += answer.Grant
}

// deliver lets a reply arrive. The bucket has to know by itself whether it still wants it.
func (p *process) deliver(r *reply) {
	w, b := p.world, r.to.bucket
	if w == nil {
		return // the process is dead
	}
	p.known = true
	wanted := b.call == r.to && !r.to.givenUp
	pot, _ := b.Bucket.Peek(p.now())
	seq, a := r.to.call.Seq, r.answer
	switch a.Code {
	case lua.Granted, lua.Denied, lua.Replay:
		effect, accepted := b.Accept(p.now(), seq, a)
		if accepted != wanted {
			w.failf("%s: reply to %d: accepted %t, wanted %t", p.id, seq, accepted, wanted)
		}
		if accepted {
			p.accepted(b, r)
			b.outgrown(r.to.call.Policy)
		}
		spent := b.spent
		b.collect(r)
		if accepted && r.to.direct {
			left, _ := b.Bucket.Peek(p.now())
			b.direct(r, b.spent-spent, pot-left)
		}
		b.apply(effect)
	case lua.Late:
		if wanted {
			p.guess = 0 // its clock is corrected
			b.failed()  // the first time it is sent again
		}
		b.apply(b.Late(p.now(), seq))
	default:
		if wanted {
			b.failed()
		}
		b.apply(b.Fail(p.now(), seq))
	}
	b.collect(nil)
	w.tellf("%s hears of %d, wanted %t", p.id, seq, wanted)
}

// direct says when the tokens count that those in line got with a direct take's reply: what it brought, when it was
// executed; what the pot had, now. What it brought for somebody who has left is given back, and counts, like every token
// that is given back, as admitted until then.
func (b *bucket) direct(r *reply, admitted, ofPot int64) {
	w := b.process.world
	w.admit(r.event, r.answer.Grant)
	if left := r.answer.Grant - (admitted - ofPot); left > 0 {
		b.refunding = append(b.refunding, refund{r.event, left})
	}
	w.admit(w.open(), ofPot)
}

// charge notes that a call was executed, with the debt that it reports. What calls before it reported without being heard
// counts towards that; what is reported no more, because its bucket gave it up, stays charged.
func (p *process) charge(r *request) {
	charged := int64(0)
	if last := p.unheard; last != nil && r.call.Ack < last.call.Seq {
		charged = last.charged
	} else if last != nil {
		p.forgotten += last.charged
	}
	r.charged = max(charged, r.call.Debt)
	p.unheard = r
}

// accepted notes an accepted reply.
func (p *process) accepted(b *bucket, r *reply) {
	w := p.world
	b.call = nil
	if r.to.call.Lease != "" {
		b.calls.Accepts()
	}
	b.granted += r.answer.Grant
	if r.to.direct {
		w.vain -= r.answer.Grant
	}
	if p.unheard == r.to {
		p.forgotten += r.to.charged - r.to.call.Debt
		p.unheard = nil
	}
	if r.to.credited && !r.to.resets() {
		w.credited -= r.to.call.Refund
	}
	if p.stale != nil && !r.to.direct {
		p.stale.event = max(p.stale.event, r.event) // these tokens were out from then on
	}
}
