package remote_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// walk makes up a history as it goes: two processes with ideas of their own about the limit, whose
// calls are delayed, repeated and now and then wrong, and a server whose clock is set and which
// loses keys. Memory answers, and what it answers goes into the calls that follow. Its clock stands
// still at the time that the calls are told, so that keys live and die by that time too.
type walk struct {
	draw   func(n int) int // 0 … n-1
	memory *remote.Memory
	bucket string
	now    int64 // the server's clock, µs
	until  int64 // the last ms in which the key is there
	procs  [2]walkProcess
	direct bool // nobody leases
	events []event
}

type walkProcess struct {
	id              string
	limit           lua.Call // Cap, Tokens, Period, TTL
	seq, ack, pot   int64
	epoch, overflow int64    // as last seen
	applied         lua.Call // the last with which it settled in this bucket, zero if none
}

// event is a call, or else something that happens to the key; and what came of it.
type event struct {
	call lua.Call // if by is set
	by   *walkProcess
	loss loss
	hdel string

	at           int64    // the server's clock
	mine, others lua.Call // what was last applied to this bucket by the caller, and by the other process
	answer       answer
	state        stored // pttl is the time to live that this event set, -1 if it set none, -2 if there is no key
	torn         bool   // a record was removed from this bucket by hand
}

// loss is how a key vanishes.
type loss string

const (
	byExpiry loss = "the key expires"
	byDel    loss = "del" // or an eviction
	byFlush  loss = "flushdb"
)

// walkEnd is the last µs at which something happens: ends of leases must stay below 2^53, which is
// the year 2255.
const walkEnd = scriptStart + 1<<51

func newWalk(bucket string, draw func(int) int) *walk {
	w := &walk{draw: draw, memory: remote.NewMemory(), bucket: bucket, now: scriptStart, direct: draw(5) == 4}
	w.memory.StopClock(w.now)
	for i := range w.procs {
		w.procs[i] = walkProcess{id: string(rune('A' + i)), limit: w.limit()}
	}
	if w.draw(3) > 0 {
		w.procs[1].limit = w.procs[0].limit
	}
	return w
}

// limit draws what a process may believe in: often a bucket of a few tokens, where every rule is
// soon at its limit, now and then the largest numbers that the contract allows.
func (w *walk) limit() lua.Call {
	c := pick(w, lua.Call{Tokens: 7, Period: 1e6}, lua.Call{Tokens: 1, Period: 1e6},
		lua.Call{Tokens: 1000, Period: 1e6}, lua.Call{Tokens: 3, Period: 7}, lua.Call{Tokens: 1, Period: 86400e6},
		lua.Call{Tokens: 0, Period: 1})
	c.TTL = pick(w, int64(2e6), 1e6, 250e3, 7)
	c.MaxDebt = pick(w, 0, 0, int64(15), 300, 1<<40)
	if c.Cap = w.burst(); w.draw(16) == 15 {
		c.Tokens, c.Period = pick(w, c.Tokens, 1<<53-1), pick(w, c.Period, lua.LongestPeriod)
		c.TTL = pick(w, c.TTL, 1<<50, 1)
	}
	return c
}

func (w *walk) burst() int64 { return pick(w, int64(10), 4, 100, 2, 20, 1, 1<<40) }

func pick[T any](w *walk, of ...T) T { return of[w.draw(len(of))] }

// upTo draws from 0 … n, more often the ends.
func (w *walk) upTo(n int64) int64 {
	switch w.draw(4) {
	case 0:
		return 0
	case 1:
		return n
	}
	return int64(w.draw(int(n) + 1))
}

// step lets some time pass and makes one event happen.
func (w *walk) step() {
	p := &w.procs[w.draw(2)]
	w.pass(p)
	w.memory.StopClock(w.now)
	if w.state().fields != nil && w.now/1000 > w.until {
		w.happen(event{loss: byExpiry})
		w.lease(p) // at once: Memory drops what has ended when it is next asked, and the clock may be set back before
		return
	}
	switch w.draw(16) {
	case 0, 1, 2:
		w.take(p)
	case 3, 4:
		w.again()
	case 5:
		w.accident(p)
	case 6:
		w.change(p)
	default:
		w.lease(p)
	}
}

// pass lets time pass, or sets the server's clock: by lengths that matter, or to an instant that
// does.
func (w *walk) pass(p *walkProcess) {
	now := w.now
	switch w.draw(8) {
	case 2, 3:
		now += pick(w, 1, 137, p.limit.TTL/2, 100e3, 333_333, 1e6, p.limit.TTL-1, p.limit.TTL, 5e6)
	case 4, 5:
		now = pick(w, w.instants()...) + pick(w, int64(0), -1, 1)
	case 6:
		now += pick(w, int64(-1), -300e3, -1e6, -1e6-1, -3e6, -3600e6)
	case 7:
		now += pick(w, 1e6, int64(3600e6), 7*86400e6)
	}
	if now > scriptStart-86400e6 && now < walkEnd {
		w.now = now
	}
}

// instants are those at which something is about to be over, by the server's clock.
func (w *walk) instants() []int64 {
	all := []int64{w.now}
	b, _ := parse(w.state().fields)
	if !b.exists {
		return all
	}
	all = append(all, b.last-b.behind, b.sweep-b.behind, b.latest-b.behind, (w.until+1)*1000)
	for _, id := range slices.Sorted(maps.Keys(b.records)) {
		all = append(all, b.records[id].End-b.behind)
	}
	for i := range w.events {
		e := &w.events[len(w.events)-1-i]
		if r := e.answer.reply; r.Retry > 0 {
			return append(all, e.at+r.Retry) // when the tokens last asked for may be there
		}
	}
	return all
}

// take is a direct take or a peek.
func (w *walk) take(p *walkProcess) {
	c := w.call(p)
	c.Want = w.want(c.Cap)
	c.Min = min(c.Want, pick(w, c.Want, 1, 0))
	w.run(p, c)
}

// want draws what somebody asks for.
func (w *walk) want(burst int64) int64 {
	switch w.draw(8) {
	case 0, 1, 2:
		return 1 + int64(w.draw(3))
	case 3:
		return 0
	case 4:
		return burst + int64(w.draw(2))
	}
	return w.upTo((burst + 1) / 2)
}

// lease is a call with a record: renewal, return, settlement of an outage, a late or a foolish one.
func (w *walk) lease(p *walkProcess) {
	if w.direct {
		w.take(p)
		return
	}
	p.seq++
	c := w.call(p)
	c.Lease, c.Seq = p.id, p.seq
	c.Ack = pick(w, p.ack, p.ack, p.seq-1, p.ack, 0)
	c.Want = w.want(c.Cap)
	c.Min, c.To = min(c.Want, pick(w, 0, 1, c.Want)), pick(w, 0, 0, 0, int64(1))
	if w.draw(2) > 0 {
		p.pot -= w.upTo(p.pot) // spent
	}
	switch w.draw(12) {
	default:
		c.Hold = p.pot
	case 7, 8:
		c.Ret, p.pot = p.pot, 0
	case 9:
		c.Ret, p.pot = w.upTo(c.Cap), 0
	case 10:
		c.Hold = min(p.pot+1, 1<<40)
	case 11:
		c.Hold = w.upTo(c.Cap)
	}
	if w.draw(6) == 5 {
		c.Refund = w.upTo(c.Cap)
		c.Deadline = pick(w, c.Now+c.TTL, c.Now+1, c.Now+c.TTL+1, c.Now, 0)
	}
	if w.draw(6) == 5 {
		c.Debt = pick(w, w.upTo(c.Cap), w.upTo(3*c.Cap), 1<<53-1)
		c.Owed, c.Since = w.upTo(c.Debt), max(c.Now, 1)
		c.Seen = pick(w, p.overflow, p.overflow, 0, 1<<40)
		c.Fleet = 1 + int64(w.draw(3))
	}
	if w.draw(8) == 7 {
		c.Seq = 0
		w.run(p, c)
		return
	}
	a := w.run(p, c)
	if a.err == "" && a.reply.Code <= lua.Replay && w.draw(5) < 4 { // else the reply is lost
		p.ack, p.pot = c.Seq, c.Hold+a.reply.Grant
		p.epoch, p.overflow = a.reply.Epoch, a.reply.Overflow
	}
}

// call is what all calls have.
func (w *walk) call(p *walkProcess) lua.Call {
	c := p.limit
	c.Bucket, c.Now, c.Fleet = w.bucket, w.now, 1
	c.Epoch = pick(w, p.epoch, p.epoch, p.epoch, p.epoch, 0, p.epoch+1)
	if w.draw(8) == 7 {
		c.Deadline = c.Now + pick(w, c.TTL, 1, 0, -1)
	}
	return c
}

// again repeats an earlier call, as a network does.
func (w *walk) again() {
	if len(w.events) == 0 {
		return
	}
	e := w.events[len(w.events)-1-w.draw(len(w.events))]
	if e.by == nil {
		return
	}
	e.call.Now = w.now
	w.run(e.by, e.call)
}

// accident loses the key, breaks off a run, or sends nonsense.
func (w *walk) accident(p *walkProcess) {
	fields := w.state().fields
	switch w.draw(4) {
	case 0:
		w.happen(event{loss: byDel})
	case 1:
		w.happen(event{loss: byFlush})
	case 2:
		if _, ok := fields["p"+p.id]; ok {
			w.happen(event{hdel: "p" + p.id})
		}
	case 3:
		c := w.call(p)
		*pick(w, &c.Cap, &c.Period, &c.Want, &c.TTL, &c.Seen, &c.Epoch) = pick(w, int64(-1), 1<<53)
		w.run(p, c)
	}
}

// change raises or lowers a limit: its burst, or all of it. The other process learns of it later,
// or never.
func (w *walk) change(p *walkProcess) {
	switch w.draw(4) {
	case 0:
		p.limit = w.limit()
	case 1:
		p.limit = w.procs[w.draw(2)].limit
	default:
		p.limit.Cap = w.burst()
	}
	w.lease(p)
}

// state is what is stored now.
func (w *walk) state() stored {
	if len(w.events) == 0 {
		return stored{nil, -2}
	}
	return w.events[len(w.events)-1].state
}

// run executes a call on Memory.
func (w *walk) run(p *walkProcess, c lua.Call) answer {
	e := event{call: c, by: p, mine: p.applied, others: w.procs[0].applied}
	if p == &w.procs[0] {
		e.others = w.procs[1].applied
	}
	var results [1]remote.Result
	w.memory.Run(noContext, time.Second, []lua.Call{c}, results[:])
	e.answer.reply = results[0].Reply
	if refusal := (*remote.ScriptError)(nil); errors.As(results[0].Err, &refusal) {
		e.answer.err = refusal.Text
	} else if results[0].Err != nil {
		panic(results[0].Err) // of a Memory that is open and does not fail
	}
	if e.answer.err == "" && e.answer.reply.Code <= lua.Denied && !c.Dry() {
		p.applied = c
	}
	w.happen(e)
	return e.answer
}

// happen makes an event happen to Memory, unless it is a call, which did, or an expiry, which
// Memory must notice itself, and notes what it left.
func (w *walk) happen(e event) {
	before := w.state().fields
	if len(w.events) > 0 {
		e.torn = w.events[len(w.events)-1].torn
	}
	switch {
	case e.loss == byDel, e.loss == byFlush:
		w.memory.Del(w.bucket)
	case e.hdel != "":
		w.memory.HDel(w.bucket, e.hdel)
		e.torn = true
	}
	e.at, e.state = w.now, stored{nil, -2}
	if e.loss == "" {
		e.state.fields = w.memory.Fields(w.bucket)
	}
	switch {
	case e.state.fields == nil:
		w.procs[0].applied, w.procs[1].applied, e.torn = lua.Call{}, lua.Call{}, false
	case e.by != nil && !maps.Equal(before, e.state.fields): // no write leaves all as it was
		e.state.pttl = w.memory.PTTL(w.bucket)
		w.until = w.now/1000 + e.state.pttl
	default:
		e.state.pttl = -1
	}
	w.events = append(w.events, e)
}

// wrote reports whether an event is a call that wrote.
func (e *event) wrote() bool { return e.by != nil && e.state.pttl >= 0 }

func (w *walk) String() string { return w.upToEvent(len(w.events) - 1) }

// upToEvent prints a history, times from its start.
func (w *walk) upToEvent(last int) string {
	var b strings.Builder
	for i := range w.events[:last+1] {
		e := &w.events[i]
		fmt.Fprintf(&b, "%+dµs ", e.at-scriptStart)
		switch c := e.call; {
		case e.loss != "":
			b.WriteString(string(e.loss) + "\n")
		case e.hdel != "":
			b.WriteString("hdel " + e.hdel + "\n")
		default:
			c.Bucket = ""
			fmt.Fprintf(&b, "%+v\n\t-> %v\n", c, e.answer)
		}
		var fields []string
		for _, name := range slices.Sorted(maps.Keys(e.state.fields)) {
			fields = append(fields, name+"="+e.state.fields[name])
		}
		fmt.Fprintf(&b, "\t   %v, to live %d ms\n", fields, e.state.pttl)
	}
	return b.String()
}
