package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// MeasuredFrom is when the run begins to be measured: WarmUp, or what holds when that is left out.
func (s *Scenario) MeasuredFrom() Duration { return cmp.Or(s.WarmUp, defaultWarmUp) }

// Begin is when the run begins.
func (s *Scenario) Begin() time.Time {
	if s.Start.IsZero() {
		return firstStart
	}
	return s.Start
}

// rules check what the fields of s have to do with each other.
func (r *reader) rules(s *Scenario) {
	r.must(len(s.Limits) > 0, "limits", missing, fmt.Sprintf("must have 1 to %d elements", maxLimits))
	r.must(len(s.Traffic) > 0, "traffic", missing, fmt.Sprintf("must have 1 to %d elements", maxTraffic))
	r.limits(s)
	r.fleet(s)
	for i := range s.Traffic {
		r.traffic(s, element("traffic", i), &s.Traffic[i])
	}
	runs := slices.ContainsFunc(s.Traffic, func(t Traffic) bool { return t.Runs > 0 })
	r.must(!runs || s.AtOnce.Places > 0, "at_once", missing, "must be there, because traffic has runs")
	r.must(runs || s.AtOnce == AtOnce{} || !r.sound("traffic"), "at_once", "there", "must be left out, or traffic must have runs")
	if r.sound("run", "warmup") {
		r.must(s.WarmUp < s.Length, "warmup", s.WarmUp.String(), "must be shorter than the run, "+s.Length.String())
		r.must(s.WarmUp != 0 || defaultWarmUp < s.Length, "run", s.Length.String(),
			"must be longer than the warm-up, "+defaultWarmUp.String()+" when left out")
	}
	for i := range s.Faults {
		r.fault(s, element("faults", i), &s.Faults[i])
	}
	for i := range s.Expect {
		r.window(s, element("expect", i), &s.Expect[i])
	}
	for i, h := range s.Sometimes {
		path := element("sometimes", i)
		r.must(slices.Contains(Happenings, h), path, strictyaml.Quote(h), oneOf(h, Happenings))
		r.must(!slices.Contains(s.Sometimes[:i], h), path, strictyaml.Quote(h), "must be there once only")
	}
	if len(s.Sweep) > 0 && r.sound("limits", "traffic", "faults") { // else there is nothing to set anything of
		r.sweep(s)
	}
}

func (r *reader) limits(s *Scenario) {
	for i, l := range s.Limits {
		first := slices.IndexFunc(s.Limits, func(o Limit) bool { return o.Name == l.Name })
		r.must(first == i, element("limits", i)+".name", strictyaml.Quote(l.Name),
			fmt.Sprintf("must be another name than that of limit %d", first+1))
		path := element("limits", i)
		if !r.sound(path+".name", path+".rate", path+".burst", path+".algorithm") || l.Limit == (tiered.Limit{}) {
			continue
		}
		if err := l.Policy().Validate(); err != nil {
			r.wrong(path+".rate", strictyaml.Quote(l.Limit.String()),
				strings.NewReplacer("tiered: Policy.", "", "\n", "; ").Replace(err.Error()))
		}
	}
}

// known checks the name of a limit that something refers to.
func (r *reader) known(s *Scenario, path, name string) {
	if all := names(s.Limits, func(l Limit) string { return l.Name }); r.sound("limits") && name != "" {
		r.must(slices.Contains(all, name), path, strictyaml.Quote(name),
			"must be a limit: "+strings.Join(all, ", ")+meant(name, all))
	}
}

func (r *reader) fleet(s *Scenario) {
	f, budget := &s.Fleet, cmp.Or(s.Fleet.Budget, defaultBudget)
	if f.Timeout != 0 && r.sound("fleet.budget") {
		r.must(f.Timeout >= budget, "fleet.timeout", f.Timeout.String(), "must not be below the budget, "+
			budget.String())
	}
	for i, l := range s.Limits {
		if path := element("limits", i); r.sound(path+".rate", path+".burst") && l.Limit != (tiered.Limit{}) {
			quarter := (l.Most() + 3) / 4
			r.must(f.Size <= quarter, "fleet.size", strconv.FormatInt(f.Size, 10),
				fmt.Sprintf("must be at most a quarter of the burst of each limit, %d of limit %s", quarter, l.Name))
		}
	}
}

func (r *reader) traffic(s *Scenario, path string, t *Traffic) {
	path += "."
	r.known(s, path+"limit", t.Limit)
	r.must(t.Limit != "" || len(s.Limits) <= 1, path+"limit", missing, "must be there when there are several limits")
	if r.sound(path+"every", path+"for") {
		r.must(t.For <= t.Every, path+"for", t.For.String(), "must not be more than every, "+t.Every.String())
	}
	cost := max(t.Cost, 1)
	if t.MaxCost != 0 && r.sound(path+"cost") {
		r.must(t.MaxCost >= cost, path+"maxcost", strconv.FormatInt(t.MaxCost, 10),
			fmt.Sprintf("must not be below the cost, %d", cost))
	}
	if r.sound(path + "keys") {
		r.must(t.KeySkew == 0 || t.Keys > 1, path+"keyskew", formatPlain(t.KeySkew),
			"must be left out where keys is not 2 or more: there is nothing to choose from")
	}
}

func (r *reader) fault(s *Scenario, path string, f *Fault) {
	path += "."
	r.must(f.Kind != "slow" || s.AtOnce.Places > 0, path+"kind", "slow", "must be another one without at_once: nothing runs")
	if r.sound("run", "warmup", path+"at") {
		r.must(f.At >= s.MeasuredFrom(), path+"at", f.At.String(),
			"must not be before the warm-up ends, at "+s.MeasuredFrom().String())
		r.must(f.At < s.Length, path+"at", f.At.String(), "must be before the end of the run, at "+s.Length.String())
	}
	if rest := s.Length - f.At; r.sound("run", "warmup", path+"at", path+"for") {
		r.must(f.For <= rest, path+"for", f.For.String(), "must end within the run: at most "+rest.String()+
			", or left out")
	}
	if r.sound(path+"procs", "fleet.n") {
		most := s.Fleet.N
		for _, o := range s.Faults {
			most = max(most, o.N)
		}
		r.must(f.Procs.Count <= most, path+"procs", strconv.Itoa(f.Procs.Count),
			fmt.Sprintf("must be at most the whole fleet, %d", most))
	}
}

// window checks the time of an expectation, and its limit.
func (r *reader) window(s *Scenario, path string, e *Expectation) {
	path += "."
	r.known(s, path+"limit", e.Limit)
	if !r.sound("run", "warmup") {
		return
	}
	from, to := s.MeasuredFrom(), s.Length
	if e.After != 0 {
		r.must(e.After >= from && e.After < to, path+"after", e.After.String(),
			fmt.Sprintf("must be within what is measured, %s to %s", from, to))
		from = e.After
	}
	if e.Before != 0 && r.sound(path+"after") {
		r.must(e.Before > from && e.Before <= to, path+"before", e.Before.String(),
			fmt.Sprintf("must be after %s, and not after the end, %s", from, to))
	}
}

func (r *reader) sweep(s *Scenario) {
	cells, try, seen := 1, s.Clone(), map[string]bool{}
	for i, a := range s.Sweep {
		path := element("sweep", i)
		t, rule := try.find(a.Path)
		if rule != "" {
			r.wrong(path, strictyaml.Quote(a.Path), rule)
			continue
		}
		r.must(!seen[t.path], path, strictyaml.Quote(a.Path), "must be there once only")
		seen[t.path] = true
		r.must(len(a.Values) > 0, path, "without values", fmt.Sprintf("must have 1 to %d", maxValues))
		for j, v := range a.Values {
			at := element(path, j)
			rule := t.field.read(t.item, v)
			r.must(rule == "", at, strictyaml.Quote(v), a.Path+" "+rule)
			r.must(!slices.Contains(a.Values[:j], v), at, strictyaml.Quote(v), "must be there once only")
			r.must(len(v) <= maxReply, at, strictyaml.Quote(v), fmt.Sprintf("must be at most %d bytes", maxReply))
		}
		cells = min(cells*max(1, len(a.Values)), maxCells+1)
	}
	r.must(cells <= maxCells, "sweep", "more than "+strconv.Itoa(maxCells)+" runs",
		"must be at most so many, with one value of each axis in each")
}
