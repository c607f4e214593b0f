package measure

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// all stands for all limits together.
const all = -1

// Report returns what was measured, at the end of a run, which may come before that of the scenario. The caller fills
// in Engine, Seed and Version, and empties Unseed if runs do not repeat. It must be called once, after all else.
func (m *Meter) Report(end time.Duration) *Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fleet.reach(min(max(end, 0), m.length))
	r := &Report{
		Schema: Schema, Scenario: m.scenario, Unseed: fmt.Sprintf("%016x", m.trace),
		Metrics: m.metrics(m.parts.whole, all, end), Phases: []Phase{}, Limits: make(map[string]Metrics),
		Series: m.steps(end), Breakers: m.fleet.strips(), Ledger: m.balance(), Faults: m.spans(end),
		Expectations: []Outcome{},
	}
	for _, p := range m.parts.phases {
		if p.from < end {
			r.Phases = append(r.Phases, Phase{
				Name: p.name, FromS: seconds(p.from), ToS: seconds(m.until(p.window, end)),
				Metrics: m.metrics(p.window, all, end),
			})
		}
	}
	for i := range m.scenario.Limits {
		r.Limits[m.scenario.Limits[i].Name] = m.metrics(m.parts.whole, i, end)
	}
	r.Sometimes = m.happenings(&r.Metrics)
	r.Passed = true
	for i := range m.scenario.Expect {
		o := m.outcome(i, end)
		r.Expectations = append(r.Expectations, o)
		r.Passed = r.Passed && (o.Passed || o.Unseen)
	}
	for _, h := range r.Sometimes {
		r.Passed = r.Passed && (h.Count > 0 || !h.Wanted || h.Unseen)
	}
	if m.live {
		r.Unseed, r.LagMs = "", millis(m.lag)
	}
	return r
}

// until returns where a part really ends.
func (m *Meter) until(w *window, end time.Duration) time.Duration {
	return max(w.from, min(w.to, end, m.length))
}

// metrics returns those of a part and a limit. Metrics of the whole fleet are not known of one limit.
func (m *Meter) metrics(w *window, limit int, end time.Duration) Metrics {
	sum, over, short := &cell{}, 0.0, int64(0)
	var byKey fairness
	starved := longestStarved{}
	for l := range m.keys {
		if limit != all && l != limit {
			continue
		}
		over = max(over, w.over[l])
		byKey.merge(m.keys[l].fairness(w, l))
		starved.process, starved.key = max(starved.process, w.starved[l].process), max(starved.key, w.starved[l].key)
		short += w.shortfall(l)
		for s := w.lo; s < w.hi; s++ {
			sum.merge(m.parts.cells[s][l])
		}
	}
	x := Metrics{
		Offered: sum.offered, Admitted: sum.admitted, Ideal: sum.ideal,
		OverAdmission: over, Shortfall: ratio(short, sum.ideal), DeniedWithin: ratio(sum.denied, sum.within),
		Utilisation: ratio(sum.admitted, sum.ideal), Alone: sum.alone, Jain: jain(sum.shares),
		LeastProcess: least(sum.shares), JainKeys: byKey.jain(), LeastKey: byKey.leastPart(), StarvedProcess: -1,
		StarvedKey: -1,
		DecideP50:  micros(sum.times.quantile(0.5)), DecideP99: micros(sum.times.quantile(0.99)),
		DecideP999: micros(sum.times.quantile(0.999)), DecideMax: -1,
		Waited: ratio(sum.waited, sum.times.n), Recovered: -1,
		RedisCalls: -1, CallsPerToken: -1, Lost: -1, Detect: -1, Heal: -1, Open: -1, BreakerChanges: -1, Probes: -1,
		Keys: -1,
	}
	if sum.times.n > 0 {
		x.DecideMax = micros(sum.times.max)
		x.StarvedProcess, x.StarvedKey = millis(starved.process), millis(starved.key)
	}
	if from := m.recovery.from; from >= w.from && from < w.to {
		x.Recovered = millis(m.recovery.time(limit, m.until(w, end)))
	}
	m.tokens(&x, w, limit)
	if limit == all {
		m.ofFleet(&x, w, end)
	}
	return x
}

// tokens fills in what comes from Stats.
func (m *Meter) tokens(x *Metrics, w *window, limit int) {
	l := &m.ledger
	from, to := 0, len(l.steps)
	if w.from > warmUp(m.scenario) {
		from = m.series.edge(w.from)
	}
	after := l.now
	if w.to != forever {
		to = m.series.edge(w.to)
		after = l.at(to)
	}
	before := l.at(from)
	x.Burnt, x.Duplicated, x.Uncounted, x.Unaccounted = -1, -1, -1, -1
	if !l.known {
		return
	}
	var t tally
	if limit == all {
		t = after.all().minus(before.all())
		if l.seesGrants {
			// What was heard of without having been granted is no answer to what was granted.
			x.Lost = max(0, l.granted(to)-l.granted(from)-t[grants]+after.rest[duplicated]-before.rest[duplicated])
		}
	} else {
		t = after.limits[limit].minus(before.limits[limit])
	}
	x.Burnt, x.Duplicated = t[burnt], t[duplicated]
	if l.checkedCallers {
		x.Uncounted = t[uncounted]
		if limit == all {
			x.Unaccounted = x.Duplicated + x.Uncounted
		}
	}
}

// ofFleet fills in what is of all processes and all limits.
func (m *Meter) ofFleet(x *Metrics, w *window, end time.Duration) {
	f := &m.fleet
	var calls int64
	var changes []int
	x.Open, x.BreakerChanges, x.Probes, x.Keys = 0, 0, 0, -1
	for i := w.lo; i < w.hi; i++ {
		s := &f.segments[i]
		calls += s.calls
		x.Open = max(x.Open, s.open)
		x.Probes = max(x.Probes, s.probes)
		for p, n := range s.changes {
			changes = grow(changes, p)
			changes[p] += n
		}
	}
	for _, n := range changes {
		x.BreakerChanges = max(x.BreakerChanges, n)
	}
	if length := m.until(w, end) - w.from; length > 0 {
		x.RedisCalls = float64(calls) / length.Seconds()
	}
	x.CallsPerToken = ratio(calls, x.Admitted)
	if m.ledger.known {
		x.Keys = 0
		to := len(m.ledger.keys)
		if w.to != forever {
			to = m.series.edge(w.to)
		}
		for _, n := range m.ledger.keys[min(m.series.edge(w.from), to):to] {
			x.Keys = max(x.Keys, n)
		}
	}
	x.Detect, x.Heal = millis(f.detected(w)), millis(f.healed(w))
}

// detected returns the longest time that a fault which began in a part went undetected, −1 if none was detected.
func (f *fleetMeter) detected(w *window) time.Duration {
	most := time.Duration(-1)
	for i := range f.faults {
		if e := &f.faults[i]; e.begun && e.began >= w.from && e.began < w.to {
			most = max(most, e.detect)
		}
	}
	return most
}

// healed returns the longest time that a fault which ended in a part took to heal: −1 if one has not, or none had to.
func (f *fleetMeter) healed(w *window) time.Duration {
	most := time.Duration(-1)
	for i := range f.faults {
		e := &f.faults[i]
		if !e.ended || e.end < w.from || e.end >= w.to || e.covered || !e.worth {
			continue
		}
		if e.heal < 0 {
			return -1
		}
		most = max(most, e.heal-e.end)
	}
	return most
}

// balance returns the ledger at the end.
func (m *Meter) balance() Ledger {
	l := &m.ledger
	t := l.now.all()
	b := Ledger{Granted: t[grants], Spent: t[spent], Returned: t[returned], Burnt: t[burnt], Held: t[held]}
	if l.seesGrants {
		b.Granted = l.granted(len(l.redis))
		b.Lost = b.Granted - t[grants]
	} else {
		b.Lost = -1
	}
	return b
}

// spans returns when the faults were, or would have been.
func (m *Meter) spans(end time.Duration) []FaultSpan {
	all := make([]FaultSpan, 0, len(m.scenario.Faults))
	for i := range m.scenario.Faults {
		f, e := &m.scenario.Faults[i], &m.fleet.faults[i]
		from, to := time.Duration(f.At), faultEnd(m.scenario, f)
		if e.begun {
			from, to = e.began, max(to, e.began)
		}
		if e.ended && scenario.Lasts(f.Kind) {
			to = e.end
		} else if e.ended {
			to = max(to, e.end)
		}
		all = append(all, FaultSpan{
			Text: "at " + f.At.String() + " " + f.String(), FromS: seconds(min(from, end)),
			ToS: seconds(min(to, end)),
		})
	}
	return all
}

// outcome compares an expectation with what was measured.
func (m *Meter) outcome(i int, end time.Duration) Outcome {
	e := &m.scenario.Expect[i]
	limit := max(0, slices.IndexFunc(m.scenario.Limits, func(l scenario.Limit) bool { return l.Name == e.Limit }))
	if readers[e.Metric].fleet {
		limit = all
	}
	x := m.metrics(m.parts.expect[i], limit, end)
	o := Outcome{Text: e.String(), Value: x.Value(e.Metric)}
	allowed := 0.0
	if m.live && scenario.UnitOf(e.Metric) == scenario.Seconds {
		allowed = m.lag.Seconds()
	}
	switch {
	case o.Value < 0: // an unknown value does not meet it
		o.Unseen = m.live && e.Metric == "lost"
	case e.Op == "<=":
		o.Passed = o.Value <= e.Value+allowed+grain(x.Value(e.Metric))
	case e.Op == ">=":
		o.Passed = o.Value >= e.Value-grain(x.Value(e.Metric))
	}
	return o
}

// grain is the rounding error of a float.
func grain(x float64) float64 { return 1e-9 * math.Abs(x) }

// happenings returns how often each of scenario.Happenings happened from the warm-up on. Those of Stats that count
// tokens do so here.
func (m *Meter) happenings(x *Metrics) []Happening {
	before := m.ledger.at(m.series.edge(m.parts.whole.from))
	stats := m.ledger.now.all().minus(before.all())
	var waited int64
	for s := m.parts.whole.lo; s < m.parts.whole.hi; s++ {
		for _, c := range m.parts.cells[s] {
			waited += c.waited
		}
	}
	own := map[string]int64{
		"breaker_open": m.fleet.opened, "breaker_closed": m.fleet.closed, "probe_failed": m.fleet.failed,
		"lease_lost": max(0, x.Lost), "lease_burnt": stats[burnt], "state_loss": stats[stateLosses],
		"late_call":   stats[lateCalls],
		"stale_reply": stats[staleReplies], "waited": waited, "refused": m.reasons[tiered.Limited],
		"shared":      m.reasons[tiered.Shared],
		"share_spent": m.reasons[tiered.ShareSpent], "opened": m.reasons[tiered.Open],
		"unavailable": m.reasons[tiered.Unavailable],
		"canceled":    m.reasons[tiered.Canceled], "debt_settled": stats[settled], "evicted_locally": stats[evictions],
		"process_died": m.fleet.died, "process_joined": int64(max(0, m.fleet.joins-m.scenario.Fleet.N)),
	}
	names := slices.Clone(scenario.Happenings)
	var others []string
	for name := range m.happened {
		if !slices.Contains(names, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	all := make([]Happening, 0, len(names))
	for _, name := range append(names, others...) {
		count := own[name]
		if !strings.HasPrefix(name, "process_") { // those who only count them count the first processes too
			count = max(count, m.happened[name])
		}
		all = append(all, Happening{
			Name: name, Count: count, Wanted: slices.Contains(m.scenario.Sometimes, name),
			Unseen: m.live && count == 0 && (name == "lease_lost" || name == "late_call"),
		})
	}
	return all
}

// steps returns the series up to the end.
func (m *Meter) steps(end time.Duration) Series {
	sr, l := &m.series, &m.ledger
	sr.close(sr.now - 1)
	sr.close(sr.now)
	n := min(len(sr.steps), int((max(end, 1)+sr.length-1)/sr.length))
	s := Series{StepS: seconds(sr.length)}
	for i := range n {
		// the last may be cut short
		length := max(1, min(sr.length, min(end, m.length)-sr.length*time.Duration(i))).Seconds()
		per := func(tokens int64) float64 { return rounded(float64(tokens) / length) }
		x := &sr.steps[i]
		s.Offered = append(s.Offered, per(x.offered))
		s.Admitted = append(s.Admitted, per(x.admitted))
		s.Ideal = append(s.Ideal, per(x.ideal))
		s.Limit = append(s.Limit, rounded(x.limit))
		s.Alone = append(s.Alone, per(x.alone))
		s.Calls = append(s.Calls, per(x.calls))
		s.MaxUs = append(s.MaxUs, rounded(micros(x.longest)))
		s.Open = append(s.Open, rounded(x.open))
		s.Jain = append(s.Jain, rounded(x.jain))
		b := l.at(i + 1)
		t := b.all()
		s.Granted = append(s.Granted, t[grants])
		s.Spent = append(s.Spent, t[spent])
		s.Returned = append(s.Returned, t[returned])
		s.Burnt = append(s.Burnt, t[burnt])
		s.Held = append(s.Held, t[held])
	}
	return s
}

// rounded rounds to four digits after the point. A picture shows no more, and a report is half as long.
func rounded(x float64) float64 { return math.Round(x*1e4) / 1e4 }
