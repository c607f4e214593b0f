package main

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// rule says which setting to take.
const rule = "To take (*): of those that miss nothing (fail-open only if no other does), the one with the fewest " +
	"calls per\nrequest; of those with at most 0.05 more, the uppermost, which is the plainest."

// worthwhile is that number of calls.
const worthwhile = 0.05

// headings are of what can be accepted.
var headings = [3]string{"over the limit", "short of it", "calls/s"}

// digits is a figure in as few digits, from four on, as leave it on that side of a bound where it is. −1 is unknown.
func digits(figure, most float64) string {
	if figure < 0 {
		return "-"
	}
	for n := 4; n < 17; n++ {
		v, _ := strconv.ParseFloat(strconv.FormatFloat(figure, 'g', n, 64), 64)
		if (v <= most) == (figure <= most) {
			return plain(v)
		}
	}
	return plain(figure)
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// bound is what is accepted of a figure.
type bound struct {
	most  float64
	unit  string
	scale float64 // what an excess is a part of
}

// newBound parses one with a unit.
func newBound(text, unit string) (b bound, ok bool) {
	number, ok := strings.CutSuffix(text, unit)
	v, err := strconv.ParseFloat(number, 64)
	return bound{v, unit, 100}, ok && err == nil && v >= 0
}

func (b bound) kept(figure float64) bool { return figure >= 0 && figure <= b.most }

// choose compares each figure with what is accepted of it, and takes a setting by the rule, or the nearest one if none is
// kept. Fail-open comes last.
func (w *wish) choose(all []result) (take int, kept bool) {
	least, excess := math.Inf(1), math.Inf(1)
	var some []int // that miss nothing
	for i := range all {
		r, sum := &all[i], 0.0
		for j, v := range r.figures {
			if b := w.bounds[j]; !b.kept(v) {
				r.missed = append(r.missed, headings[j])
				sum += (v - b.most) / b.scale
			}
		}
		if sum < excess {
			take, excess = i, sum
		}
		if r.missed == nil && (r.mode != "open" || some == nil) {
			some, least = append(some, i), min(least, r.perRequest)
		}
	}
	for _, i := range some {
		if all[i].perRequest <= least+worthwhile {
			return i, true
		}
	}
	return take, false
}

// answer says what was asked, has a table of the settings, and says which one to take and why.
func (w *wish) answer(all []result, take int, kept bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d processes; keys: %d; limit of each: %v; demand: %v times the limit, %.4g requests per second; "+
		"faults of %v.\n", w.processes, w.keys, w.limit, w.demand, w.rate, w.outage)
	if w.played < w.keys {
		fmt.Fprintf(&b, "%d of the keys were simulated.\n", w.played)
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\tfail mode\tlease\tProcesses\tstanding shares\t%s\tcalls per request\tmissed\n",
		strings.Join(headings[:], "\t"))
	mark, yes := map[bool]string{true: "*"}, map[bool]string{true: "yes", false: "no"}
	for i, r := range all {
		fmt.Fprintf(t, "%s\tfail-%s\t%s\t%s\t%s", mark[i == take], r.mode, r.lease.name, yes[r.processes], yes[r.standing])
		for j, v := range r.figures {
			fmt.Fprintf(t, "\t%s%s", digits(v, w.bounds[j].most), w.bounds[j].unit)
			if v > 0 {
				fmt.Fprintf(t, " (%s)", r.in[j])
			}
		}
		fmt.Fprintf(t, "\t%s\t%s\n", digits(r.perRequest, 0), cmp.Or(strings.Join(r.missed, ", "), "nothing"))
	}
	fmt.Fprint(t, "\taccepted\t\t\t")
	for _, bound := range w.bounds {
		fmt.Fprintf(t, "\t%s", strings.Replace(plain(bound.most)+bound.unit, "+Inf/s", "any", 1))
	}
	_ = t.Flush()
	fmt.Fprintf(&b, "\n\nThe worst fault is in brackets; calls per request are without a fault.\n%s\n", rule)
	if !kept {
		b.WriteString("NO SETTING KEEPS ALL: the nearest is marked.\n")
	}
	if w.noShares != nil {
		fmt.Fprintf(&b, "Standing shares were not tried: %v.\n", w.noShares)
	} else {
		fmt.Fprintf(&b, "With standing shares a user who always meets one process has %s%% of the limit (docs/standing.md).\n",
			digits(87.5+12.5/float64(w.processes), 0))
	}
	return b.String() + "\n" + w.policy(all[take].setting)
}

// policy is a setting in Go, without Name and Limit.
func (w *wish) policy(s setting) string {
	fields, options := "FailMode: tiered.Fail"+strings.ToUpper(s.mode[:1])+s.mode[1:]+s.lease.code, ""
	if s.standing {
		fields += ", Standing: tiered.StandingOn /* in two deploys: docs/standing.md */"
	}
	if s.processes {
		options = fmt.Sprintf("Processes: %d", w.processes)
	}
	return "policy := tiered.Policy{" + fields + "}\noptions := &tiered.Options{" + options + "}\n"
}
