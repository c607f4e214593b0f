package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func (a *app) run() *cobra.Command {
	var f flags
	var o pictures
	c := &cobra.Command{
		Use: "run NAME|FILE ...", Short: "Run a scenario and report; or several, side by side",
		Args: cobra.MinimumNArgs(1),
		Long: `Run runs a scenario: one of the library (tiersim list), or a file that ends in .yaml.
Several are run at once, and shown side by side.`,
		Example: `  tiersim run outage --set fleet.n=50 --set fleet.mode=open --html outage.html
  tiersim run outage outage-open outage-closed --open
  tiersim run mine.yaml --json -
  tiersim run login --policies policies.yaml --policy per-user`,
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && f.json != "" {
				return fmt.Errorf("--json is %q: must be left out with several scenarios", f.json)
			}
			if err := writable(o.html, o.svg, f.json); err != nil {
				return err
			}
			all := make([]*scenario.Scenario, len(args))
			for i, name := range args {
				s, err := f.load(name)
				if err != nil {
					return err
				}
				all[i] = s
			}
			options, err := f.options(all...)
			if err != nil {
				return err
			}
			progress, done := a.bar("running")
			options.Progress = progress
			reports, err := sim.RunAll(all, options)
			done()
			if err != nil {
				return err
			}
			return a.show(args, reports, f.json, &o)
		},
	}
	f.seedFlag(c)
	f.policyFlags(c)
	f.setFlag(c)
	f.jsonFlag(c)
	o.flags(c)
	return c
}

// show prints reports and writes their files.
func (a *app) show(names []string, reports []*measure.Report, jsonFile string, o *pictures) error {
	if o.quiet = jsonFile == "-"; !o.quiet && !o.stdout() { // it has a file, and nothing else
		if err := measure.Text(a.out, names, reports, a.color); err != nil {
			return err
		}
	}
	failed := false
	for _, r := range reports {
		failed = failed || !r.Passed
		if err := a.write(jsonFile, func(w io.Writer) error { return measure.JSON(w, r) }); err != nil {
			return err
		}
	}
	if err := a.draw(names, reports, o); err != nil {
		return err
	}
	if failed {
		return errBroken
	}
	return nil
}

func (a *app) sweep() *cobra.Command {
	var f flags
	var o pictures
	var axes []string
	c := &cobra.Command{
		Use: "sweep NAME|FILE", Short: "Run a scenario with each combination of some values, on all processors",
		Args: cobra.ExactArgs(1),
		Long: `Sweep runs a scenario once for each combination of the values of its axes: those that it has itself (its
sweep), or those of --axis in their place. Expectations are of the scenario as it is. The exit status is 1 if that is among the
combinations and breaks one. The others are for comparison.`,
		Example: `  tiersim sweep fail-modes --open
  tiersim sweep overload --axis fleet.size=0,-1,20,100 --axis fleet.period=100ms,250ms,1s`,
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := writable(f.json, o.html, o.svg); err != nil {
				return err
			}
			s, err := f.load(args[0])
			if err != nil {
				return err
			}
			for i, axis := range axes {
				path, values, ok := strings.Cut(axis, "=")
				if !ok || path == "" || values == "" {
					return fmt.Errorf("--axis is %q: must be PATH=VALUE,VALUE,…", axis)
				}
				if i == 0 {
					s.Sweep = nil
				}
				s.Sweep = append(s.Sweep, scenario.Axis{Path: path, Values: strings.Split(values, ",")})
			}
			options, err := f.options(s)
			if err != nil {
				return err
			}
			progress, done := a.bar("sweeping")
			options.Progress = progress
			all, err := sim.Sweep(s, options)
			done()
			if err != nil {
				return err
			}
			err = a.write(f.json, func(w io.Writer) error { return measure.JSON(w, all) })
			if o.quiet = f.json == "-"; err == nil && !o.quiet && !o.stdout() {
				err = all.Text(a.out, a.color)
			}
			if err == nil {
				err = a.draw(all.Names(), all.Reports, &o)
			}
			if err == nil && !all.Passed() {
				return errBroken
			}
			return err
		},
	}
	f.seedFlag(c)
	f.policyFlags(c)
	f.setFlag(c)
	f.jsonFlag(c)
	o.flags(c)
	c.Flags().StringArrayVar(&axes, "axis", nil,
		"PATH=VALUE,VALUE,…: what to vary in place of the scenario's own axes; may be repeated")
	return c
}

func (a *app) replay() *cobra.Command {
	return &cobra.Command{
		Use: "replay REPORT.json", Short: "Run again what a report is of, and compare: the same run has the same unseed",
		Args: cobra.ExactArgs(1), Example: "  tiersim replay report.json",
		Long: `Replay runs the scenario of a report again, with its seed. The exit status is 1 when the unseed, a hash
over all that happened, is another; then it says what differs. Another version of the project may well behave in another way.
A policy of your own, given to sim.Run in Go, is not in a report: what it was run with is replayed with the policy of the
scenario.`,
		RunE: func(_ *cobra.Command, args []string) error {
			old, err := readReport(args[0])
			if err != nil {
				return err
			}
			progress, done := a.bar("replaying")
			again, err := sim.Run(old.Scenario, &sim.Options{Seed: old.Seed, Progress: progress})
			done()
			if err != nil {
				return err
			}
			if again.Unseed == old.Unseed {
				fmt.Fprintf(a.out, "the same run: unseed %s\n", again.Unseed)
				return nil
			}
			fmt.Fprintf(a.out, "another run: version %q, and it was %q\n", again.Version, old.Version)
			return a.differences(old, again, 0)
		},
	}
}

func (a *app) diff() *cobra.Command {
	tolerance := 0.05
	c := &cobra.Command{
		Use: "diff A.json B.json", Short: "What differs between two reports",
		Args: cobra.ExactArgs(2), Example: "  tiersim diff before.json after.json",
		Long: `Diff compares two reports value by value, and prints what differs by more than a part of the greater value.
Two seeds of one scenario often differ by 5 %. The exit status is 1 when something differs.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if !(tolerance >= 0 && tolerance <= 1) { // NaN is not either, and would find every two reports equal
				return fmt.Errorf("--tolerance is %v: must be 0 to 1", tolerance)
			}
			x, errX := readReport(args[0])
			y, errY := readReport(args[1])
			if err := errors.Join(errX, errY); err != nil {
				return err
			}
			return a.differences(x, y, tolerance)
		},
	}
	c.Flags().Float64Var(&tolerance, "tolerance", tolerance, "of the greater value: 0 prints every difference")
	return c
}

// differences prints how two reports differ.
func (a *app) differences(x, y *measure.Report, tolerance float64) error {
	all := measure.Diff(x, y, tolerance)
	if len(all) == 0 {
		fmt.Fprintln(a.out, "no difference")
		return nil
	}
	fmt.Fprintln(a.out, strings.Join(all, "\n"))
	return errBroken
}

func readReport(path string) (*measure.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := measure.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return r, nil
}
