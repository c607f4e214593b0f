package main

import (
	"cmp"
	"fmt"
	"go/format"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

// rule says which setting to take.
const rule = "To take (*): of those that miss nothing (fail-open only if no other does), the one with the fewest " +
	"calls per\nrequest; of those with at most 0.05 more, the uppermost, which is the plainest."

// worthwhile is that number of calls.
const worthwhile = 0.05

// headings are of what can be accepted.
var headings = [3]string{"over the limit", "short of it", "calls/s"}

// figure is a number that was measured. −1 is unknown, as null in JSON is.
type figure float64

// text is a figure in as few digits, from four on, as leave it on that side of a bound where it is.
func (f figure) text(most float64) string {
	if f < 0 {
		return "-"
	}
	for digits := 4; digits < 17; digits++ {
		v, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', digits, 64), 64)
		if (v <= most) == (float64(f) <= most) {
			return plain(v)
		}
	}
	return plain(float64(f))
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (f figure) MarshalJSON() ([]byte, error) {
	if f < 0 || math.IsInf(float64(f), 1) {
		return []byte("null"), nil
	}
	return []byte(plain(float64(f))), nil
}

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

func (b bound) kept(f figure) bool { return f >= 0 && float64(f) <= b.most }

// answer is what is printed, and JSON.
type answer struct {
	Schema   int       `json:"schema"`
	Version  string    `json:"version"`
	Seed     uint64    `json:"seed"`
	Accepted [3]figure `json:"accepted"`
	Settings []result  `json:"settings"`
	Kept     bool      `json:"kept"` // by one at least
	Take     int       `json:"take"` // index of the one to take, or of the nearest
	Policy   string    `json:"policy"`
}

// answer compares each figure with what is accepted of it, and chooses by the rule. Fail-open comes last.
func (w *wish) answer(all []result) *answer {
	least, nearest, excess := figure(math.Inf(1)), 0, math.Inf(1)
	var kept []int
	for i := range all {
		r, sum := &all[i], 0.0
		r.Missed = []string{}
		for j, f := range r.figures() {
			if b := w.bounds[j]; !b.kept(*f) {
				r.Missed = append(r.Missed, headings[j])
				sum += (float64(*f) - b.most) / b.scale
			}
		}
		if sum < excess {
			nearest, excess = i, sum
		}
		if len(r.Missed) == 0 && (r.FailMode != "open" || len(kept) == 0) {
			kept, least = append(kept, i), min(least, r.PerRequest)
		}
	}
	for _, i := range kept {
		if all[i].PerRequest <= least+worthwhile {
			nearest = i
			break
		}
	}
	accepted := [3]figure{figure(w.bounds[0].most), figure(w.bounds[1].most), figure(w.bounds[2].most)}
	return &answer{1, sim.Version(), w.seed, accepted, all, len(kept) > 0, nearest, w.policy(all[nearest].setting)}
}

// print writes what was asked, a table of the settings, and which one to take and why.
func (w *wish) print(out io.Writer, a *answer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d processes; keys: %d; limit of each: %v; demand: %v times the limit, ",
		w.processes, w.keys, w.limit, w.demand)
	fmt.Fprintf(&b, "%.4g requests per second; faults of %v.\n", w.rate, w.outage)
	if w.played < w.keys {
		fmt.Fprintf(&b, "%d of the keys were simulated.\n", w.played)
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\tfail mode\tlease\tProcesses\tstanding shares\t%s\tcalls per request\tmissed\n",
		strings.Join(headings[:], "\t"))
	for i, r := range a.Settings {
		set := map[bool]string{true: "yes", false: "no"}
		fmt.Fprintf(t, "%s\tfail-%s\t%s\t%s\t%s", map[bool]string{true: "*"}[i == a.Take], r.FailMode, r.Lease,
			set[r.Processes], set[r.Standing])
		for j, f := range r.figures() {
			fmt.Fprintf(t, "\t%s%s", f.text(w.bounds[j].most), w.bounds[j].unit)
			if *f > 0 {
				fmt.Fprintf(t, " (%s)", r.In[j])
			}
		}
		missed := strings.Join(r.Missed, ", ")
		fmt.Fprintf(t, "\t%s\t%s\n", r.PerRequest.text(0), cmp.Or(missed, "nothing"))
	}
	fmt.Fprint(t, "\taccepted\t\t\t")
	for _, bound := range w.bounds {
		fmt.Fprintf(t, "\t%s", strings.Replace(plain(bound.most)+bound.unit, "+Inf/s", "any", 1))
	}
	_ = t.Flush()
	fmt.Fprintf(&b, "\n\nThe worst fault is in brackets; calls per request are without a fault.\n%s\n", rule)
	if !a.Kept {
		b.WriteString("NO SETTING KEEPS ALL: the nearest is marked.\n")
	}
	if w.noShares != nil {
		fmt.Fprintf(&b, "Standing shares were not tried: %v.\n", w.noShares)
	} else {
		fmt.Fprintf(&b, "With standing shares a user who always meets one process has %s%% of the limit (docs/standing.md).\n",
			figure(87.5+12.5/float64(w.processes)).text(0))
	}
	fmt.Fprintf(&b, "\n%s", a.Policy)
	_, err := io.WriteString(out, b.String())
	return err
}

// policy is a setting in Go, which compiles where packages tiered and time are imported.
func (w *wish) policy(s setting) string {
	standing, processes := "", ""
	if s.Standing {
		standing = "Standing: tiered.StandingOn, // in two deploys: docs/standing.md\n"
	}
	if s.Processes {
		processes = fmt.Sprintf("Processes: %d", w.processes)
	}
	mode := strings.ToUpper(s.FailMode[:1]) + s.FailMode[1:]
	limit := fmt.Sprintf("Per(%d, %d * time.Microsecond)", w.limit.Tokens, w.limit.Per.Microseconds())
	for period, name := range map[time.Duration]string{time.Second: "Second", time.Minute: "Minute", time.Hour: "Hour"} {
		if period == w.limit.Per {
			limit = fmt.Sprintf("Per%s(%d)", name, w.limit.Tokens)
		}
	}
	text := fmt.Sprintf("policy := tiered.Policy{\nName: \"api\",\nLimit: tiered.%s.WithBurst(%d),\n"+
		"FailMode: tiered.Fail%s,\n%s%s}\noptions := &tiered.Options{%s}\n",
		limit, w.limit.Burst, mode, s.lease.code, standing, processes)
	source, _ := format.Source([]byte(text)) // a test compiles all
	return string(source)
}
