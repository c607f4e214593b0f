package measure

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// sentences writes what the faults of some runs cost, a line for each, for readers who do not know our metrics. A run
// without a fault has none. Each line begins with the fail mode, and also with the name if two runs have the same.
func (t *text) sentences(names []string, all []*Report) {
	runs := map[string]int{} // by fail modes
	for _, r := range all {
		runs[r.failModes()]++
	}
	for i, r := range all {
		if len(r.Faults) == 0 {
			continue
		}
		about := r.failModes()
		if runs[about] > 1 {
			about = clean(names[i]) + ", " + about
		}
		t.line("%s: %s%s, %s", about, r.refused(), r.tooMany(), r.normalAgain())
	}
}

// failModes returns the fail modes of all policies: "fail-local", or "fail-local and fail-open".
func (r *Report) failModes() string {
	fleet, modes := "local", []string{}
	if r.Scenario != nil {
		fleet = cmp.Or(r.Scenario.Fleet.Mode, fleet)
		for _, l := range r.Scenario.Limits {
			modes = append(modes, "fail-"+clean(cmp.Or(r.FailModes[l.Name], fleet)))
		}
	}
	slices.Sort(modes)
	return cmp.Or(strings.Join(slices.Compact(modes), " and "), "fail-"+clean(fleet))
}

// refused says whether users who keep to their limit were refused. Where a limit is exceeded, any limiter refuses some
// of all requests. So denied_within is about a user only where the ideal admits all that is asked for. If no limit is
// like that, shortfall says how much less was admitted.
func (r *Report) refused() string {
	worst := -1.0
	for _, m := range r.Limits {
		if m.Offered > 0 && m.Ideal == m.Offered {
			worst = max(worst, m.DeniedWithin)
		}
	}
	// a part is told to a tenth of a percent
	percent := func(part float64) string { return digits(max(math.Round(part*1000), 1)/10) + " % of " }
	switch {
	case worst == 0:
		return "nobody within the limit refused, "
	case worst > 0:
		return percent(worst) + "the requests within the limit refused, "
	case r.Metrics.Shortfall == 0:
		return "nothing refused that the limit allows, "
	case r.Metrics.Shortfall > 0:
		return percent(r.Metrics.Shortfall) + "what the limit allows refused, "
	}
	return ""
}

// tooMany says how far the limit was exceeded. Less than a token is what times are rounded to.
func (r *Report) tooMany() string {
	switch n := math.Round(r.Metrics.OverAdmission); {
	case n < 1:
		return "no token too many"
	case n == 1:
		return "1 token too many"
	default:
		return fmt.Sprintf("%.0f tokens too many", n)
	}
}

// normalAgain says how long after the last fault as much was admitted as without one.
func (r *Report) normalAgain() string {
	switch s := r.Metrics.Recovered; {
	case s > 0:
		return "normal again after " + digits(s) + " s"
	case s == 0:
		return "normal again at once"
	case !slices.ContainsFunc(r.Phases, func(p Phase) bool { return p.Name == "after" }):
		return "the fault lasts to the end"
	}
	return "not normal again before the end"
}
