package measure

import (
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Meter measures a run. Its methods may be called concurrently.
//
// A request costs some hundred nanoseconds (see BenchmarkRequest). Memory goes by keys that were asked for and
// whose bucket is not full again, or who was refused within the last minute, about 550 bytes for each with one
// fault (so a million of them are half a gigabyte), by processes, some hundred bytes for each, and by seconds, 8
// bytes for each part of the run and each limit.
type Meter struct {
	mu sync.Mutex

	scenario   *scenario.Scenario
	length     time.Duration
	parts      *parts
	keys       []*keys        // by limit
	starvation [][]starvation // by limit and process
	series     series
	fleet      fleetMeter
	ledger     ledger
	recovery   recovery

	asked, decided time.Duration // the latest

	reasons  [reasonsEnd]int64 // decisions of the measured part by reason
	happened map[string]int64  // happenings that others reported
	trace    uint64
	live     bool          // see Live
	lag      time.Duration // of the machine
}

// reasonsEnd is beyond the last tiered.Reason that has a counter of its own.
const reasonsEnd = tiered.Canceled + 1

// waitedAfter is longer than any decision takes that is made in the process.
const waitedAfter = 100 * time.Microsecond

// New returns a meter for a run of s. s must be valid and must not change.
func New(s *scenario.Scenario) *Meter {
	m := &Meter{scenario: s, length: time.Duration(s.Length), parts: newParts(s), happened: make(map[string]int64)}
	m.series = newSeries(m.length)
	m.fleet = newFleetMeter(s, m.parts, &m.series)
	m.ledger = newLedger(s, len(m.series.steps))
	m.recovery = newRecovery(s)
	for i := range s.Limits {
		m.keys = append(m.keys, newKeys(&s.Limits[i], m.parts.lanes))
		m.starvation = append(m.starvation, nil)
	}
	return m
}

// Request is one that is under way. It is a value, and costs nothing to keep.
type Request struct {
	at             time.Duration
	process, limit int32
	segment, step  int32
	cost           int64
	key            *key
	within         bool // an ideal bucket of the key admits it
}

// Asked records a request to a process. limit is the index in Scenario.Limits. A cost that is not positive is not
// measured.
//
// Times of requests must not go back. A time that does counts as the latest before it. So does that of a decision,
// except for how long it took: over-admission is then wrong by at most the rate times how far it went back.
func (m *Meter) Asked(at time.Duration, process, limit int, key string, cost int64) Request {
	if cost <= 0 {
		return Request{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = max(m.asked, at)
	at = m.asked
	segment := m.parts.segment(at)
	step := m.series.step(at)
	ks := m.keys[limit]
	k := ks.of(key, limit, at, step)
	k.underWay++
	if k.step != step {
		k.step = step
		m.series.steps[step].limit += ks.rate
	}
	r := Request{
		at: at, process: int32(process), limit: int32(limit), segment: int32(segment), step: int32(step),
		cost: cost, key: k,
		within: ks.take(k, at, cost),
	}

	c := m.parts.cells[segment][limit]
	c.offered += cost
	c.of(process).demand += cost
	m.series.steps[step].offered += cost
	m.series.share(step, process).demand += cost
	if r.within {
		c.ideal += cost
		c.within++
		m.series.steps[step].ideal += cost
		for _, w := range m.parts.active[segment] {
			w.addShort(at, limit, cost)
		}
		m.recovery.ideal(at, limit, cost)
	}
	return r
}

// Decided records the decision about a request.
func (m *Meter) Decided(at time.Duration, r Request, d tiered.Decision) {
	if r.key == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	took := max(0, at-r.at)
	m.decided = max(m.decided, at, r.at)
	at = m.decided
	r.key.underWay--
	limit, process, step := int(r.limit), int(r.process), int(r.step)
	m.trace += stable.Mix(stable.Mix(stable.Mix(uint64(r.at))^uint64(at)) ^ stable.Mix(r.key.id^uint64(r.process)<<32^uint64(r.cost)) ^ uint64(d.Reason))

	c := m.parts.cells[r.segment][limit]
	c.times.add(took)
	s := &m.series.steps[step]
	s.longest = max(s.longest, took)
	if r.segment > 0 && d.Reason < reasonsEnd {
		m.reasons[d.Reason]++
	}
	if d.Tier == tiered.Remote || took > waitedAfter {
		c.waited++
	}
	admitIn := m.parts.segment(at)
	m.starve(r, at, admitIn, d.Allowed)
	if d.Reason != tiered.Canceled { // who left was not refused
		due, got := int64(0), int64(0)
		if r.within {
			due = r.cost
		}
		if d.Allowed {
			got = r.cost
		}
		m.keys[limit].served(r.key, m.parts.active[r.segment], limit, due, got)
	}
	if !d.Allowed {
		if r.within && d.Reason != tiered.Canceled {
			c.denied++
		}
		return
	}
	c.admitted += r.cost
	c.of(process).admitted += r.cost
	m.series.steps[step].admitted += r.cost
	if s := m.series.recent(step, process); s != nil {
		s.admitted += r.cost
	}
	if d.Reason == tiered.Shared || d.Reason == tiered.Open {
		c.alone += r.cost
		m.series.steps[step].alone += r.cost
	}
	m.ledger.admitted(process, limit, r.cost, d.Reason)
	for _, w := range m.parts.active[r.segment] {
		w.addShort(r.at, limit, -r.cost)
	}
	m.recovery.admitted(r.at, limit, r.cost)
	m.keys[limit].admit(r.key, m.parts.policed[admitIn], limit, at, r.cost)
}

// starve records for how long the process and the key of a request had admitted nothing when it was decided.
func (m *Meter) starve(r Request, at time.Duration, segment int, admitted bool) {
	of := &m.starvation[r.limit]
	*of = grow(*of, int(r.process))
	process := (*of)[r.process].decided(r.at, at, admitted)
	key := r.key.starvation.decided(r.at, at, admitted)
	for _, w := range m.parts.active[segment] {
		w.starvedAt(int(r.limit), process, key, at)
	}
}

// Called records that a process sent n calls of the script in one round trip.
func (m *Meter) Called(at time.Duration, process, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32|uint64(uint32(n))) ^ tracesCalls)
	m.series.steps[m.series.step(at)].calls += int64(n)
	m.fleet.called(at, n)
}

// Granted records that Redis granted tokens to a process, whether the process hears of that or not. An engine that
// cannot see it never calls it. What is lost is then not known.
func (m *Meter) Granted(at time.Duration, process int, tokens int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32^uint64(tokens)) ^ tracesGrants)
	m.ledger.grant(m.series.step(at), process, tokens)
}

// Breaker records a change of a process' breaker: "closed", "open", "probing". A process begins with a closed one.
func (m *Meter) Breaker(at time.Duration, process int, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace += stable.Mix(stable.Mix(uint64(at)) ^ stable.Mix(uint64(process)<<32) ^ stable.Hash(state))
	m.fleet.change(at, process, state)
}

// Joined records a new process. One whose breaker changes before it has joined counts from then on.
func (m *Meter) Joined(at time.Duration, process int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.joined(process)
	m.fleet.join(at, process)
	for _, of := range m.starvation {
		if process < len(of) {
			of[process] = starvation{}
		}
	}
}

// Died records that a process ended, in whichever way. What it held by its last sample is burnt. Another may join in
// its place, with the same number or a new one.
func (m *Meter) Died(at time.Duration, process int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fleet.die(at, process)
	m.ledger.died(m.series.ending(at), process)
}

// Fault records that fault number i of the scenario began or ended. One of a kind that does not last has ended when it
// begins, unless a later end is reported.
func (m *Meter) Fault(at time.Duration, i int, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fleet.fault(at, i, ended)
}

// Happened counts one of scenario.Happenings: those that the meter cannot see (clock_step, script_sent, short_grant),
// and those that Stats may miss, such as a late_call whose reply nobody waited for. Of those that the meter sees too
// the greater count holds. Processes that joined and died it counts alone. Other names come at the end of
// Report.Sometimes.
func (m *Meter) Happened(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.happened[name]++
}

// Sample records a process' Stats, at the end of each step of the series and when the process or the run ends. With
// last, s is complete, no more will come of this process, and it is compared with what callers and Redis saw. A process
// that ends without known Stats gets no last sample, and is compared with nothing.
//
// A sample counts for the step that it ends, up to an eighth of a step late.
func (m *Meter) Sample(at time.Duration, process int, s *tiered.Stats, last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.sample(m.series.ending(at), process, s, last)
}

// Live records, before the report, that this was a run of real processes on a real machine. Nobody sees what Redis
// granted to a process that had gone or given up: an expectation of that does not fail the run. lag is the longest time
// for which the machine held up a process: an expectation of a time allows for so much more.
func (m *Meter) Live(lag time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live, m.lag = true, lag
}

// Step is the length of a step of the series: 100 ms or more.
func (m *Meter) Step() time.Duration { return m.series.length }

// What the trace tells apart.
const (
	tracesCalls  = 0xca11
	tracesGrants = 0x96a2
)
