package remote_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// No lease of a history ends, and no call is too late: what depends on time has its own tests, and the server's clock
// would have to be part of the model.
const (
	historyTTL      = time.Hour
	historyDeadline = historyTTL / 2 // from the server's time on; a refund needs one within the life of a lease
)

// historyProcess leases tokens from a few buckets as the protocol has it: one call under way per bucket, each with a
// number of its own; a call without a reply is given up before the next one leaves, and its reply, should it come, is
// ignored; what a call states is the truth.
type historyProcess struct {
	history *history
	who     int
	id      string       // of its leases
	store   remote.Store // over a faulty link
	copies  remote.Store // over another: where copies of its calls come from
	chance  *rand.Rand

	seq      int64 // one counter for all buckets
	now      int64 // the server's clock, as last seen
	holdings []holding
	sent     []historyCall // lease calls, for copies
}

// holding is what a process knows of one bucket.
type holding struct {
	bucket   string
	cap      int64
	epoch    int64 // as last seen: a bucket that is not lost keeps it
	pot      int64 // leased tokens, unspent
	spent    int64 // tokens that may still be refunded
	ack      int64 // the last call whose reply was accepted
	ret      int64 // to be given back until a reply says that it was
	debt     int64 // admitted without the bucket, to be charged likewise
	doubtful bool  // the last call was given up
}

// live makes the process call for a while.
func (p *historyProcess) live() {
	for range historySteps {
		switch n := p.chance.IntN(40); {
		case n < 4 && len(p.sent) > 0:
			p.history.run(p.copies, p.sent[p.chance.IntN(len(p.sent))]) // a copy comes late
		case n < 8:
			p.history.network.deliver(p.chance)
		case n < 9:
			p.history.forgetScripts()
		default:
			p.call(p.someCalls()...)
		}
	}
}

// someCalls makes up what goes into one round trip: at most one call of the lease per bucket, and direct takes.
func (p *historyProcess) someCalls() []historyCall {
	var calls []historyCall
	for len(calls) == 0 {
		for i := range p.holdings {
			h := &p.holdings[i]
			switch p.chance.IntN(8) {
			case 0, 1, 2:
				calls = append(calls, p.leaseCall(h))
			case 3:
				calls = append(calls, p.directCall(h))
			}
		}
	}
	return calls
}

// call sends calls in one round trip, now and then with a copy of them that the network made, and accepts the replies.
func (p *historyProcess) call(calls ...historyCall) {
	if p.chance.IntN(6) == 0 {
		copied := slices.DeleteFunc(slices.Clone(calls), func(c historyCall) bool {
			return c.Lease == "" // a copy of a direct take would just be another take
		})
		p.history.copying.Go(func() { p.history.run(p.copies, copied...) })
	}
	for i, r := range p.history.run(p.store, calls...) {
		c := calls[i]
		h := &p.holdings[slices.IndexFunc(p.holdings, func(h holding) bool { return h.bucket == c.Bucket })]
		if r.Err == nil {
			p.now, h.epoch = max(p.now, r.Reply.Now), r.Reply.Epoch
		}
		if c.Lease != "" {
			p.settle(h, c, r)
		}
	}
}

// leaseCall makes up the next call of the lease of a bucket. Each states a new truth.
func (p *historyProcess) leaseCall(h *holding) historyCall {
	p.spend(h)
	if p.chance.IntN(3) == 0 {
		h.ret, h.pot = h.ret+h.pot, 0 // all or nothing
	}
	if p.chance.IntN(16) == 0 {
		h.debt += 1 + p.chance.Int64N(h.cap)
	}
	c := p.bareLeaseCall(h)
	if p.chance.IntN(4) > 0 {
		c.Want = 1 + p.chance.Int64N(h.cap)
		c.Min = p.chance.Int64N(c.Want/2 + 1)
	}
	switch p.chance.IntN(16) {
	case 0, 1, 2: // sent once, whatever becomes of it
		c.Refund, h.spent = h.spent, 0
	case 3: // a reset: as much as there is room for
		c.Refund, h.spent = 2*h.cap, 0
	}
	if !h.doubtful && h.pot+h.ret+h.debt == 0 {
		c.Ack = c.Seq - 1 // settled and empty: the process may forget the bucket, and this is how it starts anew
	}
	p.sent = append(p.sent, c)
	return c
}

// directCall makes up a direct take, or a peek.
func (p *historyProcess) directCall(h *holding) historyCall {
	c := p.bareCall(h)
	if p.chance.IntN(4) > 0 {
		c.Want = 1 + p.chance.Int64N(3)
		c.Min = p.chance.Int64N(c.Want + 1)
	}
	return c
}

// bareLeaseCall states what is, and asks for nothing.
func (p *historyProcess) bareLeaseCall(h *holding) historyCall {
	c := p.bareCall(h)
	p.seq++
	c.Lease, c.Seq, c.Ack = p.id, p.seq, h.ack
	c.Hold, c.Ret, c.Debt, c.Owed = h.pot, h.ret, h.debt, h.debt
	return c
}

// bareCall is a look.
func (p *historyProcess) bareCall(h *holding) historyCall {
	return historyCall{who: p.who, Call: lua.Call{
		Bucket: h.bucket, Cap: h.cap, Tokens: 0, Period: 1, TTL: historyTTL.Microseconds(), Fleet: historyProcesses,
		Epoch: h.epoch, Deadline: p.now + historyDeadline.Microseconds(),
	}}
}

// spend takes from the pot.
func (p *historyProcess) spend(h *holding) {
	n := p.chance.Int64N(h.pot + 1)
	h.pot, h.spent = h.pot-n, h.spent+n
}

// settle accepts a reply, or gives the call up.
func (p *historyProcess) settle(h *holding, c historyCall, r remote.Result) {
	h.doubtful = r.Err != nil || r.Reply.Code > lua.Replay
	if h.doubtful {
		return
	}
	p.spend(h) // while the call was under way
	h.pot += r.Reply.Grant
	h.ack, h.ret, h.debt = c.Seq, 0, h.debt-c.Debt
}

// giveBack returns all that the process holds, and looks at what is there then. The network is free of faults by now.
func (p *historyProcess) giveBack() {
	for i := range p.holdings {
		h := &p.holdings[i]
		h.ret, h.pot = h.ret+h.pot, 0
		last := p.bareLeaseCall(h)
		p.call(last)
		if h.doubtful {
			p.history.fail(fmt.Sprintf("%v: not accepted, though the network has no faults any more", last))
		}
		p.call(p.bareCall(h))
	}
}
