package remote_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// leaseDrift is ρ of the protocol: a lease is trusted for so much less than its ttl.
const leaseDrift = 0.01

// FuzzServerClock lets the server's clock do what it likes, beside direct takes and two processes
// that lease, spend, give back, owe, and lose replies. Time is what the clock went forward, from
// call to call: a step forward brings what as much time would; one back brings nothing, and up to a
// second of it has to be made up for before time goes on (else a clock that jitters would bring
// tokens at each jitter). By that time
//
//	admitted ≤ burst + rate · time
//
// in any interval, and what can be spent from the pots is in escrow. Without -fuzz every history is
// played to the script in miniredis too, which must give the very same replies.
//
// limit is the bucket's, as varints: cap, tokens, period, ttl. steps is what happens; see
// clockRun.step.
func FuzzServerClock(f *testing.F) {
	const second = 1_000_000
	limit := func(capacity, tokens, period, ttl int64) []byte {
		b := binary.AppendUvarint(nil, uint64(capacity-1))
		b = binary.AppendUvarint(b, uint64(tokens))
		b = binary.AppendUvarint(b, uint64(period-1))
		return binary.AppendUvarint(b, uint64(ttl-1))
	}
	ordinary := limit(10, 10, second, second)

	f.Add(ordinary, clockSteps(direct, 10, direct, 1, shift, 100_000, direct, 1, direct, 1, shift, 3600*second,
		direct, 10, direct, 1))
	// Back and forth within what is waited out, and beyond it, where the step is believed.
	for _, step := range []int64{900_000, second, second + 1, 3 * second, 3600 * second} {
		f.Add(ordinary, clockSteps(
			direct, 10, shift, -step, direct, 1, shift, step, direct, 10, shift, -step, direct, 10, shift, step/2,
			direct, 10,
			shift, step, direct, 10, shift, -2*step, direct, 10, shift, 2*step, direct, 10, direct, 10,
		))
		f.Add(limit(10, 10, second, 2*second), clockSteps(
			renew+0, 8, renew+1, 8, spend+0, 4, shift, -step, renew+0, 8, direct, 10, spend+1, 2, shift, step,
			spend+0, 8, direct, 10,
			lose+1, 8, shift, -step, again+1, 1, direct, 10, renew+1, 1, spend+1, 10, shift, 2*second, direct, 10,
			spend+0, 10,
			shift, step, giveBack+0, 1, direct, 10, shift, -step, giveBack+1, 1, direct, 10, shift, step, direct, 10,
		))
	}
	// The sweep of one lease leaves the other alone, whose end is near.
	f.Add(limit(10, 10, second, 2*second), clockSteps(
		renew+0, 5, shift, 500_000, renew+1, 5, shift, 1_500_000, direct, 1, spend+1, 2, shift, 400_000, spend+1, 5,
		direct, 10,
	))
	// A lease of everything, spent just before its end: the room that it took fills only from then
	// on.
	f.Add(limit(10, 10, second, 5*second), clockSteps(
		renew+0, 10, shift, 4_940_000, spend+0, 10, shift, 70_000, direct, 10, shift, second, direct, 10, direct, 1,
		shift, -2*second,
		direct, 10, shift, second, direct, 10, renew+1, 10, spend+1, 10, shift, 10*second, renew+0, 10, spend+0, 10,
		direct, 1,
	))
	f.Add(limit(4, 1, second, second), clockSteps(
		owe+0, 3, renew+0, 1, owe+0, 2, lose+0, 2, shift, -5*second, again+0, 1, renew+0, 2, direct, 4, shift,
		5*second, direct, 4,
		renew+0, 4, spend+0, 4, shift, 900_000, shift, -900_000, direct, 4, again+0, 1, shift, 2*second, renew+0, 4,
		spend+0, 4,
	))
	// A clock that jitters, beside a bucket as far below zero as it goes.
	f.Add(ordinary, clockSteps(
		direct, 10, owe+0, 10, owe+0, 10, owe+0, 10, renew+0, 1, shift, -900_000, renew+0, 1, shift, 900_000, renew+0,
		1,
		shift, -900_000, renew+1, 1, shift, 900_000, renew+1, 1, shift, -900_000, renew+0, 1, shift, 900_000, renew+0,
		1,
		shift, -900_000, direct, 1, shift, 900_000, direct, 1, renew+0, 10, spend+0, 10, renew+1, 10, spend+1, 10,
		direct, 10,
	))
	f.Add(limit(3, 0, 1, 7), clockSteps(direct, 2, shift, 1<<45, direct, 2, shift, -1<<45, renew+0, 1, spend+0, 1,
		shift, 8, direct, 3))
	f.Add(limit(1<<40, 1<<40, 1, 1<<50), clockSteps(
		renew+0, 1<<40, spend+0, 1<<39, shift, 1, direct, 1<<40, shift, -1, renew+1, 1<<40, spend+1, 1<<40,
	))
	f.Add(limit(1<<40, 3, 7, second), clockSteps(
		direct, 1<<40, shift, 1<<30, direct, 1<<28, shift, 1, direct, 1, shift, -1<<30, direct, 1, shift, 1<<40,
		direct, 1<<39,
	))

	var script *engine
	if g := flag.Lookup("test.fuzz"); g == nil || g.Value.String() == "" { // gopher-lua takes a hundred times as long
		script = miniEngine(f)
	}
	buckets := 0
	f.Fuzz(func(t *testing.T, limit, steps []byte) {
		buckets++
		var r *clockRun
		// so that no key ends by the store's own clock, which stands still in here
		synctest.Test(t, func(t *testing.T) {
			r = newClockRun(t, limit)
			for n := 0; len(steps) > 0 && n < mostClockSteps; n++ {
				steps = r.step(steps)
			}
		})
		if script == nil || r == nil {
			return
		}
		for i, e := range r.events {
			e.Bucket = fmt.Sprintf("{clock/%d}tb2", buckets)
			if e.Cap == 0 {
				script.del(t, e.Bucket)
			} else if got := script.call(t, e); got != r.answers[i] {
				t.Fatalf("the script answers\n\t%v, memory\n\t%v\nto the last of\n%s", got, r.answers[i], r.history(i))
			}
		}
	})
}

const (
	mostClockSteps = 64

	// longestShift is how far one step of the clock goes, µs: two years. All steps together stay
	// below 2⁵³.
	longestShift = 1 << 46
)

// The steps, and what the number after each is. Those from renew on are of process 0, and one more
// of process 1.
const (
	shift    = iota      // the server's clock, by so many µs, back or forth
	direct               // take so many tokens at once, or none
	renew                // ask for so many with a lease
	lose     = renew + 2 // the same, and the reply is lost
	again    = lose + 2  // the last such call arrives once more
	spend    = again + 2 // so many of the pot
	giveBack = spend + 2 // the whole pot
	owe      = giveBack + 2
	kinds    = owe + 2
)

// clockSteps writes steps as FuzzServerClock reads them: kinds and numbers in turn.
func clockSteps(pairs ...int64) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		if b = append(b, byte(pairs[i])); pairs[i] == shift {
			b = binary.AppendVarint(b, pairs[i+1])
		} else {
			b = binary.AppendUvarint(b, uint64(pairs[i+1]-1))
		}
	}
	return b
}

// clockRun is a bucket, those who use it, and what they may have had.
type clockRun struct {
	*testing.T
	memory *remote.Memory
	limit  lua.Call // Cap, Tokens, Period, TTL

	server   int64 // what its clock shows, µs
	keyEnd   int64 // ms of that clock after which the key is gone
	time     int64 // that has passed up to the last call that wrote, µs
	latest   int64 // what the clock showed at most by then, and
	behind   int64 // the steps back that were believed, which are in latest
	holders  [2]holder
	admitted *ideal.Policer

	events  []lua.Call // Cap 0: the key went
	answers []answer
}

// holder is a process.
type holder struct {
	id              string
	seq, ack        int64
	pot, ret, debt  int64
	deadline        int64 // of the pot, in clockRun.time
	epoch, overflow int64 // as of when nothing was owed
	last            lua.Call
}

func newClockRun(t *testing.T, limit []byte) *clockRun {
	next := func(least, most int64) int64 {
		x, n := binary.Uvarint(limit)
		limit = limit[max(n, 0):]
		return least + int64(x%uint64(most-least+1))
	}
	r := &clockRun{T: t, memory: remote.NewMemory(), server: scriptStart}
	r.limit = lua.Call{
		Bucket: "b", Cap: next(1, 1<<40), Tokens: next(0, 1<<40), Period: next(1, 1<<50), TTL: next(1, 1<<50), Fleet: 1,
	}
	// reckons in any unit of time
	r.admitted = ideal.NewPolicer(r.limit.Tokens, time.Duration(r.limit.Period), r.limit.Cap)
	for i := range r.holders {
		r.holders[i] = holder{id: string(rune('A' + i))}
	}
	return r
}

// step takes one step off the front and returns the rest.
func (r *clockRun) step(steps []byte) []byte {
	kind, steps := int(steps[0])%kinds, steps[1:]
	if kind == shift {
		d, n := binary.Varint(steps)
		if d > -longestShift && d < longestShift && r.server+d > 0 {
			r.server += d
		}
		return steps[max(n, 0):]
	}
	x, n := binary.Uvarint(steps)
	tokens := 1 + int64(x%uint64(r.limit.Cap))
	if kind == direct {
		c := r.limit
		c.Want, c.Min = tokens, tokens
		r.admit(r.ask(c).Grant)
		r.cover()
		return steps[max(n, 0):]
	}
	p := &r.holders[kind%2]
	switch kind - kind%2 {
	case renew:
		r.renew(p, tokens, true)
	case lose:
		r.renew(p, tokens, false)
	case again:
		if p.last.Seq > 0 {
			r.ask(p.last)
		}
	case spend:
		if now, _ := r.passed(); now < p.deadline && p.pot > 0 {
			tokens = min(tokens, p.pot)
			p.pot -= tokens
			r.admit(tokens)
		}
	case giveBack:
		p.ret, p.pot = p.ret+p.pot, 0
		r.renew(p, 0, true)
	case owe:
		p.debt += tokens
	}
	r.cover()
	return steps[max(n, 0):]
}

// renew is one call of a process with its lease.
func (r *clockRun) renew(p *holder, want int64, arrives bool) {
	if now, _ := r.passed(); now >= p.deadline {
		p.ret, p.pot = p.ret+p.pot, 0
	}
	p.seq++
	c := r.limit
	c.Lease, c.Seq, c.Ack, c.Hold, c.Want = p.id, p.seq, p.ack, p.pot, want
	c.Debt, c.Owed, c.Since, c.Seen, c.Epoch = p.debt, p.debt/2, 1, p.overflow, p.epoch
	if c.Hold == 0 {
		c.Ret = p.ret
	}
	p.last = c
	a := r.ask(c)
	if !arrives || a.Code > lua.Replay {
		return
	}
	p.ack, p.ret, p.pot = c.Seq, p.ret-c.Ret, p.pot+a.Grant
	p.debt, p.epoch, p.overflow = 0, a.Epoch, a.Overflow
	p.deadline = r.time + int64(float64(min(c.TTL, a.TTLLeft))*(1-leaseDrift))
}

// passed reports the time that a call would find to have passed, and the steps back that it would
// have to believe.
func (r *clockRun) passed() (now, behind int64) {
	if r.keyEnd == 0 {
		return r.time, 0 // the bucket is yet to be born, and knows no time
	}
	behind = r.behind
	if back := r.latest - (r.server + behind); back > lua.MaxBack.Microseconds() {
		behind += back
	}
	return r.time + max(r.server+behind-r.latest, 0), behind
}

// ask executes a call on Memory by the server's clock.
func (r *clockRun) ask(c lua.Call) lua.Reply {
	now, behind := r.passed()
	if c.Now = r.server; c.Now/1000 > r.keyEnd && r.keyEnd > 0 {
		r.memory.Del(c.Bucket)
		r.events, r.answers = append(r.events, lua.Call{}), append(r.answers, answer{})
		r.time, r.keyEnd = now, 0
	}
	if r.keyEnd == 0 {
		r.latest, r.behind, behind = r.server, 0, 0
	}
	before := r.memory.Fields(c.Bucket)
	var result [1]remote.Result
	r.memory.Run(noContext, time.Second, []lua.Call{c}, result[:])
	a := answerOf(r, result[0].Reply, result[0].Err)
	r.events, r.answers = append(r.events, c), append(r.answers, a)
	if a.err != "" {
		r.Fatalf("%s to the last of\n%s", a.err, r.history(len(r.events)-1))
	}
	if a.reply.Grant < 0 || a.reply.Grant > c.Want || a.reply.Level > c.Cap {
		r.Fatalf("%v to the last of\n%s", a, r.history(len(r.events)-1))
	}
	// else it left no trace: no later call knows that time had passed
	if !maps.Equal(before, r.memory.Fields(c.Bucket)) {
		r.latest += now - r.time
		r.time, r.behind = now, behind
		r.keyEnd = c.Now/1000 + r.memory.PTTL(c.Bucket) // PEXPIRE counts on the server's clock
	}
	return a.reply
}

// admit counts tokens against the bound. The level is a double of 15 digits, and the script takes a
// token of which 10⁻⁹ is missing for a whole one; neither adds up.
func (r *clockRun) admit(n int64) {
	if n == 0 {
		return
	}
	r.admitted.Admit(r.time, n)
	if worst := r.admitted.Worst(); worst.Over > 1e-6+1e-13*float64(r.limit.Cap) {
		r.Fatalf("%d tokens in %d µs, over by %v, after\n%s", worst.Tokens, worst.To-worst.From, worst.Over,
			r.history(len(r.events)-1))
	}
}

// cover checks that what the pots may still spend is in escrow.
func (r *clockRun) cover() {
	now, _ := r.passed()
	spendable := int64(0)
	for i := range r.holders {
		if p := &r.holders[i]; now < p.deadline {
			spendable += p.pot
		}
	}
	if spendable == 0 {
		return
	}
	if escrow, _ := strconv.ParseInt(r.memory.Fields(r.limit.Bucket)["o"], 10, 64); spendable > escrow {
		r.Fatalf("%d can be spent, %d are in escrow, after\n%s", spendable, escrow, r.history(len(r.events)-1))
	}
}

// history prints the calls up to one, times from the start.
func (r *clockRun) history(last int) string {
	var b strings.Builder
	for i, c := range r.events[:last+1] {
		if c.Cap == 0 {
			b.WriteString("the key ends\n")
			continue
		}
		c.Bucket = ""
		fmt.Fprintf(&b, "%+dµs %+v\n\t-> %v\n", c.Now-scriptStart, c, r.answers[i])
	}
	return b.String()
}
