package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// answer says what was asked, has a table of the settings, and says which one to take and why.
func (w *wish) answer() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d processes; keys: %d (%d simulated); limit of each: %v; demand: %v times the limit; faults of %v.\n",
		w.processes, w.keys, w.played, &w.policy, w.demand, w.outage)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	head, last := "\n\tFailMode\tProcesses", "\taccepted\t"
	for i, x := range figures {
		most := strconv.FormatFloat(w.most[i], 'f', -1, 64) + x.unit
		head, last = head+"\t"+x.heading, last+"\t"+strings.Replace(most, "+Inf/s", "any", 1)
	}
	fmt.Fprintln(t, head+"\tcalls per request\tmissed")
	for i := range w.results {
		w.row(t, map[bool]string{true: "*"}[i == w.take], &w.results[i])
	}
	fmt.Fprint(t, last)
	_ = t.Flush()
	fmt.Fprintf(&b, "\n\nThe worst fault is in brackets; calls per request are without a fault.\n%s\n", rule)
	if w.noShares != nil {
		fmt.Fprintf(&b, "Standing shares were not tried: %v.\n", w.noShares)
	}
	fmt.Fprintf(&b, "\npolicy := tiered.Policy{FailMode: tiered.%s}\n", w.results[w.take].code)
	fmt.Fprintf(&b, "options := &tiered.Options{Processes: %d}\n\n%s", w.results[w.take].fleet.Processes*w.processes, w.verdict())
	return b.String()
}

// row writes a line of the table.
func (w *wish) row(t io.Writer, first string, r *result) {
	fmt.Fprintf(t, "%s\t%s\t%d", first, r.code, r.fleet.Processes*w.processes)
	for j, v := range r.figures {
		fmt.Fprint(t, "\t", strconv.FormatFloat(v, 'f', -1, 64), figures[j].unit)
		if v > 0 {
			fmt.Fprintf(t, " (%s)", r.in[j])
		}
	}
	fmt.Fprintf(t, "\t%.4g\t%s\n", r.perRequest, cmp.Or(strings.Join(r.missed, ", "), "nothing"))
}

// answerAll says what to take for each of several policies.
func answerAll(wishes []*wish, others []string) string {
	var b strings.Builder
	w := wishes[0]
	fmt.Fprintf(&b, "%d processes; keys of each policy: %d; demand: %v times the limit; faults of %v.\n\n",
		w.processes, w.keys, w.demand, w.outage)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "policy\tFailMode to take\tProcesses\tover the limit\tshort of it\tcalls/s\tcalls per request\tmissed")
	for _, w := range wishes {
		w.row(t, w.policy.Name, &w.results[w.take])
	}
	_ = t.Flush()
	fmt.Fprintln(&b, "\nThe worst fault is in brackets; calls per request are without a fault. Processes is an option of the Group:"+
		"\nset it if one policy takes it.")
	for _, other := range others {
		fmt.Fprintln(&b, "not tuned:", other)
	}
	fmt.Fprintln(&b)
	for _, w := range wishes {
		fmt.Fprint(&b, w.policy.Name, ": ", w.verdict())
	}
	return b.String()
}

// verdict says in words what the setting to take brings.
func (w *wish) verdict() string {
	r := &w.results[w.take]
	words := []string{"fail-" + cmp.Or(r.fleet.Mode, "local")}
	switch {
	case r.fleet.Size < 0 || !w.leases():
		words = append(words, "no leases")
	case r.fleet.Period > 0:
		words = append(words, "leases of "+r.fleet.Period.String())
	default:
		words = append(words, "leases that follow demand")
	}
	if r.fleet.Standing != "" {
		words = append(words, "standing shares")
	}
	if r.fleet.Processes > 0 {
		words = append(words, fmt.Sprintf("Processes: %d", w.processes))
	}
	var b strings.Builder
	if !w.kept {
		fmt.Fprintf(&b, "NO SETTING KEEPS ALL. The nearest misses %s: ", strings.Join(r.missed, " and "))
	} else {
		b.WriteString("Take ")
	}
	worst := func(j int) string {
		if r.in[j] == "" {
			return ""
		}
		return " (" + r.in[j] + ")"
	}
	fmt.Fprintf(&b, "%s.\n  %.2f calls of Redis per request, where a limiter without leases has 1.\n"+
		"  At worst %.0f tokens over the limit of a key%s, and %.0f %% short of it%s.\n  ",
		strings.Join(words, ", "), r.perRequest, r.figures[0], worst(0), r.figures[1], worst(1))
	if w.fresh {
		b.WriteString("A run is too short for keys to use up what they begin with, so later both are more.\n  ")
	}
	closed := r.fleet.Mode == "closed"
	switch few := r.perRequest < 0.8; {
	case few && !closed:
		b.WriteString("You gain calls, and an outage of Redis is none of yours.\n")
	case few:
		b.WriteString("You gain calls. In an outage of Redis all is refused.\n")
	case !closed:
		b.WriteString("You gain no calls, but an outage of Redis is none of yours.\n")
	default:
		b.WriteString("You gain no calls, and in an outage of Redis all is refused.\n")
	}
	return b.String()
}
