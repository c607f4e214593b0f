package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

func (a *app) replay() *cobra.Command {
	return &cobra.Command{
		Use: "replay REPORT.json", Short: "Run again what a report is of, and compare: the same run has the same unseed",
		Args: arguments(1, 1), Example: "  tiersim replay report.json",
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
			b := a.bar("replaying")
			again, err := sim.Run(old.Scenario, &sim.Options{Seed: old.Seed, Progress: b.progress})
			b.done()
			if err != nil {
				return err
			}
			if again.Unseed == old.Unseed {
				fmt.Fprintf(a.out, "the same run: unseed %s\n", again.Unseed)
				return nil
			}
			fmt.Fprintf(a.out, "another run: unseed %s, and it was %s\nversion %q, and it was %q\n", again.Unseed,
				old.Unseed, again.Version, old.Version)
			a.differences(old, again, 0)
			return errBroken
		},
	}
}

func (a *app) diff() *cobra.Command {
	tolerance := 0.05
	c := &cobra.Command{
		Use: "diff A.json B.json", Short: "What differs between two reports",
		Args: arguments(2, 2), Example: "  tiersim diff before.json after.json",
		Long: `Diff compares two reports value by value, and prints what differs by more than a part of the greater value.
Two seeds of one scenario often differ by 5 %. The exit status is 1 when something differs.`,
		RunE: func(_ *cobra.Command, args []string) error {
			x, errX := readReport(args[0])
			y, errY := readReport(args[1])
			if err := errors.Join(errX, errY); err != nil {
				return err
			}
			if a.differences(x, y, tolerance) > 0 {
				return errBroken
			}
			fmt.Fprintln(a.out, "no difference")
			return nil
		},
	}
	c.Flags().Float64Var(&tolerance, "tolerance", tolerance, "of the greater value: 0 prints every difference")
	return c
}

// differences prints the differences and returns their number.
func (a *app) differences(x, y *measure.Report, tolerance float64) int {
	all := measure.Diff(x, y, tolerance)
	for _, line := range all {
		fmt.Fprintln(a.out, line)
	}
	return len(all)
}

func readReport(path string) (*measure.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, quoted(err)
	}
	defer f.Close()
	r, err := measure.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return r, nil
}
