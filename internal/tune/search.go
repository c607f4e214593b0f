package tune

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Result is a choice and the worst of what came of it, over faults.
type Result struct {
	Choice
	Over      float64 // tokens
	Shortfall float64 // −1 when nothing could be admitted
	Calls     float64 // of Redis per second, for all keys
	DecideMax float64 // µs
	Denied    float64 // within the limit: measure.Metrics.DeniedWithin

	WorstOver, WorstShortfall, WorstCalls string // in which fault
	price                                 float64
	metrics                               measure.Metrics
	byFault                               map[string]measure.Metrics // of the last round
	// tokens, at most at one time, in the runs of the last round
	held int64
}

// Answer is what came of a search.
type Answer struct {
	Question Question
	Advised  Result
	Last     []Result // of the last round, the best first
	Tried    int      // choices
	Runs     int      // of scenarios
	Broken   []string // what was not kept when Advised was run again with another seed: a sentence each
	Standing Standing // what standing shares would change
}

// rounds of the search: of how many faults, in which part of the outage's length, and how many choices are left
// after it.
var rounds = []struct {
	faults int
	length float64
	left   func(n int) int
}{
	{2, 1. / 3, func(n int) int { return (n + 1) / 2 }},
	{4, 1. / 2, func(int) int { return 6 }},
	{len(faults), 1, func(n int) int { return n }},
}

// Search answers a question. It takes some ten seconds of two processors, less for a smaller Question.Requests, and
// uses all processors there are. progress is told how far it has come; nil tells nobody.
func Search(q Question, progress func(done, of time.Duration)) (*Answer, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	left := q.choices()
	a := &Answer{Question: q, Tried: len(left)}
	for i, round := range rounds {
		names := q.Faults[:min(round.faults, len(q.Faults))]
		length := max(time.Duration(float64(q.Outage)*round.length), 3*time.Second).Round(time.Second)
		from := float64(i) / float64(len(rounds))
		results, err := q.runAll(left, names, length, q.Seed, func(at, of time.Duration) {
			if progress != nil {
				progress(time.Duration(1e9*(from+float64(at)/float64(of)/float64(len(rounds)))), 1e9)
			}
		})
		if err != nil {
			return nil, err
		}
		a.Runs += len(left) * len(names)
		a.Last = best(results, round.left(len(results)))
		left = slices.DeleteFunc(left, func(c Choice) bool {
			return !slices.ContainsFunc(a.Last, func(r Result) bool { return r.Choice == c })
		})
	}
	a.Advised = a.Last[0]
	// A bound that is kept by a hair with one seed may be missed with another.
	reports, err := a.Verify(q.Seed + 1)
	if err != nil {
		return nil, err
	}
	for i, r := range reports {
		for _, o := range r.Expectations {
			if !o.Passed {
				metric, _, _ := strings.Cut(o.Text, " ")
				a.Broken = append(a.Broken, fmt.Sprintf("%s in the fault %s, where it is %s", o.Text, q.Faults[i],
					measure.Figure(o.Value, scenario.UnitOf(metric))))
			}
		}
	}
	a.Standing, err = q.standing(a.Advised.Choice)
	return a, err
}

// Verify runs what was advised again: all faults in full, with another seed, and what is accepted as expectations.
// The reports are in the order of Question.Faults.
func (a *Answer) Verify(seed uint64) ([]*measure.Report, error) {
	var all []*scenario.Scenario
	for _, name := range a.Question.Faults {
		s, err := a.Question.scenario(a.Advised.Choice, name, time.Duration(a.Question.Outage))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return sim.RunAll(all, &sim.Options{Seed: seed})
}

// runAll runs choices in faults and returns the worst of each.
func (q *Question) runAll(
	choices []Choice, names []string, length time.Duration, seed uint64, progress func(at, of time.Duration),
) ([]Result, error) {
	var all []*scenario.Scenario
	for _, c := range choices {
		for _, name := range names {
			s, err := q.scenario(c, name, length)
			if err != nil {
				return nil, fmt.Errorf("tune: %v: %w", c, err)
			}
			all = append(all, s)
		}
	}
	keys, _ := q.scaleDown()
	results := make([]Result, len(choices))
	// Reports are long: few at one time.
	batch := 4 * runtime.GOMAXPROCS(0) * len(names)
	for from := 0; from < len(all); from += batch {
		part := all[from:min(from+batch, len(all))]
		reports, err := sim.RunAll(part, &sim.Options{Seed: seed, Progress: func(at, of time.Duration) {
			done := float64(from) + float64(len(part))*float64(at)/float64(of)
			progress(time.Duration(done*1e6), time.Duration(len(all))*1e6)
		}})
		if err != nil {
			return nil, err
		}
		for i, r := range reports {
			results[(from+i)/len(names)].add(r, names[(from+i)%len(names)], float64(keys), (from+i)%len(names) == 0)
		}
	}
	for i := range results {
		results[i].Choice = choices[i]
		results[i].price = q.score(&results[i])
	}
	return results, nil
}

// add merges a report into a result.
func (r *Result) add(report *measure.Report, fault string, keys float64, first bool) {
	m := report.Metrics
	if first {
		r.Over, r.Shortfall, r.Calls, r.metrics = -1, -1, -1, m
		r.byFault, r.held = map[string]measure.Metrics{}, 0
	}
	r.byFault[fault] = m
	for _, held := range report.Series.Held {
		r.held = max(r.held, held)
	}
	worse := func(v *float64, by float64, where *string) {
		if by > *v {
			*v, *where = by, fault
		}
	}
	worse(&r.Over, m.OverAdmission, &r.WorstOver)
	worse(&r.Shortfall, m.Shortfall, &r.WorstShortfall)
	worse(&r.Calls, m.RedisCalls*keys, &r.WorstCalls)
	r.DecideMax, r.Denied = max(r.DecideMax, m.DecideMax), max(r.Denied, m.DeniedWithin)
	w := &r.metrics
	w.OverAdmission, w.Shortfall, w.RedisCalls, w.DecideMax, w.DeniedWithin = r.Over, r.Shortfall, r.Calls,
		r.DecideMax, r.Denied
	w.DecideP50, w.DecideP99, w.DecideP999 = max(w.DecideP50, m.DecideP50), max(w.DecideP99, m.DecideP99),
		max(w.DecideP999, m.DecideP999)
	w.StarvedProcess, w.StarvedKey = max(w.StarvedProcess, m.StarvedProcess), max(w.StarvedKey, m.StarvedKey)
	w.LeastProcess, w.LeastKey, w.JainKeys = min(w.LeastProcess, m.LeastProcess), min(w.LeastKey, m.LeastKey),
		min(w.JainKeys, m.JainKeys)
	w.Waited, w.CallsPerToken = max(w.Waited, m.Waited), max(w.CallsPerToken, m.CallsPerToken)
	w.Alone, w.Burnt, w.Lost = max(w.Alone, m.Alone), max(w.Burnt, m.Burnt), max(w.Lost, m.Lost)
	w.Detect, w.Heal, w.Recovered = max(w.Detect, m.Detect), max(w.Heal, m.Heal), max(w.Recovered, m.Recovered)
	w.Open, w.BreakerChanges = max(w.Open, m.Open), max(w.BreakerChanges, m.BreakerChanges)
	w.Probes, w.Keys = max(w.Probes, m.Probes), max(w.Keys, m.Keys)
	w.Duplicated, w.Uncounted = max(w.Duplicated, m.Duplicated), max(w.Uncounted, m.Uncounted)
	w.Utilisation, w.Jain = min(w.Utilisation, m.Utilisation), min(w.Jain, m.Jain)
}

// score adds up which part of each of the three bounds a result takes: 0 to 3. What is beyond a bound costs so much
// more that no saving elsewhere pays for it. Fail-open comes after all else that keeps the bounds: in an outage longer
// than the one that was tried it keeps none.
func (q *Question) score(r *Result) float64 {
	sum, kept := 0.0, true
	for _, b := range q.bounds(r) {
		switch part := b.value / max(b.most, b.slack, 1e-3); {
		case b.broken():
			sum += 10 * part
			kept = false
		case b.most > 0:
			sum += part
		}
	}
	if kept && r.mode() == "open" {
		sum += 3
	}
	return sum
}

// bound is something that is accepted, and what a result takes of it.
type bound struct {
	metric      string
	value, most float64
	slack       float64
	worst       string // fault
	free        bool   // nothing is asked of it: less is better all the same
}

func (b *bound) broken() bool { return !b.free && b.value > b.most+b.slack }

func (q *Question) bounds(r *Result) []bound {
	return []bound{
		{"over_admission", max(r.Over, 0), q.Over, slack, r.WorstOver, false},
		{"shortfall", max(r.Shortfall, 0), q.Shortfall, 0, r.WorstShortfall, false},
		{"redis_calls", max(r.Calls, 0), q.maxCalls(), 0, r.WorstCalls, q.Calls == 0},
	}
}

// best returns the best n, and in any case the best of each fail mode. The first is the one to advise: the plainest of
// those that are about as good as the best. all is in the order of plainness.
func best(all []Result, n int) []Result {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b Result) int { return cmp.Compare(a.price, b.price) })
	alike := sorted[0].price*1.05 + 0.05 // a twentieth of what is accepted is not worth a setting of its own
	plainest := all[slices.IndexFunc(all, func(r Result) bool { return r.price <= alike })]
	kept, seen := []Result{plainest}, map[string]bool{plainest.mode(): true}
	for i, r := range sorted {
		if r.Choice != plainest.Choice && (i < n || !seen[r.mode()]) {
			kept = append(kept, r)
			seen[r.mode()] = true
		}
	}
	return kept
}

// Unsatisfied are the bounds that what was advised does not keep, each in a sentence; empty when all are kept.
func (a *Answer) Unsatisfied() (all []string) {
	for i, b := range a.Question.bounds(&a.Advised) {
		if !b.broken() {
			continue
		}
		least := b.value
		for j := range a.Last {
			least = min(least, a.Question.bounds(&a.Last[j])[i].value)
		}
		u := scenario.UnitOf(b.metric)
		text := fmt.Sprintf("%s <= %s is not kept: it is %s in the fault %s", b.metric, measure.Figure(b.most, u),
			measure.Figure(b.value, u), b.worst)
		if least > b.most+b.slack {
			text += fmt.Sprintf("; no choice of the last round comes below %s", measure.Figure(least, u))
		} else {
			text += "; a choice that keeps it breaks another bound by more"
		}
		all = append(all, text)
	}
	return all
}
