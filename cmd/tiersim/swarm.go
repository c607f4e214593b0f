package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/internal/swarm"
)

func (a *app) swarm() *cobra.Command {
	var e rehearsal
	var sets []string
	var seeds int
	var directory string
	c := &cobra.Command{
		Use: "swarm [NAME|FILE]", Short: "Run random faults, a scenario for each seed, and shrink those that break a promise",
		Args: arguments(0, 1),
		Long: `Swarm draws a scenario for each seed, with faults of all kinds on top of each other, and runs it: in their midst no
decision may take longer than Budget, nothing be spent twice, and no more be admitted than the fail mode allows for these
faults; five seconds after the last of them it must be as if nothing had been. A scenario that breaks a promise is shrunk.

With a scenario the limits, the fleet, the traffic and the network are its own, and only the faults are drawn.`,
		Example: `  tiersim swarm --seeds 1000 --write .
  tiersim swarm mine.yaml --seeds 100`,
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			if seeds < 1 || seeds > mostSeeds {
				return fmt.Errorf("--seeds is %d: must be 1 to %d", seeds, mostSeeds)
			}
			if len(args) == 0 && len(sets) > 0 {
				return errors.New("--set is given without a scenario: must be left out, there is nothing to change")
			}
			if info, err := os.Stat(directory); directory != "" && (err != nil || !info.IsDir()) {
				return fmt.Errorf("--write is %q: must be a directory", directory)
			}
			b := a.bar("swarming")
			run, err := e.options(b)
			if err != nil {
				return err
			}
			o := swarm.Options{From: run.Seed, Seeds: seeds, Progress: func(done, of int) {
				b.progress(time.Duration(done), time.Duration(of))
			}}
			if len(args) > 0 {
				if o.Base, err = load(args[0], sets); err != nil {
					return err
				}
			}
			res, err := swarm.Run(&o)
			b.done()
			if err != nil {
				return err
			}
			return a.swarmed(res, directory)
		},
	}
	e.flags(c)
	setFlag(c, &sets)
	c.Flags().IntVar(&seeds, "seeds", 100, "how many, from --seed on")
	c.Flags().StringVar(&directory, "write", "", "write each failure to a file in `DIRECTORY`, to be run again")
	return c
}

// mostSeeds bounds the seeds of one command: some hours of work.
const mostSeeds = 1_000_000

// swarmed prints the result of a swarm, and writes its files.
func (a *app) swarmed(res *swarm.Result, directory string) error {
	for i := range res.Failures {
		f := &res.Failures[i]
		fmt.Fprintf(a.out, "FAIL  seed %d, shrunk in %d runs\n", f.Seed, f.Tries)
		for line := range strings.Lines(f.Text()) {
			fmt.Fprint(a.out, "  ", line)
		}
		if directory != "" {
			name, err := f.Write(directory)
			if err != nil {
				return quoted(err)
			}
			fmt.Fprintf(a.out, "written: %q\n", name)
		}
		fmt.Fprintln(a.out)
	}
	fmt.Fprintf(a.out, "faults: %s\n", counts(res.Kinds))
	fmt.Fprintf(a.out, "happened: %s\n", counts(res.Happened))
	fmt.Fprintf(a.out, "over-admission: in %d runs; at most %.2f of its bound, seed %d\n", res.Over, res.Nearest,
		res.NearestSeed)
	fmt.Fprintf(a.out, "%d of %d seeds kept all promises\n", res.Seeds-len(res.Failures), res.Seeds)
	if len(res.Failures) > 0 {
		return errBroken
	}
	return nil
}

// counts formats numbers of runs by their faults and by what happened in them.
func counts(n map[string]int) string {
	names := slices.Sorted(maps.Keys(n))
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = fmt.Sprintf("%s %d", name, n[name])
	}
	return strings.Join(texts, ", ")
}
