package remote_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// TestWindowBound lets processes that keep to the protocol lease, spend, cancel, put back, return and crash over a network that
// loses, delays (by more than a window), repeats and reorders, beside direct takes and steps back of the server's clock.
// Whatever happens, no window holds more than its limit: of a fixed window each aligned one, of a sliding one every interval of
// its length. Of several token buckets, what is admitted fits into an ideal bucket of each limit.
func TestWindowBound(t *testing.T) {
	fleets := 1500
	if testing.Short() {
		fleets = 400
	}
	for _, a := range []remote.Algorithm{remote.FixedWindow, remote.SlidingWindow, remote.TokenBuckets} {
		t.Run(fmt.Sprint("algorithm ", a), func(t *testing.T) {
			admitted, refunded := int64(0), int64(0)
			for i := range fleets {
				f := newWindowFleet(a, rand.New(rand.NewPCG(uint64(i), 5)))
				if f.run() != "" {
					f = newWindowFleet(a, rand.New(rand.NewPCG(uint64(i), 5))) // once more, and tell
					f.tell = true
					t.Fatalf("fleet %d (%+v): %s after\n%s", i, f.call(), f.run(), f.log)
				}
				admitted, refunded = admitted+f.admitted, refunded+f.refunded
			}
			if perFleet := float64(admitted) / float64(fleets); perFleet < 5 || refunded < int64(fleets)/50 {
				t.Errorf("%.1f tokens admitted per fleet, %d refunded: this tests nothing", perFleet, refunded)
			}
		})
	}
}

type windowFleet struct {
	algorithm remote.Algorithm
	r         *rand.Rand
	memory    *remote.Memory
	limit     remote.Call
	now       int64 // real time, µs
	offset    int64 // of the server's clock
	newest    int64 // that the bucket has seen
	names     int

	processes          []*windowProcess
	requests, replies  []windowMessage
	list               []*admission
	admitted, refunded int64
	ideal              []float64 // levels, of token buckets
	idealAt            int64
	tell               bool
	log                string
}

// admission is tokens that were admitted together, and where they may go back to.
type admission struct {
	at, window int64 // real time; of the server's clock
	n          int64 // that were not given back
	gen        int64
	stamp      remote.Reply
}

type windowProcess struct {
	id       string
	seq, ack int64
	pot, ret int64
	gen      int64 // rises when something leaves
	deadline int64 // of the pot, real time
	inFlight int64 // seq, 0 none
	sentAt   int64
	last     remote.Reply // accepted
	taken    []*admission
	refund   *admission
}

type windowMessage struct {
	to     *windowProcess
	call   remote.Call
	reply  remote.Reply
	refund *admission
	n      int64
}

func newWindowFleet(a remote.Algorithm, r *rand.Rand) *windowFleet {
	f := &windowFleet{algorithm: a, r: r, memory: remote.NewMemory()}
	f.limit = remote.Call{
		Algorithm: a, Bucket: "b", Cap: []int64{2, 3, 5, 10}[r.IntN(4)], Period: 4e6, TTL: 2e6, Fleet: 1,
	}
	switch a {
	case remote.FixedWindow:
		f.limit.Phase = r.Int64N(f.limit.Period)
	case remote.SlidingWindow:
		f.limit.Period, f.limit.Span = 1e6, 5 // 4 s
		if r.IntN(2) == 0 {
			f.limit.Also = []remote.Limit{{Cap: f.limit.Cap + 2, Period: 3e6, Span: 4}} // 9 s
		}
	case remote.TokenBuckets:
		f.limit.Period, f.limit.Tokens = 1e6, 1
		f.limit.Also = []remote.Limit{{Cap: f.limit.Cap + 2, Period: 10e6, Tokens: 7}}
		for _, l := range limitsOf(f.limit) {
			f.ideal = append(f.ideal, float64(l.Cap))
		}
	}
	for range 1 + r.IntN(3) {
		f.processes = append(f.processes, f.newProcess())
	}
	return f
}

func (f *windowFleet) newProcess() *windowProcess {
	f.names++
	return &windowProcess{id: fmt.Sprint(f.names)}
}

func (f *windowFleet) server() int64     { return scriptStart + f.now + f.offset }
func (f *windowFleet) call() remote.Call { return f.limit }

func (f *windowFleet) run() string {
	for range 80 {
		f.step()
		if d := f.broken(); d != "" {
			return d
		}
	}
	return ""
}

func (f *windowFleet) step() {
	p := f.processes[f.r.IntN(len(f.processes))]
	switch f.r.IntN(14) {
	case 0, 1:
		f.now += []int64{1e6, 1e6, 500e3, 333_333, 1_990_000, 10_000, 4e6}[f.r.IntN(7)]
	case 2, 3:
		f.send(p)
	case 4, 5, 6:
		f.execute()
	case 7, 8:
		f.receive()
	case 9, 10:
		f.spend(p)
	case 11:
		c := f.limit
		c.Want, c.Min = 1+f.r.Int64N(f.limit.Cap), 1
		f.admit(nil, f.ask(c).Grant, "direct take")
	case 12:
		f.cancel(p)
	case 13:
		f.upset()
	}
}

// send gives up the call under way and sends the next.
func (f *windowFleet) send(p *windowProcess) {
	if f.now >= p.deadline || f.r.IntN(5) == 0 { // over, or idle: all goes back
		p.ret, p.pot = p.ret+p.pot, 0
	}
	p.seq++
	p.gen++
	c := f.limit
	c.Lease, c.Seq, c.Ack, c.Hold = p.id, p.seq, p.ack, p.pot
	if p.pot == 0 {
		c.Ret = p.ret
	}
	c.Want = f.r.Int64N(f.limit.Cap + 1)
	c.Min = min(c.Want, int64(f.r.IntN(2)))
	c.Deadline = f.server() + f.limit.TTL - int64(f.r.IntN(2))*1_500_000
	m := windowMessage{to: p, call: c}
	if a := p.refund; a != nil { // once, and burnt when it is lost
		m.refund, m.n, p.refund = a, 1, nil
		m.call.Refund, m.call.At, m.call.Epoch = 1, a.stamp.Stamp, a.stamp.Epoch
	}
	p.inFlight, p.sentAt = p.seq, f.now
	f.requests = append(f.requests, m)
	f.logf("%s sends %d: ack %d hold %d ret %d refund %d want %d", p.id, c.Seq, c.Ack, c.Hold, c.Ret, m.call.Refund, c.Want)
}

// execute lets one request reach the server; now and then it stays, to come again.
func (f *windowFleet) execute() {
	if len(f.requests) == 0 {
		return
	}
	i := f.r.IntN(len(f.requests))
	m := f.requests[i]
	if f.r.IntN(4) > 0 {
		f.requests = append(f.requests[:i:i], f.requests[i+1:]...)
	} else {
		f.requests[i].n = 0 // the copy refunds nothing
	}
	m.reply = f.ask(m.call)
	f.logf("%s %d executed: %+v", m.to.id, m.call.Seq, m.reply)
	if m.n > 0 && m.reply.Code <= remote.Denied {
		m.refund.n-- // counted net from now on
		f.charge(-1)
		f.refunded++
	}
	if f.r.IntN(5) > 0 {
		f.replies = append(f.replies, m)
	}
}

func (f *windowFleet) ask(c remote.Call) remote.Reply {
	c.Now = f.server()
	f.memory.StopClock(c.Now)
	var r [1]remote.Result
	f.memory.Run(noContext, time.Second, []remote.Call{c}, r[:])
	if r[0].Err != nil {
		panic(r[0].Err)
	}
	if r[0].Reply.Code != remote.Late {
		f.newest = max(f.newest, c.Now)
	}
	return r[0].Reply
}

// receive lets one reply arrive. Only the one to the call under way is accepted.
func (f *windowFleet) receive() {
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
	p.deadline = p.sentAt + int64(float64(min(f.limit.TTL, m.reply.TTLLeft))*(1-leaseDrift))
	p.ack, p.ret, p.inFlight, p.last = m.call.Seq, p.ret-m.call.Ret, 0, m.reply
	f.logf("%s accepts %d: pot %d until %v", p.id, m.call.Seq, p.pot, time.Duration(p.deadline)*time.Microsecond)
}

func (f *windowFleet) spend(p *windowProcess) {
	if f.now < p.deadline && p.pot > 0 {
		n := 1 + f.r.Int64N(p.pot)
		p.pot -= n
		f.admit(p, n, p.id)
	}
}

// cancel gives one admitted token back: to the pot if nothing has left since, else with the next call.
func (f *windowFleet) cancel(p *windowProcess) {
	if len(p.taken) == 0 {
		return
	}
	a := p.taken[0]
	p.taken = p.taken[1:]
	if a.gen == p.gen && f.now < p.deadline {
		a.n--
		p.pot++
		f.charge(-1)
		f.logf("%s puts one back", p.id)
	} else if p.refund == nil {
		p.refund = a
	}
}

// upset crashes a process, sets the clock back, or loses all requests.
func (f *windowFleet) upset() {
	switch f.r.IntN(6) {
	case 0:
		i := f.r.IntN(len(f.processes))
		f.logf("%s crashes", f.processes[i].id)
		f.processes[i] = f.newProcess()
	case 1:
		if f.names%2 > 0 {
			return
		}
		if f.algorithm != remote.FixedWindow {
			f.offset -= []int64{900e3, 3e6}[f.r.IntN(2)]
		} else {
			f.offset = -900e3 // a fixed window keeps its alignment after a larger one: see its script
		}
		f.logf("the clock is set back: %v", time.Duration(f.offset)*time.Microsecond)
		for _, p := range f.processes { // a copy of a refund beside a step back may count twice: conceded
			p.refund, p.taken = nil, nil
		}
		f.requests = nil
	case 2:
		f.requests = nil
	}
}

func (f *windowFleet) admit(p *windowProcess, n int64, by string) {
	if n == 0 {
		return
	}
	a := &admission{at: f.now, n: n}
	instant := max(f.newest, f.server()) - f.limit.Phase
	a.window = instant / f.limit.Period
	if p != nil {
		a.gen, a.stamp = p.gen, p.last
		p.taken = append(p.taken, a)
	}
	f.list = append(f.list, a)
	f.admitted += n
	f.charge(n)
	f.logf("%s admits %d", by, n)
}

// charge takes n tokens from the ideal buckets.
func (f *windowFleet) charge(n int64) {
	for i := range f.ideal {
		l := limitsOf(f.limit)[i]
		level := min(f.ideal[i]+float64(f.now-f.idealAt)*float64(l.Tokens)/float64(l.Period), float64(l.Cap))
		f.ideal[i] = min(level-float64(n), float64(l.Cap))
	}
	f.idealAt = f.now
}

// broken reports a window that holds more than its limit.
func (f *windowFleet) broken() string {
	if f.algorithm == remote.TokenBuckets {
		for i, level := range f.ideal {
			if level < -1e-6 {
				return fmt.Sprintf("ideal bucket %d would be at %v", i+1, level)
			}
		}
		return ""
	}
	for _, l := range limitsOf(f.limit) {
		total := int64(0)
		for _, a := range f.list {
			live := a.at > f.now-(l.Span-1)*l.Period
			if f.algorithm == remote.FixedWindow {
				live = a.window == f.list[len(f.list)-1].window
			}
			if live {
				total += a.n
			}
		}
		if total > l.Cap {
			return fmt.Sprintf("%d of %d in a window", total, l.Cap)
		}
	}
	return ""
}

func (f *windowFleet) logf(format string, args ...any) {
	if f.tell {
		f.log += fmt.Sprintf("%8v  ", time.Duration(f.now)*time.Microsecond) + fmt.Sprintf(format, args...) + "\n"
	}
}
