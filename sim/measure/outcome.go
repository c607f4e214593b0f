package measure

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// all stands for all limits together.
const all = -1

// Report returns what was measured, at the end of the run. The caller fills in Seed and Version.
func (m *Meter) Report() *Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach(m.length)
	m.stays(m.length)
	if m.oneKey {
		for _, k := range m.keys[0].all {
			m.line(k, m.length)
		}
	}
	r := &Report{
		Schema: Schema, Scenario: m.scenario, Unseed: fmt.Sprintf("%016x", m.trace), Passed: true,
		Metrics: m.metrics(m.windows.whole, all), Phases: []Phase{}, Limits: make(map[string]Metrics),
		Series: m.series.report(m.length, m.scenario.AtOnce.Places > 0), Faults: []FaultSpan{}, Expectations: []Outcome{}, Sometimes: m.happenings(),
	}
	for _, p := range m.windows.phases {
		r.Phases = append(r.Phases, Phase{
			Name: p.phase, FromS: p.from.Seconds(), ToS: min(p.to, m.length).Seconds(), Metrics: m.metrics(p, all),
		})
	}
	for i := range m.scenario.Limits {
		r.Limits[m.scenario.Limits[i].Name] = m.metrics(m.windows.whole, i)
	}
	for i := range m.scenario.Faults {
		f := &m.scenario.Faults[i]
		from, to := time.Duration(f.At).Seconds(), faultEnd(m.scenario, f).Seconds()
		r.Faults = append(r.Faults, FaultSpan{"at " + f.At.String() + " " + f.String(), from, to})
	}
	for i := range m.scenario.Expect {
		o := m.outcome(i)
		r.Expectations = append(r.Expectations, o)
		r.Passed = r.Passed && o.Passed
	}
	for _, h := range r.Sometimes {
		r.Passed = r.Passed && (h.Count > 0 || !h.Wanted)
	}
	return r
}

// metrics returns those of a part and a limit. Metrics of the whole fleet are not known of one
// limit.
func (m *Meter) metrics(w *window, limit int) Metrics {
	to := min(w.to, m.length)
	sum, missing := &part{}, int64(0)
	for l := range w.limits {
		if limit == all || l == limit {
			sum.merge(&w.limits[l])
			missing += short(w.limits[l].bins)
		}
	}
	x := Metrics{
		Offered: sum.offered, Admitted: sum.admitted, Ideal: sum.ideal,
		OverAdmission: sum.over, Shortfall: ratio(missing, sum.ideal), DeniedWithin: ratio(sum.denied, sum.within),
		Utilisation: ratio(sum.admitted, sum.ideal), Alone: sum.alone,
		DecideP99: seconds(sum.times.quantile(0.99)), DecideMax: -1,
		RedisCalls: -1, Unaccounted: -1, AtOnce: -1, Full: -1, Detect: -1, Heal: -1, Recovered: seconds(m.recovered(limit, to)),
	}
	if sum.times.n > 0 {
		x.DecideMax = seconds(sum.times.max)
	}
	if limit != all {
		return x
	}
	x.RedisCalls = float64(w.calls) / (to - w.from).Seconds()
	x.Unaccounted = m.unaccounted
	if m.scenario.AtOnce.Places > 0 {
		x.AtOnce, x.Full = float64(w.running), ratio(w.full, w.needed)
	}
	detect, heal := m.reaction(w)
	x.Detect, x.Heal = seconds(detect), seconds(heal)
	return x
}

// recovered returns how long after the last fault a limit was normal again, within a part that ends
// at to.
func (m *Meter) recovered(limit int, to time.Duration) time.Duration {
	phases := m.windows.phases
	if len(phases) == 0 || phases[len(phases)-1].phase != "after" || to <= m.windows.lastFault {
		return -1
	}
	after := phases[len(phases)-1]
	bins := make([]bin, (to-after.from)/binLength)
	for l := range after.limits {
		for i, b := range after.limits[l].bins {
			if i < len(bins) && (limit == all || l == limit) {
				bins[i].admitted += b.admitted
				bins[i].ideal += b.ideal
			}
		}
	}
	return recovered(bins)
}

// outcome compares an expectation with what was measured.
func (m *Meter) outcome(i int) Outcome {
	e := &m.scenario.Expect[i]
	limit := max(0, slices.IndexFunc(m.scenario.Limits, func(l scenario.Limit) bool { return l.Name == e.Limit }))
	if ofFleet(e.Metric) {
		limit = all
	}
	x := m.metrics(m.windows.expect[i], limit)
	o := Outcome{Text: e.String(), Value: x.Value(e.Metric)}
	grain := 1e-9 * math.Abs(o.Value) // the rounding error of a float
	switch {
	case o.Value < 0: // an unknown value does not meet it
	case e.Op == "<=":
		o.Passed = o.Value <= e.Value+grain
	case e.Op == ">=":
		o.Passed = o.Value >= e.Value-grain
	}
	return o
}

// seconds returns d in seconds, −1 if it is negative.
func seconds(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Seconds()
}

// ratio returns part by whole, −1 if whole is 0.
func ratio(part, whole int64) float64 {
	if whole == 0 {
		return -1
	}
	return float64(part) / float64(whole)
}

// happenings returns how often each of scenario.Happenings happened from the warm-up on, and of
// lease_lost in the run. Those of Stats that count tokens do so here.
func (m *Meter) happenings() (list []Happening) {
	m.happened["lease_lost"] = m.lost()
	m.happened["process_joined"] = int64(max(0, m.joins-m.scenario.Fleet.N))
	for _, name := range scenario.Happenings {
		list = append(list, Happening{name, m.happened[name], slices.Contains(m.scenario.Sometimes, name)})
	}
	return list
}
