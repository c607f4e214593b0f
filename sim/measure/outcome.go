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
// in Seed and Version. It must be called once, after all else.
func (m *Meter) Report(end time.Duration) *Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fleet.reach(min(max(end, 0), m.length))
	r := &Report{
		Schema: Schema, Scenario: m.scenario, Unseed: fmt.Sprintf("%016x", m.trace), Passed: true,
		Metrics: m.metrics(m.windows.whole, all, end), Phases: []Phase{}, Limits: make(map[string]Metrics),
		Series: m.series.report(min(end, m.length)), Faults: m.fleet.spans(end),
		Expectations: []Outcome{}, Sometimes: m.happenings(),
	}
	for _, w := range m.windows.phases {
		if w.from < end {
			r.Phases = append(r.Phases, Phase{
				Name: w.name, FromS: w.from.Seconds(), ToS: m.until(w, end).Seconds(), Metrics: m.metrics(w, all, end),
			})
		}
	}
	for i := range m.scenario.Limits {
		r.Limits[m.scenario.Limits[i].Name] = m.metrics(m.windows.whole, i, end)
	}
	for i := range m.scenario.Expect {
		o := m.outcome(i, end)
		r.Expectations = append(r.Expectations, o)
		r.Passed = r.Passed && o.Passed
	}
	for _, h := range r.Sometimes {
		r.Passed = r.Passed && (h.Count > 0 || !h.Wanted)
	}
	return r
}

// until returns where a part really ends.
func (m *Meter) until(w *window, end time.Duration) time.Duration {
	return max(w.from, min(w.to, end, m.length))
}

// metrics returns those of a part and a limit. Metrics of the whole fleet are not known of one limit.
func (m *Meter) metrics(w *window, limit int, end time.Duration) Metrics {
	sum, short := &part{}, int64(0)
	for l := range w.limits {
		if limit != all && l != limit {
			continue
		}
		sum.merge(&w.limits[l])
		for _, n := range w.limits[l].short {
			short += max(n, 0)
		}
	}
	x := Metrics{
		Offered: sum.offered, Admitted: sum.admitted, Ideal: sum.ideal,
		OverAdmission: sum.over, Shortfall: ratio(short, sum.ideal), DeniedWithin: ratio(sum.denied, sum.within),
		Utilisation: ratio(sum.admitted, sum.ideal), Alone: sum.alone,
		DecideP99: micros(sum.times.quantile(0.99)), DecideMax: -1,
		RedisCalls: -1, Unaccounted: -1, Detect: -1, Heal: -1, Recovered: -1,
	}
	if sum.times.n > 0 {
		x.DecideMax = micros(sum.times.max)
	}
	if from := m.recovery.from; from >= w.from && from < w.to {
		x.Recovered = millis(m.recovery.time(limit, m.until(w, end)))
	}
	if limit != all {
		return x
	}
	if length := m.until(w, end) - w.from; length > 0 {
		x.RedisCalls = float64(w.calls) / length.Seconds()
	}
	if m.ledger.known {
		x.Unaccounted = w.stats[unaccounted]
	}
	x.Detect, x.Heal = millis(m.fleet.detected(w)), millis(m.fleet.healed(w))
	return x
}

// outcome compares an expectation with what was measured.
func (m *Meter) outcome(i int, end time.Duration) Outcome {
	e := &m.scenario.Expect[i]
	limit := max(0, slices.IndexFunc(m.scenario.Limits, func(l scenario.Limit) bool { return l.Name == e.Limit }))
	if ofFleet(e.Metric) {
		limit = all
	}
	x := m.metrics(m.windows.expect[i], limit, end)
	o := Outcome{Text: e.String(), Value: x.Value(e.Metric)}
	switch {
	case o.Value < 0: // an unknown value does not meet it
	case e.Op == "<=":
		o.Passed = o.Value <= e.Value+grain(o.Value)
	case e.Op == ">=":
		o.Passed = o.Value >= e.Value-grain(o.Value)
	}
	return o
}

// grain is the rounding error of a float.
func grain(x float64) float64 { return 1e-9 * math.Abs(x) }

// happenings returns how often each of scenario.Happenings happened from the warm-up on. Those of Stats that count
// tokens do so here.
func (m *Meter) happenings() []Happening {
	stats, waited := &m.windows.whole.stats, int64(0)
	for _, p := range m.windows.whole.limits {
		waited += p.waited
	}
	own := map[string]int64{
		"breaker_open": m.fleet.opened, "breaker_closed": m.fleet.closed, "probe_failed": m.fleet.failed,
		"lease_lost": m.ledger.lost(), "lease_burnt": stats[burnt], "state_loss": stats[stateLosses],
		"late_call": stats[lateCalls], "stale_reply": stats[staleReplies], "waited": waited,
		"refused": m.reasons[tiered.Limited], "shared": m.reasons[tiered.Shared],
		"share_spent": m.reasons[tiered.ShareSpent], "opened": m.reasons[tiered.Open],
		"unavailable": m.reasons[tiered.Unavailable], "canceled": m.reasons[tiered.Canceled],
		"debt_settled": stats[settled], "evicted_locally": stats[evictions],
		"process_died": m.fleet.died, "process_joined": int64(max(0, m.fleet.joins-m.scenario.Fleet.N)),
	}
	names := slices.Clone(scenario.Happenings)
	for name := range m.happened {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names[len(scenario.Happenings):])
	list := make([]Happening, 0, len(names))
	for _, name := range names {
		count := own[name]
		if !strings.HasPrefix(name, "process_") { // the simulator counts the first processes too
			count = max(count, m.happened[name])
		}
		list = append(list, Happening{Name: name, Count: count, Wanted: slices.Contains(m.scenario.Sometimes, name)})
	}
	return list
}
