package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	_ "time/tzdata" // so that a file reads the same on each machine

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// table is a command that prints rows in columns.
func (a *app) table(use, short string, fill func(row func(cells ...string))) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fill(func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) })
			return w.Flush()
		},
	}
}

func (a *app) list() *cobra.Command {
	return a.table("list", "The scenarios that come with the simulator, and what each shows", func(row func(...string)) {
		for _, name := range sim.Library() {
			s := sim.MustLoad(name)
			row(name, s.Name+": "+s.Learn)
		}
	})
}

func (a *app) faults() *cobra.Command {
	const short = "What can go wrong in a scenario: the kinds of faults, and the fields of each"
	return a.table("faults", short, func(row func(...string)) {
		for _, k := range scenario.Kinds {
			var takes []string
			for _, field := range k.Takes {
				if !slices.Contains(k.Needs, field) {
					field = "[" + field + "]"
				}
				takes = append(takes, field)
			}
			row(k.Name, strings.Join(takes, " "), k.What)
		}
	})
}

func (a *app) metrics() *cobra.Command {
	const short = "What a scenario can expect and sweeps show: what may be in `expect`, and in `sometimes`"
	return a.table("metrics", short, func(row func(...string)) {
		for _, m := range scenario.Metrics {
			row(m.Name, m.Unit.String(), m.What)
		}
		row("\nsometimes: " + strings.Join(scenario.Happenings, ", "))
	})
}

// ofPolicies tells a file of policies, YAML or JSON, from a scenario, which has no such fields.
var ofPolicies = regexp.MustCompile(`(?m)^\x{feff}?["']?(?:version|policies|http|grpc)["']?\s*:` +
	`|\A\x{feff}?\s*\{\s*(?s:.*)"(?:version|policies|http|grpc)"\s*:`)

func (a *app) check() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "check NAME|FILE",
		Short: "Say what is wrong with a scenario or a file of policies, or how it reads",
		Args:  cobra.ExactArgs(1), Example: "  tiersim check mine.yaml\n  tiersim check policies.yaml",
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if text, err := os.ReadFile(args[0]); err == nil && ofPolicies.Match(text) {
				if len(f.sets) > 0 { // it changes a scenario
					return fmt.Errorf("--set is %q: must be left out with a file of policies", f.sets[0])
				}
				file, err := policyfile.Load(args[0])
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(a.out, file)
				for _, note := range file.Notes(time.Now()) {
					if err == nil {
						_, err = fmt.Fprintln(a.out, "#", note)
					}
				}
				return err
			}
			s, err := f.load(args[0])
			if err == nil {
				_, err = fmt.Fprint(a.out, s)
			}
			return err
		},
	}
	f.setFlag(c)
	return c
}
