package remote_test

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// liveFleet is some processes that keep to the protocol, and their bucket on one engine, in real time. It sees what no
// process sees: replies that get lost on the way, and what is stored.
type liveFleet struct {
	t      tester
	engine *engine
	limit  lua.Call // what all calls have
	greedy bool     // takes all it can get and spends it at once: then the bound is nearly reached
	procs  [liveProcesses]liveProcess
	seen   census

	began   time.Time // before the engine
	ideal   float64   // level of the ideal bucket that all admissions are taken from
	idealAt int64     // µs of the wall clock

	canceled, credited int64 // tokens: given back by processes, taken by the bucket

	epoch int64
	there bool  // the key, when it was last looked at
	gone  int64 // ms of the wall clock from which on it may be gone

	fault string // the first thing that went wrong
	log   *strings.Builder
}

// leaseDrift is ρ of the protocol: a lease is trusted for so much less than its ttl.
const leaseDrift = 0.01

// liveProcesses is how many processes share a bucket.
const liveProcesses = 3

// liveKinds is what must occur in the life of fleets.
var liveKinds = []string{
	"granted", "denied", "renewed", "returned", "refunded", "late", "on time", "spent", "taken", "replay", "stale",
	"lease over", "lost", "short grant",
}

type liveProcess struct {
	id       string
	seq, ack int64
	pot, ret int64
	refund   int64
	spent    int64     // admitted tokens that may still be canceled
	deadline time.Time // of the pot
	end      int64     // of the record, by the server's clock

	sent  lua.Call // the latest call
	reply lua.Reply
	open  bool      // and its reply would still be accepted
	left  time.Time // when it was first sent
}

func newLiveFleet(e *engine, began time.Time, limit lua.Call, greedy bool, seen census) *liveFleet {
	f := &liveFleet{
		engine: e, limit: limit, greedy: greedy, seen: seen,
		began: began, ideal: float64(limit.Cap), log: new(strings.Builder),
	}
	for i := range f.procs {
		f.procs[i].id = string(rune('A' + i))
	}
	return f
}

// step makes one thing happen; amount is reduced to what there is.
func (f *liveFleet) step(t tester, what, who int, amount int64, chance int) {
	p := &f.procs[who]
	if f.t = t; f.greedy {
		amount = f.limit.Cap - 1 // of 0 … Cap − 1
	}
	switch f.seen[anything]++; what {
	case 0, 1, 2:
		f.renew(p, amount, chance, 0)
	case 3: // at its deadline, or nearly
		f.renew(p, amount, chance, f.server()+[...]int64{200, 50, 0, -1000}[chance])
	case 4: // all goes back
		p.ret, p.pot = p.ret+p.pot, 0
		f.renew(p, amount, chance, 0)
	case 5, 6:
		f.again(p, chance)
	case 7, 8, 9:
		f.spend(p, amount)
	case 10:
		f.take(amount)
	case 11: // what was admitted last is not used; the next call says so
		if p.spent > 0 {
			p.refund, p.spent = p.refund+1, p.spent-1
			f.canceled++
		}
	}
}

// server guesses the server's clock: it is this machine's.
func (f *liveFleet) server() int64 { return time.Now().UnixMicro() }

// skew is by how many µs the wall clock was set or slewed since the engine's own began: what is compared across clocks
// may differ by it. It is next to nothing, unless somebody sets the clock while the test runs.
func (f *liveFleet) skew() float64 {
	now := time.Now()
	return math.Abs(float64(now.UnixMicro()-f.began.UnixMicro()-now.Sub(f.began).Microseconds())) + 1
}

// renew gives up the call under way and sends the next.
func (f *liveFleet) renew(p *liveProcess, amount int64, chance int, deadline int64) {
	if p.left = time.Now(); !p.left.Before(p.deadline) { // what has ended is dead: never held, given back if anything
		p.ret, p.pot = p.ret+p.pot, 0
	}
	p.seq++
	c := f.limit
	c.Lease, c.Seq, c.Ack, c.Hold, c.Ret = p.id, p.seq, p.ack, p.pot, p.ret
	c.Want = (amount + 1) % (c.Cap + 1)
	c.Min = min(c.Want, int64(chance))
	c.Epoch, c.Deadline = f.epoch, deadline
	if deadline == 0 && p.refund > 0 { // once, and burnt when it is lost
		c.Refund, c.Deadline, p.refund = p.refund, f.server()+c.TTL/2, 0
	}
	p.sent, p.open = c, true
	f.send(p, chance)
}

// again sends the latest call once more, as a network does that repeats.
func (f *liveFleet) again(p *liveProcess, chance int) {
	if p.sent.Seq == 0 {
		return
	}
	c, first := p.sent, p.reply
	record, known := f.stored().records[p.id]
	// else it was late, or was swept: the copy is the first that the bucket knows of
	known = known && record.Seq == c.Seq
	switch r := f.send(p, chance); {
	case r.Code == lua.Late, !known && r.Code <= lua.Denied:
	case known && r.Now >= record.End && r.Code == lua.Stale:
		f.seen["stale"]++
	case known && r.Now < record.End && r.Code == lua.Replay && r.Grant == first.Grant && r.Grant == record.Grant &&
		math.Abs(float64(r.TTLLeft-(record.End-r.Now))) < f.skew():
		f.seen["replay"]++
	default:
		f.fail("the copy is answered %+v, the original %+v; known %v, %+v", r, first, known, record)
	}
}

// send sends a process' latest call, and may lose the reply on the way back.
func (f *liveFleet) send(p *liveProcess, chance int) lua.Reply {
	held := p.end
	r := f.call(p.sent)
	executed := r.Code <= lua.Denied
	if r.Flags&lua.Adopted != 0 && r.Now < held {
		f.fail("adopted %d tokens of a lease that lasts for another %d µs", p.sent.Hold, held-r.Now)
	}
	if executed {
		p.end, p.reply = r.Now+r.TTLLeft, r
		if n := p.sent.Refund; n > 0 { // from now on, as in a central bucket that gets the same refunds
			f.admit(r.Now, -n)
			if f.credited += n; f.credited > f.canceled {
				f.fail("%d tokens refunded of %d canceled", f.credited, f.canceled)
			}
			f.seen["refunded"]++
		}
		f.noteExecuted(p.sent, r)
	}
	if chance == 0 {
		f.seen["lost"]++
		return r
	}
	if r.Code > lua.Replay || !p.open {
		return r
	}
	if !time.Now().Before(p.deadline) {
		p.pot = 0 // it ended while the call was under way
		f.seen["lease over"]++
	}
	p.pot += r.Grant
	p.deadline = p.left.Add(time.Duration(float64(min(p.sent.TTL, r.TTLLeft))*(1-leaseDrift)) * time.Microsecond)
	if p.ack, p.ret, p.open = p.sent.Seq, 0, false; f.greedy {
		f.spend(p, p.pot-1)
	}
	return r
}

func (f *liveFleet) noteExecuted(c lua.Call, r lua.Reply) {
	switch {
	case r.Code == lua.Denied:
		f.seen["denied"]++
	case r.Grant > 0 && r.Grant < c.Want:
		f.seen["short grant"]++
	case r.Grant > 0:
		f.seen["granted"]++
	}
	if c.Ret > 0 {
		f.seen["returned"]++
	} else if c.Hold > 0 && r.Grant > 0 {
		f.seen["renewed"]++
	}
}

func (f *liveFleet) spend(p *liveProcess, amount int64) {
	if p.pot == 0 {
		return
	}
	n := 1 + amount%p.pot
	if now := time.Now(); now.Before(p.deadline) {
		p.pot, p.spent = p.pot-n, p.spent+n
		f.admit(now.UnixMicro(), n)
		f.seen["spent"]++
	}
}

func (f *liveFleet) take(amount int64) {
	c := f.limit
	c.Want = 1 + amount%c.Cap
	c.Min = 1
	if r := f.call(c); r.Grant > 0 {
		f.admit(r.Now, r.Grant)
		f.seen["taken"]++
	}
}

// call executes a call by the engine's clock and checks what must hold of any.
func (f *liveFleet) call(c lua.Call) lua.Reply {
	before := f.server()
	a := f.engine.call(f.t, c)
	after := f.server()
	r := a.reply
	c.Bucket = ""
	fmt.Fprintf(f.log, "%+v\n\t-> %v\n", c, a)
	if slack := int64(f.skew()); a.err != "" || r.Now < before-slack || r.Now > after+slack {
		f.fail("%v by the server's clock, sent at %d, back at %d", a, before, after)
	}
	if late := c.Deadline > 0 && r.Now >= c.Deadline; late != (r.Code == lua.Late) {
		f.fail("code %d at %d, deadline %d", r.Code, r.Now, c.Deadline)
	} else if late {
		f.seen["late"]++
		return r
	} else if c.Deadline > 0 {
		f.seen["on time"]++
	}
	if created := r.Flags&lua.Created != 0; created && f.there && after/1000 < f.gone || !created && !f.there {
		f.fail("flags %d; the key was there %v, and is until %d ms", r.Flags, f.there, f.gone)
	} else if r.Flags&lua.SteppedBack != 0 && f.skew() < 1e6 {
		f.fail("nobody set the clock back")
	}
	if r.Epoch != 0 {
		f.epoch = r.Epoch
	}
	b := f.stored()
	if d := b.unsound(f.limit, false); b.exists && d != "" {
		f.fail("%s", d)
	}
	var spendable int64
	for i := range f.procs {
		if p := &f.procs[i]; time.Now().Before(p.deadline) {
			spendable += p.pot
		}
	}
	if spendable > b.escrow {
		f.fail("%d can be spent, %d are in escrow", spendable, b.escrow)
	}
	return r
}

// stored reads the bucket, and checks that it is kept for long enough.
func (f *liveFleet) stored() parsed {
	before := f.server()
	s := f.engine.look(f.t, f.limit.Bucket)
	b, fault := parse(s.fields)
	if fault != "" {
		f.fail("%s", fault)
	}
	now := f.server()
	f.there, f.gone = b.exists, before/1000+s.pttl-1 // at the earliest: PTTL is rounded, and was read after before
	// A second of margin is given at a write; what is left of it shrinks no faster than the need.
	if need := b.needs(now) + 1000; b.exists && float64(s.pttl) < need-1-f.skew()/1000 {
		f.fail("%d ms to live, needed are %.3f for %v", s.pttl, need, s.fields)
	}
	return b
}

// admit takes tokens out of the ideal bucket at a time of the wall clock, or puts them back.
func (f *liveFleet) admit(at, n int64) {
	perMicro := float64(f.limit.Tokens) / float64(f.limit.Period)
	if f.idealAt > 0 {
		f.ideal += float64(max(0, at-f.idealAt)) * perMicro
	}
	f.idealAt = max(at, f.idealAt)
	f.ideal = min(min(f.ideal, float64(f.limit.Cap))-float64(n), float64(f.limit.Cap))
	fmt.Fprintf(f.log, "\tadmitted %d, ideal bucket %.3f\n", n, f.ideal)
	if f.ideal < -1e-6-perMicro*f.skew() {
		f.fail("an ideal bucket would be at %.3f", f.ideal)
	}
}

func (f *liveFleet) fail(format string, args ...any) {
	if f.fault == "" {
		f.fault = fmt.Sprintf(format, args...)
	}
}
