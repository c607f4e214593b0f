// Tiersim rehearses failures of Redis: it runs the shipped limiter through them in virtual time and prints what each fail
// mode admits, refuses and promises.
//
//	tiersim list                                    # the scenarios
//	tiersim run outage                              # one of them
//	tiersim run outage -processes 50 -rate 5000 -seed 7 -modes local,closed
//
// The exit status is 1 when a promise is broken, and 2 when the scenario could not be run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

func main() {
	s, err := parse(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "tiersim:", err)
		os.Exit(2)
	case s == nil:
		return
	}
	sim.Main(func(t *testing.T) int { return run(t, *s, os.Stdout, os.Stderr) })
}

// run runs a scenario, prints its report and returns the exit status.
func run(t *testing.T, s sim.Scenario, out, problems io.Writer) int {
	r, err := sim.Run(t, s)
	if err != nil {
		fmt.Fprintln(problems, "tiersim:", err)
		return 2
	}
	fmt.Fprint(out, r)
	return verdict(r)
}

// verdict is the exit status of a run.
func verdict(r *sim.Report) int {
	if r.Passed() {
		return 0
	}
	return 1
}

const usage = `usage: tiersim list
       tiersim run <scenario> [flags]     (tiersim run <scenario> -h lists them)
`

// parse reads the command line: the scenario to be run, or none when there is nothing left to do.
func parse(args []string, out, problems io.Writer) (*sim.Scenario, error) {
	if len(args) == 0 {
		return nil, errors.New("what?\n" + strings.TrimRight(usage, "\n"))
	}
	switch args[0] {
	case "list":
		for _, s := range sim.Scenarios() {
			fmt.Fprintf(out, "%-10s  %s\n", s.Name, s.Learn)
		}
		return nil, nil
	case "run":
		return parseRun(args[1:], problems)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(out, usage)
		return nil, flag.ErrHelp
	}
	return nil, fmt.Errorf("%q is no command\n%s", args[0], strings.TrimRight(usage, "\n"))
}

func parseRun(args []string, problems io.Writer) (*sim.Scenario, error) {
	if len(args) == 0 {
		return nil, errors.New("run which scenario? tiersim list shows them")
	}
	all := sim.Scenarios()
	i := slices.IndexFunc(all, func(s sim.Scenario) bool { return s.Name == args[0] })
	if i < 0 {
		return nil, fmt.Errorf("%q is no scenario; tiersim list shows them", args[0])
	}
	s := &all[i]
	flags := flag.NewFlagSet("tiersim run "+s.Name, flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.Uint64Var(&s.Seed, "seed", s.Seed, "what all that is random depends on")
	flags.IntVar(&s.Processes, "processes", s.Processes, "processes that share the limits")
	flags.Int64Var(&s.Hot.Policy.Limit.Tokens, "rate", s.Hot.Policy.Limit.Tokens, "limit of the hot key, tokens per second")
	flags.Int64Var(&s.Hot.Policy.Limit.Burst, "burst", s.Hot.Policy.Limit.Burst, "its burst, tokens; 0 is the rate")
	flags.Float64Var(&s.Hot.Load, "load", s.Hot.Load, "offered for it, in times the rate")
	flags.IntVar(&s.Cold.Keys, "users", s.Cold.Keys, "other users")
	flags.IntVar(&s.Options.Processes, "floor", s.Options.Processes, "Options.Processes: the least size of the fleet")
	flags.DurationVar(&s.From, "from", s.From, "when Redis goes")
	flags.DurationVar(&s.To, "to", s.To, "when it comes back")
	flags.DurationVar(&s.Length, "length", s.Length, "when the run ends")
	flags.Func("modes", "fail modes to compare, of local,open,closed (default all)", func(names string) error {
		compared := s.Modes[:0]
		for _, m := range slices.Clone(s.Modes) {
			if slices.Contains(strings.Split(names, ","), strings.TrimPrefix(m.String(), "fail-")) {
				compared = append(compared, m)
			}
		}
		s.Modes = compared
		if len(compared) != len(strings.Split(names, ",")) {
			return errors.New("it takes any of local,open,closed, once each")
		}
		return nil
	})
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is too much", flags.Arg(0))
	}
	return s, nil
}
