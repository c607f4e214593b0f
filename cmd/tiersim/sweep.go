package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func (a *app) sweep() *cobra.Command {
	var e rehearsal
	var sets, axes []string
	var jsonFile string
	c := &cobra.Command{
		Use: "sweep NAME|FILE", Short: "Run a scenario with each combination of some values, on all processors",
		Args: arguments(1, 1),
		Long: `Sweep runs a scenario once for each combination of the values of its axes: those that it has itself (its
sweep), or those of --axis in their place. Expectations are of the scenario as it is. The exit status is 1 if that is among the
combinations and breaks one. The others are for comparison.`,
		Example: `  tiersim sweep blackhole
  tiersim sweep overload --axis fleet.size=0,-1,20,100 --axis fleet.period=100ms,250ms,1s`,
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := writable(jsonFile); err != nil {
				return err
			}
			s, err := load(args[0], sets)
			if err != nil {
				return err
			}
			if err := setAxes(s, axes); err != nil {
				return err
			}
			if len(s.Sweep) == 0 {
				return fmt.Errorf("%q has no axis of its own: give one with --axis, as in --axis fleet.size=0,5,20",
					args[0])
			}
			b := a.bar("sweeping")
			o, err := e.options(b, s)
			if err != nil {
				return err
			}
			all, err := sim.Sweep(s, o)
			b.done()
			if err != nil {
				return err
			}
			err = a.write(jsonFile, func(w io.Writer) error { return indented(w, all) })
			if err == nil && jsonFile != "-" {
				err = all.Text(a.out, a.text)
			}
			if err == nil && !all.Passed() {
				return errBroken
			}
			return err
		},
	}
	e.flags(c)
	e.policyFlags(c)
	setFlag(c, &sets)
	jsonFlag(c, &jsonFile)
	c.Flags().StringArrayVar(&axes, "axis", nil,
		"PATH=VALUE,VALUE,…: what to vary in place of the scenario's own axes; may be repeated")
	_ = c.RegisterFlagCompletionFunc("axis", completePath)
	return c
}

// setAxes replaces the axes of a scenario, if axes are given.
func setAxes(s *scenario.Scenario, axes []string) error {
	if len(axes) == 0 {
		return nil
	}
	s.Sweep = nil
	for _, axis := range axes {
		path, values, ok := strings.Cut(axis, "=")
		if !ok || path == "" || values == "" {
			return fmt.Errorf("--axis is %q: must be PATH=VALUE,VALUE,…", axis)
		}
		s.Sweep = append(s.Sweep, scenario.Axis{Path: path, Values: strings.Split(values, ",")})
	}
	return s.Validate()
}

// indented writes v as indented JSON, like reports.
func indented(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
