package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// flags are what several commands have. Each has some of them.
type flags struct {
	seed     uint64
	sets     []string
	policies string
	policy   []string
	json     string
}

func (f *flags) seedFlag(c *cobra.Command) {
	c.Flags().Uint64Var(&f.seed, "seed", 1, "what all that is random depends on: from 1")
}

func (f *flags) setFlag(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.sets, "set", nil, "PATH=VALUE: change the scenario, as in fleet.n=200; may be repeated")
}

func (f *flags) policyFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.policies, "policies", "",
		"FILE: run the policies of this file in place of the limits of their names, and its only one under at_once in place of at_once")
	c.Flags().StringArrayVar(&f.policy, "policy", nil,
		"NAME: run this policy of the file in place of the only limit, or if it is under at_once in place of at_once; may be repeated")
}

func (f *flags) jsonFlag(c *cobra.Command) {
	c.Flags().StringVar(&f.json, "json", "", "write JSON to `FILE`, or - for stdout (sim/report.md says what is in it)")
}

// load reads a scenario and applies the changes of --set.
func (f *flags) load(name string) (*scenario.Scenario, error) {
	s, err := sim.Load(name)
	if err != nil {
		return nil, err
	}
	for _, set := range f.sets {
		path, value, ok := strings.Cut(set, "=")
		if !ok {
			return nil, fmt.Errorf("--set is %q: must be PATH=VALUE", set)
		}
		if err := s.Set(path, value); err != nil {
			return nil, fmt.Errorf("--set %q: %w", set, err)
		}
	}
	return s, s.Validate()
}

// options returns the options of a run of scenarios, with those policies of the file that are to be
// run in them.
func (f *flags) options(all ...*scenario.Scenario) (*sim.Options, error) {
	o := &sim.Options{Seed: f.seed}
	switch {
	case f.seed == 0:
		return nil, errors.New("--seed is 0: must be 1 or more")
	case f.policies == "" && len(f.policy) > 0:
		return nil, fmt.Errorf("--policy is %q: needs --policies", f.policy[0])
	case f.policies == "":
		return o, nil
	}
	file, err := policyfile.Load(f.policies)
	if err != nil {
		return nil, err
	}
	var rates, places []string // names in the file
	for _, p := range file.Policies {
		rates = append(rates, p.Name)
	}
	for _, p := range file.AtOnce {
		places = append(places, p.Name)
	}
	for _, name := range f.policy {
		if !slices.Contains(rates, name) && !slices.Contains(places, name) {
			return nil, fmt.Errorf("%s has no policy named %q", f.policies, name)
		}
	}
	named := func(names []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(f.policy, name) })
	}
	wanted := named(places)
	if len(wanted) == 0 && slices.ContainsFunc(all, func(s *scenario.Scenario) bool { return s.AtOnce.Places > 0 }) {
		wanted = places
	}
	if len(wanted) > 1 {
		return nil, fmt.Errorf("%s has policies %q under at_once: name one of them by --policy", f.policies, wanted)
	}
	for i := range wanted {
		o.AtOnce = &file.AtOnce[slices.Index(places, wanted[i])]
	}
	if wanted = named(rates); len(wanted) == 0 {
		for _, s := range all {
			for _, l := range s.Limits {
				wanted = append(wanted, l.Name)
			}
		}
	}
	for _, p := range file.Policies {
		if !slices.Contains(wanted, p.Name) {
			continue
		}
		if p.Limit == tiered.Unlimited() || p.Limit == tiered.Blocked() { // a run measures how a limit is kept
			return nil, fmt.Errorf("policy %q is %v: must have a limit to be run in a scenario", p.Name, p.Limit)
		}
		o.Policies = append(o.Policies, p)
	}
	if len(o.Policies) == 0 && o.AtOnce == nil {
		return nil, fmt.Errorf("%s has no policy named %q: name one of it by --policy", f.policies, wanted)
	}
	return o, nil
}

// complete completes the name of a scenario. The shell completes files.
func complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return sim.Library(), cobra.ShellCompDirectiveDefault
}

// writable reports before a long run whether the directories of files are there, and that no two
// files are one. "" is no file, and "-" is stdout, which then gets nothing else.
func writable(paths ...string) error {
	taken := map[string]bool{"": true}
	for _, path := range paths {
		if path == "" {
			continue
		}
		file, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(filepath.Dir(file))
		}
		if err != nil {
			return err
		}
		if taken[file] {
			return fmt.Errorf("%q is to be written twice: must be a file of its own", path)
		}
		taken[file] = true
	}
	return nil
}

// write writes a file if its name is not empty: completely or not at all.
func (a *app) write(path string, render func(io.Writer) error) error {
	var b bytes.Buffer
	if path == "" {
		return nil
	}
	if err := render(&b); err != nil {
		return err
	}
	if path == "-" {
		_, err := a.out.Write(b.Bytes())
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
