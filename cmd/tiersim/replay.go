package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

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
			if old.Unseed == "" {
				return fmt.Errorf("%q has no unseed to compare with", args[0])
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
