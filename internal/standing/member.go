package standing

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TTL is the length of a right to a fraction. Each poll renews it. So the shares outlive an outage
// of Redis by up to a minute, and what a killed process held is lent to others after a little more.
const TTL = time.Minute

// member is what this process knows of its own record in the table.
type member struct {
	id       string // as long as its record lives in the table; "" before the first poll
	seq, ack int64  // of the last poll that was sent, and of the last whose reply was accepted
	epoch    int64  // of the table, as last seen; 0 unknown
	underWay bool   // seq is, and may be accepted
	sent     time.Duration
	closed   bool // nothing may be used any more

	members    int64 // of the table, as last seen
	quarantine bool
}

// Open makes 1<<log2 places for limits of buckets, unless there are some. There must be one for
// each limit of a key. Before it nothing is taken.
func (s *Shares) Open(log2 int) { open(&s.places, log2) }

// OpenWindows is Open for limits by windows.
func (s *Shares) OpenWindows(log2 int) { open(&s.windows, log2) }

func open(p *atomic.Pointer[places], log2 int) {
	if p.Load() == nil {
		p.CompareAndSwap(nil, &places{64 - log2, make([]atomic.Uint64, 1<<log2)})
	}
}

// Begin returns the limits of a key, of which every share is empty at first, from now on. Limits
// that take the place of others must not begin with what the others did not use, so they have a tag
// of their own: see word.
func (s *Shares) Begin(now time.Duration, limits ...Limit) Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tag = s.tag%(1<<tagBits-1) + 1
	all := append(Limits(nil), limits...)
	for i := range all {
		if all[i].tag = s.tag; all[i].window == 0 {
			all[i].since = s.stretch().at(now)
		}
		all[i].place, all[i].others = uint64(i), 1<<bits.Len(uint(len(all)-1))-1
	}
	return all
}

// set makes a fraction this process' own until end.
func (s *Shares) set(now time.Duration, fraction int64, end time.Duration) {
	s.current.Store(s.stretch().next(now, fraction, end))
}

// Poll returns the next poll of the table, or reports false if there is nothing to ask. newID draws
// the id of a new member. The poll before is given up: its reply is not accepted any more.
func (s *Shares) Poll(now time.Duration, newID func() string) (p lua.Poll, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.member
	hold := s.stretch().fraction
	if now >= s.stretch().end {
		hold = 0
	}
	if m.id == "" {
		if m.closed {
			return lua.Poll{}, false
		}
		m.id = newID()
	}
	m.seq++
	m.underWay, m.sent = true, now
	return lua.Poll{
		Member: m.id, Seq: m.seq, Ack: m.ack, Hold: hold, Want: !m.closed,
		TTL: TTL.Microseconds(), Epoch: m.epoch,
	}, true
}

// Accept takes the reply to the poll of number seq of the member id.
func (s *Shares) Accept(now time.Duration, id string, seq int64, r lua.PollReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.member
	if !m.underWay || m.id != id || m.seq != seq || r.Code == lua.PollStale {
		return
	}
	m.underWay = false
	end := m.sent + scale(TTL, lua.Pool-drift)
	if r.Code == lua.PollOver || m.closed {
		s.over(now)
		return
	}
	m.ack, m.epoch, m.members, m.quarantine = seq, r.Epoch, r.Members, r.Flags&lua.Quarantine != 0
	if now < end {
		s.set(now, r.Grant, end)
	}
}

// over ends this process' right. It comes back as another member.
func (s *Shares) over(now time.Duration) {
	s.set(now, 0, now)
	s.member = member{closed: s.member.closed}
}

// Over ends this process' right at once: its clock jumped, so nobody knows how old the right is,
// nor what the nodes' clocks show.
func (s *Shares) Over(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over(now)
	if c := s.clock.Load(); c != nil {
		s.clock.Store(&nodeClock{base: c.base})
	}
}

// Close stops the use of all shares for good. The next poll gives them up.
func (s *Shares) Close(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.member.closed = true
	s.set(now, 0, s.stretch().end)
}

// Clear empties the shares of all buckets, and leaves the right as it is: until now other processes
// may have used the whole limits.
func (s *Shares) Clear(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(s.stretch().emptied(now))
}

// State is what a process knows of its right.
type State struct {
	Fraction   float64       // of all standing shares, 0 … 1
	Left       time.Duration // of the right, ≥ 0
	Members    int64         // processes in the table, as last seen
	Quarantine bool          // the table is new: nobody gets more than it had
}

// State returns what this process knows of its right now.
func (s *Shares) State(now time.Duration) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, m := s.stretch(), &s.member
	st := State{Members: m.members, Quarantine: m.quarantine}
	if now < c.end {
		st.Fraction, st.Left = float64(c.fraction)/lua.Pool, c.end-now
	}
	return st
}
