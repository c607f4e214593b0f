package remote_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// TestBound lets processes that keep to the protocol lease, spend, cancel, return and crash over a network that loses,
// delays, repeats and reorders, beside direct takes and steps back of the server's clock. Whatever happens:
//   - the bound: all that is admitted fits into one ideal bucket of the same burst and rate, so that in any interval
//     admitted ≤ burst + rate · length;
//   - the cover: what can be spent from the pots is in escrow;
//   - refunds: no token comes back twice.
func TestBound(t *testing.T) {
	fleets := 6000
	if testing.Short() {
		fleets = 500
	}
	admitted, seeds := int64(0), uint64(2)
	for i := range fleets {
		f := newFleet(rand.New(rand.NewPCG(uint64(i), seeds)))
		if f.run() != "" {
			f = newFleet(rand.New(rand.NewPCG(uint64(i), seeds))) // once more, and tell
			f.tell = true
			t.Fatalf("fleet %d (cap %d): %s after\n%s", i, f.cap, f.run(), f.log)
		}
		admitted += f.admitted
	}
	if perFleet := float64(admitted) / float64(fleets); perFleet < 3 {
		t.Errorf("%.1f tokens admitted per fleet: this tests nothing", perFleet)
	}
}

// leaseDrift is ρ of the protocol: a lease is trusted for so much less than its ttl.
const leaseDrift = 0.01

type fleet struct {
	r      *rand.Rand
	memory *remote.Memory
	cap    int64
	ttl    int64
	now    int64 // real time, µs
	offset int64 // of the server's clock
	keyEnd int64 // ms of the server's clock after which the key is gone
	names  int

	processes []*process
	requests  []message
	replies   []message

	admitted            int64
	cancelled, credited int64   // tokens: refunded by processes, taken by the bucket
	ideal               float64 // level of the ideal bucket
	idealAt             int64
	tell                bool
	log                 string
}

type process struct {
	id       string
	seq, ack int64
	pot, ret int64
	refund   int64
	deadline int64 // of the pot, real time
	inFlight int64 // seq, 0 none
	sentAt   int64
	taken    int64 // admitted tokens that may still be cancelled
}

type message struct {
	to    *process
	call  remote.Call
	reply remote.Reply
}

func newFleet(r *rand.Rand) *fleet {
	f := &fleet{r: r, memory: remote.NewMemory(), cap: []int64{2, 2, 3, 5}[r.IntN(4)], ttl: 2e6}
	f.ideal = float64(f.cap)
	for range 1 + r.IntN(3) {
		f.processes = append(f.processes, f.newProcess())
	}
	return f
}

func (f *fleet) newProcess() *process {
	f.names++
	return &process{id: strconv.Itoa(f.names)}
}

func (f *fleet) server() int64 { return scriptStart + f.now + f.offset }

// run reports what was broken, and stops there.
func (f *fleet) run() string {
	for range 60 {
		f.step()
		if d := f.broken(); d != "" {
			return d
		}
	}
	return ""
}

func (f *fleet) step() {
	p := f.processes[f.r.IntN(len(f.processes))]
	switch f.r.IntN(14) {
	case 0, 1:
		f.now += []int64{1e6, 1e6, 500e3, 333_333, 1_990_000, 10_000}[f.r.IntN(6)]
	case 2, 3:
		f.send(p)
	case 4, 5, 6:
		f.execute()
	case 7, 8:
		f.receive()
	case 9, 10:
		f.spend(p)
	case 11:
		f.take()
	case 12:
		f.cancel(p)
	case 13:
		f.upset()
	}
}

// send gives up the call under way and sends the next.
func (f *fleet) send(p *process) {
	if f.now >= p.deadline {
		p.ret, p.pot = p.ret+p.pot, 0
	} else if f.r.IntN(5) == 0 {
		p.ret, p.pot = p.ret+p.pot, 0 // idle: all goes back
	}
	p.seq++
	c := f.call()
	c.Lease, c.Seq, c.Ack, c.Hold, c.Ret = p.id, p.seq, p.ack, p.pot, p.ret
	c.Want = int64(f.r.IntN(int(f.cap) + 1))
	c.Min = min(c.Want, int64(f.r.IntN(2)))
	c.Deadline = f.server() + f.ttl - int64(f.r.IntN(2))*1_500_000
	c.Refund, p.refund = p.refund, 0 // once, and burnt when it is lost
	p.inFlight, p.sentAt = p.seq, f.now
	f.requests = append(f.requests, message{to: p, call: c})
	f.logf("%s sends %d: ack %d hold %d ret %d refund %d want %d", p.id, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Want)
}

func (f *fleet) call() remote.Call {
	return remote.Call{Bucket: "b", Cap: f.cap, Tokens: 1, Period: 1e6, TTL: f.ttl, Fleet: 1}
}

// execute lets one request reach the server; now and then it stays, to come again.
func (f *fleet) execute() {
	if len(f.requests) == 0 {
		return
	}
	i := f.r.IntN(len(f.requests))
	m := f.requests[i]
	if f.r.IntN(4) > 0 {
		f.requests = append(f.requests[:i:i], f.requests[i+1:]...)
	}
	m.reply = f.ask(m.call)
	f.logf("%s %d executed: %+v", m.to.id, m.call.Seq, m.reply)
	if n := m.call.Refund; n > 0 && m.reply.Code <= remote.Denied {
		f.credited += n
		f.admit(-n, "refund") // now, as in a central bucket that gets the same refunds
	}
	if f.r.IntN(5) > 0 {
		f.replies = append(f.replies, m)
	}
}

func (f *fleet) ask(c remote.Call) remote.Reply {
	c.Now = f.server()
	if c.Now/1000 > f.keyEnd {
		f.memory.Del(c.Bucket)
	}
	var r [1]remote.Result
	before := f.memory.Fields(c.Bucket)
	f.memory.Run(noContext, time.Second, []remote.Call{c}, r[:])
	if r[0].Err != nil {
		panic(r[0].Err)
	}
	if !maps.Equal(before, f.memory.Fields(c.Bucket)) { // written: PEXPIRE counts on the server's clock
		f.keyEnd = c.Now/1000 + f.memory.PTTL(c.Bucket)
	}
	return r[0].Reply
}

// receive lets one reply arrive. Only the one to the call under way is accepted.
func (f *fleet) receive() {
	if len(f.replies) == 0 {
		return
	}
	i := f.r.IntN(len(f.replies))
	m := f.replies[i]
	f.replies = append(f.replies[:i:i], f.replies[i+1:]...)
	p := m.to
	if m.call.Seq != p.inFlight || m.reply.Code > remote.Replay {
		return
	}
	if f.now >= p.deadline {
		p.pot = 0 // it ended while the call was under way
	}
	p.pot += m.reply.Grant
	p.deadline = p.sentAt + int64(float64(min(f.ttl, m.reply.TTLLeft))*(1-leaseDrift))
	p.ack, p.ret, p.inFlight = m.call.Seq, 0, 0
	f.logf("%s accepts %d: pot %d until %v", p.id, m.call.Seq, p.pot, time.Duration(p.deadline)*time.Microsecond)
}

func (f *fleet) spend(p *process) {
	if f.now < p.deadline && p.pot > 0 {
		n := 1 + int64(f.r.IntN(int(p.pot)))
		p.pot -= n
		p.taken += n
		f.admit(n, p.id)
	}
}

// take admits directly.
func (f *fleet) take() {
	c := f.call()
	c.Want = 1 + int64(f.r.IntN(int(f.cap)))
	c.Min = 1
	f.admit(f.ask(c).Grant, "direct take")
}

// cancel gives one admitted token back with the next call.
func (f *fleet) cancel(p *process) {
	if p.taken == 0 || f.offset < 0 { // a refund beside a step back may count twice: conceded
		return
	}
	p.taken--
	p.refund++
	f.cancelled++
}

// upset crashes a process, sets the clock back, or loses a request.
func (f *fleet) upset() {
	switch f.r.IntN(6) {
	case 0:
		i := f.r.IntN(len(f.processes))
		f.logf("%s crashes", f.processes[i].id)
		f.processes[i] = f.newProcess()
	case 1:
		if f.names%2 == 0 { // some fleets see no step, so that refunds are looked at too
			f.offset -= []int64{900e3, 3e6}[f.r.IntN(2)]
			f.logf("the clock is set back: %v", time.Duration(f.offset)*time.Microsecond)
			for _, p := range f.processes {
				p.refund = 0
			}
			f.requests = nil
		}
	case 2:
		f.requests = nil
	default:
	}
}

func (f *fleet) admit(n int64, by string) {
	f.ideal = min(f.ideal+float64(f.now-f.idealAt)/1e6, float64(f.cap)) - float64(n)
	f.ideal = min(f.ideal, float64(f.cap))
	f.idealAt = f.now
	f.admitted += max(n, 0)
	f.logf("%s admits %d, ideal bucket %g", by, n, f.ideal)
}

func (f *fleet) broken() string {
	if f.ideal < -1e-6 {
		return fmt.Sprintf("an ideal bucket would be at %v", f.ideal)
	}
	if f.credited > f.cancelled {
		return fmt.Sprintf("%d tokens refunded of %d cancelled", f.credited, f.cancelled)
	}
	spendable := int64(0)
	for _, p := range f.processes {
		if f.now < p.deadline {
			spendable += p.pot
		}
	}
	if escrow, _ := strconv.ParseInt(f.memory.Fields("b")["o"], 10, 64); spendable > escrow {
		return fmt.Sprintf("%d can be spent, %d are in escrow", spendable, escrow)
	}
	return ""
}

func (f *fleet) logf(format string, args ...any) {
	if !f.tell {
		return
	}
	f.log += fmt.Sprintf("%8v  ", time.Duration(f.now)*time.Microsecond) + fmt.Sprintf(format, args...) + "\n"
}
