package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a scenario. A run of [Scenario] may be as long as a day; a text may not be long, since people read it.
const (
	maxBytes = 64 << 10  // of text, and of what String returns
	maxJSON  = 512 << 10 // bytes of JSON
	maxLines = 2000      // of text

	maxLimits  = 16
	maxTraffic = 20
	maxFaults  = 200
	maxExpect  = 100
	maxAxes    = 8
	maxValues  = 100    // of an axis
	maxCells   = 10_000 // of a sweep: the product of its axes

	maxName, maxLearn = 100, 300 // characters
)

// Validate reports all that is wrong with s, as [Errors], each with its field's path, or nil. The rules are those of
// [Parse] and [ParseJSON]; besides, faults have to be in the order of their times.
func (s *Scenario) Validate() error {
	c := newChecker(place{})
	c.scenario(s)
	for i := range s.Faults {
		if i > 0 && s.Faults[i].At < s.Faults[i-1].At {
			c.wrong(fmt.Sprintf("faults[%d].at", i), s.Faults[i].At.String(),
				"must not be before the fault that is listed before it, at "+s.Faults[i-1].At.String())
		}
	}
	return c.verdict(s, "bytes of text", place{})
}

// checker checks a scenario against the rules.
type checker struct {
	// Paths of known errors. One error is enough; what follows from it is none.
	bad  map[string]bool
	at   map[string]place // where a path was read
	name func(path string) string
	errs Errors
}

// newChecker returns a checker. end is the place of what is missing.
func newChecker(end place) checker {
	return checker{
		bad: map[string]bool{}, at: map[string]place{"": end},
		name: func(path string) string { return path },
	}
}

// wrong reports an error at the place of a path or, if it is missing, of what it should be in.
func (c *checker) wrong(path, value, rule string) {
	if !c.sound(path) {
		return
	}
	c.bad[path] = true
	at, found := c.at[path]
	for up := path; !found; at, found = c.at[up] {
		up = above(up)
	}
	c.report(at, path, c.name(path), value, rule)
}

func (c *checker) report(at place, path, field, value, rule string) {
	c.errs = append(c.errs, &Error{at.line, at.column, path, says(field, value, rule)})
}

// verdict returns all errors. If there are none, it checks the length of the text of s.
func (c *checker) verdict(s *Scenario, unit string, start place) error {
	if len(c.errs) > 0 {
		return c.errs.sorted()
	}
	return start.atMost("the scenario", len(s.String()), unit, maxBytes)
}

// above is the path of what a path is in.
func above(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

// must is wrong unless ok.
func (c *checker) must(ok bool, path, value, rule string) {
	if !ok {
		c.wrong(path, value, rule)
	}
}

// sound reports whether no error is known of any of these paths, so that others may be compared with them.
func (c *checker) sound(paths ...string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool { return c.bad[p] })
}

func (c *checker) scenario(s *Scenario) {
	c.text("name", s.Name, 1, maxName)
	c.text("learn", s.Learn, 0, maxLearn)
	c.limits(s)
	c.fleet(s)
	for i := range c.count("traffic", len(s.Traffic), 1, maxTraffic) {
		c.traffic(s, fmt.Sprintf("traffic[%d]", i), &s.Traffic[i])
	}
	c.item(find("net"), "net", &s.Net)
	c.run(s)
	for i := range c.count("faults", len(s.Faults), 0, maxFaults) {
		c.fault(s, fmt.Sprintf("faults[%d]", i), &s.Faults[i])
	}
	for i := range c.count("expect", len(s.Expect), 0, maxExpect) {
		c.expect(s, fmt.Sprintf("expect[%d]", i), &s.Expect[i])
	}
	for i := range c.count("sometimes", len(s.Sometimes), 0, len(Happenings)) {
		h, path := s.Sometimes[i], fmt.Sprintf("sometimes[%d]", i)
		c.must(slices.Contains(Happenings, h), path, show(h), oneOf(h, Happenings))
		c.must(!slices.Contains(s.Sometimes[:i], h), path, show(h), "must be there once only")
	}
	c.sweep(s)
}

func (c *checker) text(path, text string, least, most int) {
	value := show(text)
	if text == "" {
		value = missing
	}
	c.must(isText(text, least, most), path, value, fmt.Sprintf("must be %d to %d printable characters", least, most))
}

// count checks how many there are, and returns how many of them to check: of too many, none.
func (c *checker) count(path string, n, least, most int) int {
	switch {
	case n == 0 && least > 0:
		c.wrong(path, missing, fmt.Sprintf("must be there, once at least and at most %d times", most))
	case n > most:
		c.wrong(path, fmt.Sprintf("there %d times", n), fmt.Sprintf("must be there at most %d times", most))
		return 0
	}
	return n
}

// item checks the fields of a statement.
func (c *checker) item(st *statement, path string, item any) {
	what, takes, needs, known := st.takes(item)
	if !known {
		w := st.words[len(st.words)-1].path
		name := member(item, w).String()
		c.wrong(join(path, w), given(name), oneOf(name, kindNames(st.kinds)))
	}
	for i := range st.fields {
		f := &st.fields[i]
		v, at := f.get(item), join(path, f.name)
		if r, ok := v.(rate); ok { // two fields
			c.half(at, join(path, "tokens"), &tokensSpec, r.tokens)
			c.half(at, join(path, "per"), &periodSpec, r.per)
			continue
		}
		switch {
		case isZero(v):
			if slices.Contains(needs, f.name) {
				c.wrong(at, missing, "must be "+f.span)
			}
		case known && !slices.Contains(takes, f.name):
			c.wrong(at, show(f.format(v)), takesOnly(what, "does not take it, it takes", takes))
		default:
			if rule := f.broken(v); rule != "" {
				c.wrong(at, show(f.format(v)), rule)
			}
		}
	}
}

// half checks one half of a rate. The other may be given, or the whole refused already.
func (c *checker) half(whole, path string, sp *spec, v any) {
	value := show(sp.format(v))
	if isZero(v) {
		value = missing
	}
	if rule := sp.broken(v); rule != "" && c.sound(whole) {
		c.wrong(path, value, rule)
	}
}

func (c *checker) limits(s *Scenario) {
	for i := range c.count("limits", len(s.Limits), 1, maxLimits) {
		l, path := &s.Limits[i], fmt.Sprintf("limits[%d].", i)
		c.must(isName(l.Name), path+"name", given(l.Name), "must be "+nameSpec.span)
		c.item(find("limit"), path[:len(path)-1], l)
		first := slices.IndexFunc(s.Limits, func(o Limit) bool { return o.Name == l.Name })
		c.must(first == i, path+"name", show(l.Name),
			fmt.Sprintf("must be another name than that of limit %d", first+1))
	}
}

// limitNames is nil when there is something wrong with them.
func (c *checker) limitNames(s *Scenario) (all []string) {
	if !c.sound("limits") {
		return nil
	}
	return names(s.Limits, func(l Limit) string { return l.Name })
}

// known checks the name of a limit that another statement refers to.
func (c *checker) known(s *Scenario, path, name string) {
	if limits := c.limitNames(s); len(limits) > 0 && name != "" {
		c.must(slices.Contains(limits, name), path, show(name),
			"must be a limit: "+strings.Join(names(limits, show), ", ")+meant(name, limits))
	}
}

func (c *checker) fleet(s *Scenario) {
	f := &s.Fleet
	c.item(find("fleet"), "fleet", f)
	budget := cmp.Or(f.Budget, defaultBudget)
	if f.Timeout != 0 && c.sound("fleet.budget") {
		c.must(f.Timeout >= budget, "fleet.timeout", f.Timeout.String(), "must not be below the budget, "+
			budget.String())
	}
	if !c.sound("limits") {
		return
	}
	for i := range s.Limits {
		l, path := &s.Limits[i], fmt.Sprintf("limits[%d].", i)
		if !c.sound(path+"rate", path+"tokens", path+"burst") {
			continue
		}
		quarter := (cmp.Or(l.Burst, l.Tokens) + 3) / 4
		c.must(f.Size <= quarter, "fleet.size", strconv.FormatInt(f.Size, 10),
			fmt.Sprintf("must be at most a quarter of the burst of each limit, %d of limit %s", quarter, show(l.Name)))
	}
}

func (c *checker) traffic(s *Scenario, path string, t *Traffic) {
	c.item(find("traffic"), path, t)
	path += "."
	c.known(s, path+"limit", t.Limit)
	c.must(t.Limit != "" || len(s.Limits) <= 1, path+"limit", missing, "must be there when there are several limits")
	if c.sound(path+"every", path+"for") {
		c.must(t.For <= t.Every, path+"for", t.For.String(), "must not be more than every, "+t.Every.String())
	}
	cost := max(t.Cost, 1)
	if t.MaxCost != 0 && c.sound(path+"cost") {
		c.must(t.MaxCost >= cost, path+"maxcost", strconv.FormatInt(t.MaxCost, 10),
			fmt.Sprintf("must not be below the cost, %d", cost))
	}
	if c.sound(path + "keys") {
		c.must(t.KeySkew == 0 || t.Keys > 1, path+"keyskew", formatPlain(t.KeySkew),
			"must be left out where keys is not 2 or more: there is nothing to choose from")
	}
}

// given is the value of a word that must be there.
func given(word string) string {
	if word == "" {
		return missing
	}
	return show(word)
}

// MeasuredFrom is when the run begins to be measured: WarmUp, or what holds when that is left out.
func (s *Scenario) MeasuredFrom() Duration { return cmp.Or(s.WarmUp, defaultWarmUp) }

func (c *checker) run(s *Scenario) {
	value := s.Length.String()
	if s.Length == 0 {
		value = missing
	}
	rule := lengthField.broken(s.Length)
	c.must(rule == "", "run", value, rule)
	c.item(find("run"), "", s)
	if c.sound("run", "warmup") {
		c.must(s.WarmUp < s.Length, "warmup", s.WarmUp.String(), "must be shorter than the run, "+s.Length.String())
		c.must(s.WarmUp != 0 || defaultWarmUp < s.Length, "run", s.Length.String(),
			"must be longer than the warm-up, "+defaultWarmUp.String()+" when left out")
	}
}

func (c *checker) fault(s *Scenario, path string, f *Fault) {
	timed := c.sound(path+".at", "run", "warmup")
	if timed {
		c.must(f.At >= s.MeasuredFrom(), path+".at", f.At.String(),
			"must not be before the warm-up ends, at "+s.MeasuredFrom().String())
		c.must(f.At < s.Length, path+".at", f.At.String(), "must be before the end of the run, at "+s.Length.String())
		timed = c.sound(path + ".at")
	}
	c.item(find("at"), path, f)
	path += "."
	if timed && c.sound(path+"for") {
		rest := s.Length - f.At
		c.must(f.For <= rest, path+"for", f.For.String(), "must end within the run: at most "+rest.String()+
			", or left out")
	}
	if c.sound(path+"procs", "fleet.n") {
		most := s.Fleet.N
		for _, o := range s.Faults {
			most = max(most, o.N)
		}
		c.must(f.Procs.Count <= most, path+"procs", strconv.Itoa(f.Procs.Count),
			fmt.Sprintf("must be at most the whole fleet, %d", most))
	}
}

func (c *checker) expect(s *Scenario, path string, e *Expectation) {
	m, ok := metric(e.Metric)
	c.must(ok, path+".metric", given(e.Metric), oneOf(e.Metric, metricNames()))
	c.must(e.Op == "<=" || e.Op == ">=", path+".op", given(e.Op), "must be <= or >=")
	if ok {
		rule := m.Unit.broken(e.Value)
		c.must(rule == "", path+".value", show(m.Unit.Format(e.Value)), rule)
	}
	c.item(find("expect"), path, e)
	path += "."
	c.known(s, path+"limit", e.Limit)
	if !c.sound("run", "warmup") {
		return
	}
	from, to := s.MeasuredFrom(), s.Length
	if e.After != 0 {
		c.must(e.After >= from && e.After < to, path+"after", e.After.String(),
			fmt.Sprintf("must be within what is measured, %s to %s", from, to))
		from = e.After
	}
	if e.Before != 0 && c.sound(path+"after") {
		c.must(e.Before > from && e.Before <= to, path+"before", e.Before.String(),
			fmt.Sprintf("must be after %s, and not after the end, %s", from, to))
	}
}

func (c *checker) sweep(s *Scenario) {
	n, cells := c.count("sweep", len(s.Sweep), 0, maxAxes), 1
	if n == 0 || !c.sound("limits", "traffic", "faults") { // nothing to set anything of
		return
	}
	try := s.Clone()
	for i, a := range s.Sweep {
		path := fmt.Sprintf("sweep[%d].", i)
		if rule := try.hasPath(a.Path); rule != "" {
			c.wrong(path+"path", given(a.Path), rule)
			continue
		}
		same := func(o Axis) bool { return try.canonicalPath(o.Path) == try.canonicalPath(a.Path) }
		c.must(!slices.ContainsFunc(s.Sweep[:i], same), path+"path", show(a.Path), "must be there once only")
		if n := len(a.Values); n == 0 || n > maxValues {
			c.wrong(path+"values", fmt.Sprintf("of %d values", n), fmt.Sprintf("must be 1 to %d values", maxValues))
			continue
		}
		for j, v := range a.Values {
			at := fmt.Sprintf("%svalues[%d]", path, j)
			if rule := try.set(a.Path, v); rule != "" {
				c.wrong(at, show(v), a.Path+" "+rule)
			}
			c.must(!slices.Contains(a.Values[:j], v), at, show(v), "must be there once only")
		}
		cells = min(cells*len(a.Values), maxCells+1)
	}
	c.must(cells <= maxCells, "sweep", "more than "+strconv.Itoa(maxCells)+" runs",
		"must be at most so many, with one value of each axis in each")
}
