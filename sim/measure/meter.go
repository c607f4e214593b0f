package measure

import (
	"slices"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Meter measures a run. Its methods may be called concurrently, with times that do not go back.
// What comes after the report is not measured.
//
// A request costs some hundred nanoseconds. A key that is not at rest takes 620 bytes with one limit
// and one fault, and a second 160 bytes for each part of the run and each limit. A sliding window
// takes 16 bytes for each admission in it, and for each part of the run.
type Meter struct {
	mu sync.Mutex

	scenario *scenario.Scenario
	length   time.Duration
	windows  *windows
	keys     []*keys // by limit
	series   series
	oneKey   bool             // all requests are for one
	happened map[string]int64 // from the warm-up on
	trace    uint64

	processes     []process
	alive, broken int // processes, and those of them whose breaker is not closed
	joins         int // processes that joined
	places        places
	faults        []fault
	on            int           // faults that are on
	now           time.Duration // the latest of a process or a fault

	granted     int64 // tokens by Redis
	heard       int64 // of these by processes
	ungranted   int64 // that processes heard of and Redis did not grant
	unaccounted int64 // with the ungranted ones
}

// happenings of decisions by their reasons
var happenings = map[tiered.Reason]string{
	tiered.Limited: "refused", tiered.Fallback: "fallback", tiered.FallbackSpent: "fallback_spent", tiered.Open: "opened",
	tiered.Unavailable: "unavailable", tiered.Canceled: "canceled",
}

// waitedAfter is longer than any decision that is made in the process takes: what takes longer has
// waited.
const waitedAfter = 100 * time.Microsecond

// New returns a meter for a run of s, with the policies of its limits, or else with policies in
// their place, in the same order. s must be valid and must not change.
func New(s *scenario.Scenario, policies ...tiered.Policy) *Meter {
	m := &Meter{
		scenario: s, length: time.Duration(s.Length), windows: newWindows(s), happened: make(map[string]int64),
		series: newSeries(time.Duration(s.Length)), oneKey: oneKey(s), faults: make([]fault, len(s.Faults)),
	}
	for i := range s.Limits {
		p := s.Limits[i].Policy()
		if i < len(policies) {
			p = policies[i]
		}
		m.keys = append(m.keys, newKeys(&p, s.Begin(), i, len(m.windows.all)))
	}
	return m
}

// Request is one that is under way. It is a value, and costs nothing to keep.
type Request struct {
	at             time.Duration
	process, limit int32
	cost           int64
	key            *key
	within         bool // an ideal limiter of the key admits it
}

// Asked records a request to a process, of at least one token. limit is the index in
// Scenario.Limits. own is the limit of the key, if it has one of its own.
func (m *Meter) Asked(at time.Duration, process, limit int, key string, cost int64, own tiered.Limit) Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	ks := m.keys[limit]
	k := ks.of(key, own, at)
	k.underWay++
	if m.oneKey {
		m.line(k, at)
	}
	r := Request{
		at: at, process: int32(process), limit: int32(limit), cost: cost, key: k, within: k.take(at, cost),
	}

	m.series.at(at).offered += cost
	for _, w := range m.windows.all {
		if !w.has(at) {
			continue
		}
		p := &w.limits[limit]
		p.offered += cost
		if r.within {
			p.ideal += cost
			p.within++
			w.bin(at, limit).ideal += cost
		}
	}
	return r
}

// Decided records the decision about a request.
func (m *Meter) Decided(at time.Duration, r Request, d tiered.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := at - r.at
	r.key.underWay--
	limit := int(r.limit)
	m.trace += stable.Mix(stable.Mix(stable.Mix(uint64(r.at))^uint64(at)) ^ stable.Mix(r.key.id^uint64(r.process)<<32^uint64(r.cost)) ^ uint64(d.Reason))

	alone := d.Allowed && (d.Reason == tiered.Fallback || d.Reason == tiered.Open)
	waited := d.Tier == tiered.Remote || took > waitedAfter
	denied := !d.Allowed && r.within && d.Reason != tiered.Canceled // a caller who left was not refused
	s := m.series.at(r.at)
	s.longest = max(s.longest, took)
	if name := happenings[d.Reason]; name != "" {
		m.count(r.at, name, 1)
	}
	if waited {
		m.count(r.at, "waited", 1)
	}
	for _, w := range m.windows.all {
		if !w.has(r.at) {
			continue
		}
		p := &w.limits[limit]
		p.times.add(took)
		if denied {
			p.denied++
		}
		if d.Allowed {
			p.admitted += r.cost
			w.bin(r.at, limit).admitted += r.cost
		}
		if alone {
			p.alone += r.cost
		}
	}
	if !d.Allowed {
		return
	}
	s.admitted += r.cost
	if alone {
		s.alone += r.cost
	}
	switch p := &m.process(int(r.process)).limits[limit]; {
	case alone:
		p.alone += r.cost
	case d.Reason == tiered.Granted:
		p.granted += r.cost
	}
	m.keys[limit].admit(r.key, m.windows.all, r.at, at, r.cost)
}

// line tells the series, for the steps that have begun by a time, what the limit lets through of the
// only key. Of several keys it says nothing: most of them ask for less than theirs.
func (m *Meter) line(k *key, at time.Duration) {
	for s := &m.series; s.lined <= s.step(at); s.lined++ {
		from := s.length * time.Duration(s.lined)
		s.steps[s.lined].limit = k.allows(from, min(from+s.length, m.length))
	}
}

// oneKey reports whether all requests of a scenario are for one key of one limit.
func oneKey(s *scenario.Scenario) bool {
	return len(s.Limits) == 1 && len(s.Traffic) == 1 && (s.Traffic[0].Keys == 0 || s.Traffic[0].Keys == 1) &&
		!slices.ContainsFunc(s.Faults, func(f scenario.Fault) bool { return f.Kind == "flood" })
}

// Called records that a process sent n calls of the script in one round trip.
func (m *Meter) Called(at time.Duration, process, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32|uint64(uint32(n))) ^ tracesCalls)
	m.series.at(at).calls += int64(n)
	for _, w := range m.windows.all {
		if w.has(at) {
			w.calls += int64(n)
		}
	}
}

// Granted records that Redis granted tokens to a process, whether the process hears of that or not.
func (m *Meter) Granted(at time.Duration, process int, tokens int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32^uint64(tokens)) ^ tracesGrants)
	m.granted += tokens
	m.process(process).redis += tokens
}

// Happened counts one of scenario.Happenings that the meter cannot see: clock_step, late_call,
// script_sent, short_grant, stale_reply.
func (m *Meter) Happened(at time.Duration, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(at, name, 1)
}

func (m *Meter) count(at time.Duration, name string, n int64) {
	if m.windows.whole.has(at) {
		m.happened[name] += n
	}
}

// Step is the length of a step of the series: 100 ms or more.
func (m *Meter) Step() time.Duration { return m.series.length }

// What the trace tells apart.
const (
	tracesCalls  = 0xca11
	tracesGrants = 0x96a2
	tracesPlaces = 0x91ace
)
