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
			a.differences(old, again)
			return errBroken
		},
	}
}

func (a *app) diff() *cobra.Command {
	return &cobra.Command{
		Use: "diff A.json B.json", Short: "What differs between two reports by more than noise",
		Args: arguments(2, 2), Example: "  tiersim diff before.json after.json",
		Long: `Diff compares two reports metric by metric, and prints what is further apart than two runs with different seeds often are:
5 %, or a few tokens or milliseconds. The exit status is 1 when something is.`,
		RunE: func(_ *cobra.Command, args []string) error {
			x, errX := readReport(args[0])
			y, errY := readReport(args[1])
			if err := errors.Join(errX, errY); err != nil {
				return err
			}
			return a.compare(x, y)
		},
	}
}

// compare prints what differs by more than noise. A difference is an error.
func (a *app) compare(x, y *measure.Report) error {
	if a.differences(x, y) > 0 {
		return errBroken
	}
	fmt.Fprintln(a.out, "no difference beyond noise")
	return nil
}

// differences prints the differences and returns their number.
func (a *app) differences(x, y *measure.Report) int {
	all := measure.Diff(x, y)
	for _, d := range all {
		fmt.Fprintln(a.out, d)
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
