package sim

import (
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Phase is what was measured in a part of a run. A request counts where it was made.
type Phase struct {
	Name     string
	From, To time.Duration

	Offered  int64   // tokens of the hot key asked for
	Admitted int64   // of these
	Limit    int64   // what one ideal bucket would have admitted of these
	Over     float64 // by how much any interval within the phase exceeded burst + rate·t, 0 for not at all

	Within int64 // requests of the cold keys that an ideal bucket would have admitted
	Denied int64 // of these

	Longest time.Duration // that a decision took
	Calls   float64       // to Redis, per second
	Open    float64       // share of the processes whose breaker was not closed, at the end
}

// window is an interval of which over-admission is known.
type window struct {
	from, to time.Duration
	policer  *ideal.Policer
}

// over reports by how much any interval within the window exceeded burst + rate·t.
func (w *window) over() float64 { return max(w.policer.Worst().Over, 0) }

// meter measures a run. It is told of each request when it is made and when it is decided.
type meter struct {
	base time.Time

	mu     sync.Mutex
	phases []Phase
	spans  []*window // one per phase
	extra  []*window
	hot    *ideal.Bucket
	cold   []*ideal.Bucket
	seen   map[tiered.Reason]int64
	trace  uint64
}

// request is one that is under way.
type request struct {
	process, cold int
	at            time.Duration
	within        bool
}

func newMeter(s *Scenario, base time.Time) *meter {
	m := &meter{
		base: base, seen: make(map[tiered.Reason]int64), hot: newIdeal(s.Hot.Policy.Limit),
		cold: make([]*ideal.Bucket, s.Cold.Keys),
	}
	for i := range m.cold {
		m.cold[i] = newIdeal(s.Cold.Policy.Limit)
	}
	for _, p := range []Phase{
		{Name: "before", From: 0, To: s.From}, {Name: "during", From: s.From, To: s.To}, {Name: "after", From: s.To, To: s.Length},
	} {
		m.phases = append(m.phases, p)
		m.spans = append(m.spans, newWindow(s.Hot.Policy.Limit, p.From, p.To))
	}
	return m
}

func newIdeal(l tiered.Limit) *ideal.Bucket { return ideal.NewBucket(l.Tokens, l.Per, burst(l)) }

func newWindow(l tiered.Limit, from, to time.Duration) *window {
	return &window{from: from, to: to, policer: ideal.NewPolicer(l.Tokens, l.Per, burst(l))}
}

// watch has over-admission of the hot key measured in another window. To be called before the first request.
func (m *meter) watch(l tiered.Limit, from, to time.Duration) *window {
	w := newWindow(l, from, to)
	m.extra = append(m.extra, w)
	return w
}

// phase is the phase of a time; what comes after the end belongs to the last.
func (m *meter) phase(at time.Duration) *Phase {
	for i := range m.phases {
		if p := &m.phases[i]; at < p.To {
			return p
		}
	}
	return &m.phases[len(m.phases)-1]
}

// offer notes a request for one token. cold is the number of its key, -1 for the hot one.
func (m *meter) offer(process, cold int) request {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Read with the mutex held: the yardsticks want times that do not go back.
	return m.offerAt(time.Since(m.base), process, cold)
}

func (m *meter) offerAt(at time.Duration, process, cold int) request {
	r := request{process: process, cold: cold, at: at}
	p := m.phase(at)
	if cold < 0 {
		p.Offered++
		if m.hot.Take(int64(at), 1) {
			p.Limit++
		}
	} else if r.within = m.cold[cold].Take(int64(at), 1); r.within {
		p.Within++
	}
	return r
}

// decided notes what became of a request.
func (m *meter) decided(r request, d tiered.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decidedAt(time.Since(m.base), r, d)
}

func (m *meter) decidedAt(at time.Duration, r request, d tiered.Decision) {
	p := m.phase(r.at)
	p.Longest = max(p.Longest, at-r.at)
	m.seen[d.Reason]++
	// A sum, so that the order of what happens at one instant does not show.
	m.trace += mix(mix(mix(uint64(r.at))^uint64(at)) ^ mix(uint64(r.process)<<32|uint64(uint32(r.cold))) ^ uint64(d.Reason))
	switch {
	case r.cold >= 0:
		if r.within && !d.Allowed {
			p.Denied++
		}
	case d.Allowed:
		p.Admitted++
		for _, w := range m.spans {
			w.admit(at)
		}
		for _, w := range m.extra {
			w.admit(at)
		}
	}
}

func (w *window) admit(at time.Duration) {
	if at >= w.from && at < w.to {
		w.policer.Admit(int64(at), 1)
	}
}

// result reports the phases so far.
func (m *meter) result() []Phase {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.phases {
		m.phases[i].Over = m.spans[i].over()
	}
	return m.phases
}
