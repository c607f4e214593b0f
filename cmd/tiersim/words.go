package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func (a *app) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "The scenarios that come with the simulator, and what each shows", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return a.table(func(row func(...string)) error {
				for _, name := range sim.Library() {
					s, err := sim.Load(name)
					if err != nil {
						return err
					}
					row(name, s.Name+": "+s.Learn)
				}
				return nil
			})
		},
	}
}

func (a *app) faults() *cobra.Command {
	return &cobra.Command{
		Use: "faults", Short: "What can go wrong in a scenario: the kinds of faults, and the fields of each",
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return a.table(func(row func(...string)) error {
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
				return nil
			})
		},
	}
}

func (a *app) metrics() *cobra.Command {
	return &cobra.Command{
		Use: "metrics", Short: "What a scenario can expect and sweeps show: what may be in `expect`, and in `sometimes`", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			err := a.table(func(row func(...string)) error {
				for _, m := range scenario.Metrics {
					row(m.Name, m.Unit.String(), m.What)
				}
				return nil
			})
			fmt.Fprintf(a.out, "\nsometimes: %s\n", strings.Join(scenario.Happenings, ", "))
			return err
		},
	}
}

func (a *app) check() *cobra.Command {
	var sets []string
	c := &cobra.Command{
		Use:   "check NAME|FILE",
		Short: "Say what is wrong with a scenario or a file of policies, or how it reads in full",
		Args:  arguments(1, 1), Example: "  tiersim check mine.yaml\n  tiersim check policies.yaml",
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if text, err := os.ReadFile(args[0]); err == nil && ofPolicies.Match(text) {
				return a.checkPolicies(args[0])
			}
			s, err := load(args[0], sets)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.out, s)
			return err
		},
	}
	setFlag(c, &sets)
	return c
}

// ofPolicies tells a file of policies from a scenario, which has no such fields.
var ofPolicies = regexp.MustCompile(`(?m)^(version|policies):`)

// checkPolicies says how a file of policies reads.
func (a *app) checkPolicies(path string) error {
	f, err := policyfile.Load(path)
	if err != nil {
		return err
	}
	for _, p := range f.Policies {
		limits := p.Limit.String()
		for _, l := range p.Also {
			limits += " and " + l.String()
		}
		if p.PerKey != nil {
			limits += ", or by key"
		}
		fmt.Fprintf(a.out, "policy  %s: %s, %v, %v\n", p.Name, limits, p.Algorithm, p.FailMode)
	}
	rule := func(kind, match string, limits []policyfile.Limit) {
		var names []string
		for _, l := range limits {
			names = append(names, l.Policy)
		}
		fmt.Fprintf(a.out, "%-7s %s: %s\n", kind, match, strings.Join(names, ", "))
	}
	for _, route := range f.HTTP {
		rule("http", route.Match, route.Limits)
	}
	for _, m := range f.GRPC {
		rule("grpc", m.Match, m.Limits)
	}
	return nil
}

// table prints rows in columns.
func (a *app) table(fill func(row func(...string)) error) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if err := fill(func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }); err != nil {
		return err
	}
	return w.Flush()
}

// complete completes the name of a scenario. The shell completes files.
func complete(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, name := range sim.Library() {
		if strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveDefault
}
