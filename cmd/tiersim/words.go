package main

import (
	"fmt"
	"path/filepath"
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
		Use: "faults", Short: "What can go wrong in a scenario: what may follow `at TIME`", Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return a.table(func(row func(...string)) error {
				for _, k := range scenario.Kinds {
					var takes []string
					if k.Lasts {
						takes = append(takes, "[for=]")
					}
					for _, p := range k.Takes {
						p += "="
						if !slices.Contains(k.Needs, strings.TrimSuffix(p, "=")) {
							p = "[" + p + "]"
						}
						takes = append(takes, p)
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
		Use: "metrics", Short: "What a scenario can expect and sweeps show: what may follow `expect`, and `sometimes`", Args: noArguments,
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
		Short: "Say what is wrong with a scenario or a file of policies (.yaml, .yml), or how it reads in full",
		Args:  arguments(1, 1), Example: "  tiersim check mine.sim\n  tiersim check policies.yaml",
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if ext := filepath.Ext(args[0]); ext == ".yaml" || ext == ".yml" {
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
