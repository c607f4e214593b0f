package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// rehearsal holds the flags of what is run.
type rehearsal struct {
	seed uint64

	policies string // a file of policies; "" runs those of the scenario
	policy   string // the one of them for a scenario with one limit
}

func (e *rehearsal) flags(c *cobra.Command) {
	c.Flags().Uint64Var(&e.seed, "seed", 1, "what all that is random depends on: from 1")
}

// policyFlags are those of a command that runs named scenarios.
func (e *rehearsal) policyFlags(c *cobra.Command) {
	c.Flags().StringVar(&e.policies, "policies", "",
		"FILE: run the policies of this file in place of the limits of their names")
	c.Flags().StringVar(&e.policy, "policy", "", "NAME: run this policy of the file in place of the only limit")
}

// options returns the options of a run of scenarios, which report progress to a bar.
func (e *rehearsal) options(b *bar, all ...*scenario.Scenario) (*sim.Options, error) {
	if e.seed == 0 {
		return nil, errors.New("--seed is 0: must be 1 or more")
	}
	o := &sim.Options{Seed: e.seed, Progress: b.progress}
	return o, e.readPolicies(o, all)
}

// readPolicies reads the policies of the file that are to be run in the scenarios.
func (e *rehearsal) readPolicies(o *sim.Options, all []*scenario.Scenario) error {
	if e.policies == "" {
		if e.policy != "" {
			return fmt.Errorf("--policy is %q: needs --policies", e.policy)
		}
		return nil
	}
	f, err := policyfile.Load(e.policies)
	if err != nil {
		return err
	}
	var names []string
	for _, p := range f.Policies {
		names = append(names, p.Name)
		named := func(s *scenario.Scenario) bool { return slices.Contains(limitsOf(s), p.Name) }
		if p.Name == e.policy || e.policy == "" && slices.ContainsFunc(all, named) {
			o.Policies = append(o.Policies, p)
		}
	}
	switch {
	case len(o.Policies) > 0:
	case e.policy != "":
		return fmt.Errorf("--policy is %q: must be one of the policies of %s, %q", e.policy, e.policies, names)
	default:
		return fmt.Errorf("%s has the policies %q: none is that of a limit of the scenario, so name one by --policy",
			e.policies, names)
	}
	for _, s := range all {
		if limits := limitsOf(s); e.policy != "" && len(limits) > 1 && !slices.Contains(limits, e.policy) {
			return fmt.Errorf("--policy is %q: a scenario has the limits %q, so it must be one of them", e.policy, limits)
		}
	}
	for _, p := range o.Policies {
		if text := p.Limit.String(); text == "unlimited" || text == "blocked" { // a run measures how a limit is kept
			return fmt.Errorf("policy %q is %s: must have a limit to be run in a scenario", p.Name, text)
		}
	}
	return nil
}

func limitsOf(s *scenario.Scenario) (names []string) {
	for _, l := range s.Limits {
		names = append(names, l.Name)
	}
	return names
}

func setFlag(c *cobra.Command, sets *[]string) {
	c.Flags().StringArrayVar(sets, "set", nil, "PATH=VALUE: change the scenario, as in fleet.n=200; may be repeated")
	_ = c.RegisterFlagCompletionFunc("set", completePath)
}

// completePath completes the arguments of --set and --axis for the scenario on the command line.
func completePath(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	if len(args) == 0 {
		return nil, directive
	}
	s, err := sim.Load(args[0])
	if err != nil {
		return nil, directive
	}
	var all []string
	for _, p := range s.Paths() {
		all = append(all, p+"=")
	}
	return all, directive
}

// load reads a scenario and applies the changes of --set.
func load(name string, sets []string) (*scenario.Scenario, error) {
	s, err := sim.Load(name)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		path, value, ok := strings.Cut(set, "=")
		if !ok {
			return nil, fmt.Errorf("--set is %q: must be PATH=VALUE", set)
		}
		if err := s.Set(path, value); err != nil {
			return nil, fmt.Errorf("--set %q: %w", set, err)
		}
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return s, nil
}

func (a *app) run() *cobra.Command {
	var e rehearsal
	var sets []string
	var jsonFile, htmlFile string
	c := &cobra.Command{
		Use: "run NAME|FILE ...", Short: "Run a scenario and report; or several, side by side",
		Args: arguments(1, 0),
		Long: `Run runs a scenario: one of the library (tiersim list), or a file that ends in .yaml.
Several are run at once, and shown side by side. --html then writes a page for each: FILE-NAME.html.`,
		Example: `  tiersim run outage --set fleet.n=50 --set fleet.mode=open --html outage.html
  tiersim run outage outage-open outage-closed
  tiersim run mine.yaml --json -
  tiersim run login --policies policies.yaml --policy per-user`,
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && jsonFile != "" {
				return fmt.Errorf("--json is %q: must be left out with several scenarios", jsonFile)
			}
			pages := pagesOf(htmlFile, args)
			if err := writable(append(pages, jsonFile)...); err != nil {
				return err
			}
			all := make([]*scenario.Scenario, len(args))
			for i, name := range args {
				s, err := load(name, sets)
				if err != nil {
					return err
				}
				all[i] = s
			}
			b := a.bar("running")
			o, err := e.options(b, all...)
			if err != nil {
				return err
			}
			reports, err := sim.RunAll(all, o)
			b.done()
			if err != nil {
				return err
			}
			return a.show(args, reports, jsonFile, pages)
		},
	}
	e.flags(c)
	e.policyFlags(c)
	setFlag(c, &sets)
	jsonFlag(c, &jsonFile)
	c.Flags().StringVar(&htmlFile, "html", "", "write it as one HTML page to `FILE`, or - for stdout")
	return c
}

// pagesOf returns the file of the page of each scenario, or none.
func pagesOf(file string, names []string) []string {
	if file == "" || len(names) == 1 || file == "-" {
		return slices.Repeat([]string{file}, len(names))
	}
	pages := make([]string, len(names))
	for i, name := range names {
		name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		extension := filepath.Ext(file)
		pages[i] = strings.TrimSuffix(file, extension) + "-" + name + extension
	}
	return pages
}

// show prints reports and writes their files.
func (a *app) show(names []string, reports []*measure.Report, jsonFile string, pages []string) error {
	stdout := jsonFile == "-" || pages[0] == "-" // it has a file, and nothing else
	if !stdout {
		var err error
		if len(reports) == 1 {
			err = reports[0].Text(a.out, a.text)
		} else {
			err = measure.SideBySide(a.out, names, reports, a.text)
		}
		if err != nil {
			return err
		}
	}
	for i, r := range reports {
		if err := a.write(jsonFile, r.JSON); err != nil {
			return err
		}
		if err := a.write(pages[i], func(w io.Writer) error { return picture.HTML(w, r) }); err != nil {
			return err
		}
	}
	if pages[0] != "" && !stdout {
		fmt.Fprintf(a.out, "HTML: %s\n", strings.Join(pages, ", "))
	}
	if slices.ContainsFunc(reports, func(r *measure.Report) bool { return !r.Passed }) {
		return errBroken
	}
	return nil
}
