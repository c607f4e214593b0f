package remote_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// walkSteps is how long a random history is: the longest of the shortest histories that show a mistake of the script has
// 16 steps, most have 5 to 12.
const walkSteps = 14

// TestRandomHistories plays random histories on the three engines and compares every reply, every stored field and the
// time to live. The histories come from rapid, so a difference is shown in its shortest form.
func TestRandomHistories(t *testing.T) {
	mini, server := miniEngine(t), realEngine(t)
	histories := 0
	check := func(t *rapid.T) {
		histories++
		w := newWalk(fmt.Sprintf("{walk/%d}tb1", histories), func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") })
		for range walkSteps {
			w.step()
		}
		w.replay(t, server)
		if histories%8 == 0 { // gopher-lua takes ten times as long, and has its own test in every scenario
			w.replay(t, mini)
		}
	}
	for range 8 { // rapid makes 100 histories per Check
		rapid.Check(t, check)
	}
}

// TestManyHistories plays many more on Memory alone and checks what must hold after every call.
func TestManyHistories(t *testing.T) {
	histories := 5000
	if testing.Short() {
		histories = 1000
	}
	for i := range histories {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		w := newWalk("{walk/0}tb1", r.IntN)
		for range walkSteps {
			w.step()
			if d := w.broken(); d != "" {
				t.Fatalf("history %d: %s after\n%s", i, d, w)
			}
		}
	}
}

// walk makes up a history as it goes: two processes with ideas of their own about cap, whose calls are delayed, repeated
// and now and then wrong. Memory answers, and what it answers goes into the calls that follow.
type walk struct {
	draw   func(n int) int // 0 … n-1
	memory *remote.Memory
	bucket string
	now    int64
	rate   remote.Call // Tokens, Period, TTL
	procs  [2]walkProcess
	torn   bool // a record was removed by hand
	began  time.Time

	events  []event
	answers []answer
	states  []stored
}

type walkProcess struct {
	id              string
	cap             int64
	seq, ack, pot   int64
	epoch, overflow int64
}

// event is a call, or else something that happens to the key.
type event struct {
	call  remote.Call
	flush bool
	hdel  string
}

func newWalk(bucket string, draw func(int) int) *walk {
	w := &walk{draw: draw, memory: remote.NewMemory(), bucket: bucket, now: scriptStart, began: time.Now()}
	rates := []remote.Call{
		{Tokens: 1, Period: 1e6}, {Tokens: 7, Period: 1e6}, {Tokens: 1000, Period: 1e6}, {Tokens: 3, Period: 7},
		{Tokens: 1, Period: 86400e6}, {Tokens: 0, Period: 1},
	}
	w.rate = pick(w, rates...)
	w.rate.TTL = pick(w, int64(2e6), 1e6, 250e3, 7)
	for i := range w.procs {
		w.procs[i] = walkProcess{id: string(rune('A' + i)), cap: pick(w, int64(10), 2, 4, 100, 1)}
	}
	if w.draw(3) > 0 {
		w.procs[1].cap = w.procs[0].cap
	}
	return w
}

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
	if w.draw(2) > 0 {
		w.now += pick(w, w.rate.TTL, w.rate.TTL/2, w.rate.TTL-1, 1, 137, 100e3, 333_333, 1e6, 5e6, 3600e6,
			-1, -300e3, -1e6, -1e6-1, -3e6, -3600e6)
	}
	p := &w.procs[w.draw(2)]
	switch w.draw(16) {
	case 0, 1, 2:
		w.take(p)
	case 3:
		w.again()
	case 4:
		w.accident(p)
	default:
		w.lease(p)
	}
}

// take is a direct take or a peek.
func (w *walk) take(p *walkProcess) {
	c := w.call(p)
	c.Want = w.upTo(p.cap + 1)
	c.Min = min(c.Want, pick(w, c.Want, 1, 0))
	w.run(c, nil)
}

// lease is a call with a record: renewal, return, settlement of an outage, a late or a foolish one.
func (w *walk) lease(p *walkProcess) {
	p.seq++
	c := w.call(p)
	c.Lease, c.Seq = p.id, p.seq
	c.Ack = pick(w, p.ack, p.ack, p.seq-1, p.seq-1, 0)
	c.Want = w.upTo(p.cap + 1)
	c.Min = min(c.Want, pick(w, 0, 1, c.Want))
	p.pot -= w.upTo(p.pot) // spent
	switch w.draw(8) {
	case 0:
		c.Hold = w.upTo(p.cap)
	case 1:
		c.Hold = p.pot + 1
	case 2, 3:
		c.Ret, p.pot = p.pot, 0
	case 4:
		c.Ret, p.pot = w.upTo(p.cap), 0
	default:
		c.Hold = p.pot
	}
	if w.draw(4) == 0 {
		c.Refund = w.upTo(2 * p.cap)
		c.Deadline = c.Now + pick(w, w.rate.TTL, w.rate.TTL+1, 1, 0)
	}
	if w.draw(4) == 0 {
		c.Debt = w.upTo(3 * p.cap)
		c.Owed = w.upTo(c.Debt)
		c.Seen = pick(w, p.overflow, p.overflow, 0, 1<<40)
		c.Fleet = 1 + int64(w.draw(3))
	}
	w.run(c, p)
}

// call is what all calls have.
func (w *walk) call(p *walkProcess) remote.Call {
	c := w.rate
	c.Bucket, c.Now, c.Cap, c.Fleet = w.bucket, w.now, p.cap, 1
	c.Epoch = pick(w, p.epoch, p.epoch, 0, p.epoch+1)
	if w.draw(8) == 0 {
		c.Deadline = c.Now + pick(w, w.rate.TTL, 1, 0, -1)
	}
	return c
}

// again repeats an earlier call, as a network does.
func (w *walk) again() {
	if len(w.events) == 0 {
		return
	}
	e := w.events[len(w.events)-1-w.draw(len(w.events))]
	if e.call.Cap == 0 {
		return
	}
	e.call.Now = w.now
	w.run(e.call, nil)
}

// accident loses the key, lets it expire, breaks off a run, or changes a limit.
func (w *walk) accident(p *walkProcess) {
	fields := w.memory.Fields(w.bucket)
	switch w.draw(5) {
	case 0:
		w.happen(event{flush: true})
	case 1:
		if fields != nil {
			// The clock of the key is the machine's, that of the calls is not: expire it by hand when its time has come.
			w.now += w.memory.PTTL(w.bucket) * 1000
			w.happen(event{flush: true})
		}
	case 2:
		if _, ok := fields["p"+p.id]; ok {
			w.torn = true
			w.happen(event{hdel: "p" + p.id})
		}
	case 3:
		p.cap = pick(w, int64(10), 2, 4, 100, 1)
	case 4:
		c := w.call(p)
		*pick(w, &c.Cap, &c.Period, &c.Want, &c.TTL, &c.Seen, &c.Epoch) = pick(w, int64(-1), 1<<53)
		w.run(c, nil)
	}
}

func (w *walk) happen(e event) {
	if e.flush {
		w.memory.Del(w.bucket)
		w.torn = false
	} else if e.hdel != "" {
		w.memory.HDel(w.bucket, e.hdel)
	}
	w.events, w.answers = append(w.events, e), append(w.answers, answer{})
	w.states = append(w.states, stored{w.memory.Fields(w.bucket), w.memory.PTTL(w.bucket)})
}

// run executes a call on Memory; its process, if any, may learn the reply.
func (w *walk) run(c remote.Call, p *walkProcess) {
	results := make([]remote.Result, 1)
	w.memory.Run(noContext, time.Second, []remote.Call{c}, results)
	w.happen(event{call: c})
	a := &w.answers[len(w.answers)-1]
	a.reply = results[0].Reply
	if err := results[0].Err; err != nil {
		a.err = err.(*remote.ScriptError).Text //nolint:errorlint,forcetypeassert // anything else is a bug here
		return
	}
	if p != nil && a.reply.Code <= remote.Replay && w.draw(4) > 0 { // else the reply is lost
		p.ack, p.pot = c.Seq, c.Hold+a.reply.Grant
		p.epoch, p.overflow = a.reply.Epoch, a.reply.Overflow
	}
}

// replay plays the history on another engine in one round trip, and compares.
func (w *walk) replay(t *rapid.T, e *engine) {
	pipe := e.client.Pipeline()
	type look struct {
		call   *redis.Cmd
		fields *redis.MapStringStringCmd
		pttl   *redis.Cmd
	}
	looks := make([]look, len(w.events))
	for i, ev := range w.events {
		switch {
		case ev.flush:
			pipe.Del(noContext, w.bucket)
		case ev.hdel != "":
			pipe.HDel(noContext, w.bucket, ev.hdel)
		default:
			looks[i].call = pipe.EvalSha(noContext, lua.TokenBucket.SHA, []string{w.bucket}, callArgs(ev.call)...)
		}
		looks[i].fields, looks[i].pttl = pipe.HGetAll(noContext, w.bucket), pipe.Do(noContext, "PTTL", w.bucket)
	}
	pipe.Del(noContext, w.bucket)
	_, _ = pipe.Exec(noContext) // a refusal is an error too; each command's own is looked at below
	took := time.Since(w.began) // times to live are of real clocks, here and in Memory
	if took > 500*time.Millisecond {
		return // the machine was elsewhere, and keys live for a second at least: this says nothing
	}
	for i, l := range looks {
		if l.call != nil {
			if got := answerOfCmd(t, l.call); got != w.answers[i] {
				t.Fatalf("%s answers\n\t%v, memory\n\t%v\nto the last of\n%s", e.name, got, w.answers[i], w.upToEvent(i))
			}
		}
		if d := differs(w.states[i], storedOf(t, l.fields, l.pttl), 2+took.Milliseconds()); d != "" {
			t.Fatalf("%s holds %s\nafter\n%s", e.name, d, w.upToEvent(i))
		}
	}
}

// broken reports what does not hold of the bucket after the last event, "" if all does.
func (w *walk) broken() string {
	if len(w.states) == 0 {
		return ""
	}
	s, e := w.states[len(w.states)-1], w.events[len(w.events)-1]
	if d := damaged(s); d != "" || s.fields == nil {
		return d
	}
	f := func(name string) float64 { x, _ := strconv.ParseFloat(s.fields[name], 64); return x }
	level, capacity := f("l"), float64(e.call.Cap)
	wrote := s.fields["t"] != "" && w.wrote()
	lowest := -capacity - math.Floor(float64(e.call.Tokens)*1e6/float64(e.call.Period)) // a second of refill below −cap
	if limit := max(capacity-f("o"), lowest); wrote && level > limit+1e-6 {
		return fmt.Sprintf("level %v beside escrow %v, cap %v", level, f("o"), capacity)
	}
	if wrote && level < lowest-1e-6 {
		return fmt.Sprintf("level %v under cap %v", level, capacity)
	}
	var out, want, active, latest float64
	for name, v := range s.fields {
		if name[0] == 'p' {
			r := strings.Split(v, "|")
			n := make([]float64, len(r))
			for i := range r {
				n[i], _ = strconv.ParseFloat(r[i], 64)
			}
			out, want, latest = out+n[2], want+n[3], max(latest, n[4])
			if n[2]+n[3] > 0 {
				active++
			}
			if n[1] > n[2] {
				return "a lease of more than is out: " + v
			}
		}
	}
	switch {
	case w.torn && (out > f("o") || want > f("w")),
		!w.torn && (out != f("o") || want != f("w") || active != f("a")):
		return fmt.Sprintf("out %v, wants %v, active %v in the records, else in %v", out, want, active, s.fields)
	case latest > f("e") || latest > 0 && f("g") == 0:
		return fmt.Sprintf("a lease ends at %.0f, but %v", latest, s.fields)
	case f("s") < 1<<40 || f("s") > 1<<52:
		return "overflow " + s.fields["s"]
	}
	return ""
}

// wrote reports whether the last event was a call that changed the bucket.
func (w *walk) wrote() bool {
	n := len(w.states)
	if w.events[n-1].call.Cap < 1 || w.answers[n-1].err != "" {
		return false
	}
	return n == 1 || differs(w.states[n-2], w.states[n-1], 1<<60) != ""
}

func (w *walk) String() string { return w.upToEvent(len(w.events) - 1) }

// upToEvent prints a history, times from its start.
func (w *walk) upToEvent(last int) string {
	var b strings.Builder
	for i, e := range w.events[:last+1] {
		c := e.call
		switch {
		case e.flush:
			b.WriteString("flush\n")
		case e.hdel != "":
			b.WriteString("hdel " + e.hdel + "\n")
		default:
			c.Bucket = ""
			fmt.Fprintf(&b, "%+dµs %+v\n\t-> %v\n", c.Now-scriptStart, c, w.answers[i])
		}
		names := make([]string, 0, len(w.states[i].fields))
		for name, v := range w.states[i].fields {
			names = append(names, name+"="+v)
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "\t   %v %d ms\n", names, w.states[i].pttl)
	}
	return b.String()
}
