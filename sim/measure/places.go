package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// places is what runs now.
type places struct {
	of   map[int]map[string]int // by process and key
	all  map[string]int         // by key, in all processes
	keys []int                  // by a number, so many keys of which so many run
	most int                    // of one key
	last time.Duration          // when that changed
}

// Took records that a request got a place of its key, after a time, and runs; or, without a key,
// that it got none.
func (m *Meter) Took(at time.Duration, process, limit int, key string, waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tracePlace(at, process, key, 1)
	asked := at - waited
	s := m.series.at(asked)
	s.longest = max(s.longest, waited)
	if key == "" {
		m.count(asked, "place_refused", 1)
	}
	for _, w := range m.windows.all {
		if !w.has(asked) {
			continue
		}
		w.limits[limit].times.add(waited)
		if w.needed++; key == "" {
			w.full++
		}
	}
	if key != "" && m.process(process).alive {
		m.change(at, process, key, 1)
	}
}

// Ended records that a request with a place ended. Those of a process that died have ended with it.
func (m *Meter) Ended(at time.Duration, process int, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tracePlace(at, process, key, 2)
	if m.places.of[process][key] > 0 {
		m.change(at, process, key, -1)
	}
}

// allEnd ends what runs in a process.
func (m *Meter) allEnd(at time.Duration, process int) {
	for key, n := range m.places.of[process] {
		for range n {
			m.change(at, process, key, -1)
		}
	}
	delete(m.places.of, process)
}

// change adds one to what runs of a key, or takes it away.
func (m *Meter) change(at time.Duration, process int, key string, by int) {
	p := &m.places
	m.stays(at)
	if p.of == nil {
		p.of, p.all = map[int]map[string]int{}, map[string]int{}
	}
	if p.of[process] == nil {
		p.of[process] = map[string]int{}
	}
	n := p.all[key]
	p.keys = grow(p.keys, n+1)
	p.keys[n]--
	p.keys[n+by]++
	p.of[process][key] += by
	if p.all[key] += by; n+by == 0 {
		delete(p.all, key)
	}
	switch {
	case n+by > p.most:
		p.most = n + by
	case n == p.most && p.keys[n] == 0:
		p.most = n + by
	}
	m.stays(at)
}

// stays records that as much ran from the last change to now.
func (m *Meter) stays(at time.Duration) {
	p := &m.places
	for _, w := range m.windows.all {
		if w.from <= at && p.last < w.to {
			w.running = max(w.running, p.most)
		}
	}
	for i := m.series.step(p.last); i <= m.series.step(at); i++ {
		m.series.steps[i].running = max(m.series.steps[i].running, p.most)
	}
	p.last = at
}

func (m *Meter) tracePlace(at time.Duration, process int, key string, what uint64) {
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32|what) ^ stable.Hash(key) ^ tracesPlaces)
}
