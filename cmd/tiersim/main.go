// Tiersim rehearses failures of Redis: it runs the shipped limiter through them in virtual time and reports what was
// admitted, refused and promised.
//
//	tiersim list                                    # the scenarios
//	tiersim run blackhole                           # one of them
//	tiersim run blackhole -modes local,open,closed -engine lua -seed 7
//
// The exit status is 1 when an expectation is broken, and 2 when the scenario could not be run.
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
	"github.com/tiered-limiter/tiered-limiter/sim/library"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func main() {
	j, err := parse(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "tiersim:", err)
		os.Exit(2)
	case j == nil:
		return
	}
	sim.Main(func(t *testing.T) int { return j.run(t, os.Stdout, os.Stderr) })
}

// job is what to run: a scenario, several times.
type job struct {
	scenarios []*scenario.Scenario
	options   sim.Options
}

// run runs them, prints the reports and returns the exit status.
func (j *job) run(t *testing.T, out, problems io.Writer) (status int) {
	for _, s := range j.scenarios {
		r, err := sim.Run(t, s, &j.options)
		if err != nil {
			fmt.Fprintln(problems, "tiersim:", err)
			return 2
		}
		fmt.Fprintln(out, r)
		if !r.Passed {
			status = 1
		}
	}
	return status
}

const usage = `usage: tiersim list
       tiersim run <scenario> [flags]     (tiersim run <scenario> -h lists them)
`

// parse reads the command line: what is to be run, or nothing when there is nothing left to do.
func parse(args []string, out, problems io.Writer) (*job, error) {
	if len(args) == 0 {
		return nil, errors.New("what?\n" + strings.TrimRight(usage, "\n"))
	}
	switch args[0] {
	case "list":
		for _, name := range library.Names() {
			s, err := load(name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(out, "%-20s  %s\n", name, s.Name)
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

func load(name string) (*scenario.Scenario, error) {
	text, err := library.Text(name)
	if err != nil {
		return nil, err
	}
	return scenario.Parse(text)
}

func parseRun(args []string, problems io.Writer) (*job, error) {
	if len(args) == 0 {
		return nil, errors.New("run which scenario? tiersim list shows them")
	}
	s, err := load(args[0])
	if err != nil {
		return nil, err
	}
	j := &job{scenarios: []*scenario.Scenario{s}}
	flags := flag.NewFlagSet("tiersim run "+args[0], flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.Uint64Var(&j.options.Seed, "seed", 1, "what all that is random depends on")
	flags.StringVar(&j.options.Engine, "engine", sim.Virtual, "virtual or lua")
	flags.Func("set", "change a field of the scenario, as in fleet.n=50 or net.rtt=2ms", func(text string) error {
		path, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("it takes PATH=VALUE")
		}
		return s.Set(path, value)
	})
	modes := flags.String("modes", "", "fail modes to compare, of local,open,closed; the scenario's own when left out")
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is too much", flags.Arg(0))
	}
	if *modes != "" {
		j.scenarios = nil
		for m := range strings.SplitSeq(*modes, ",") {
			other, err := inMode(s, m)
			if err != nil {
				return nil, err
			}
			j.scenarios = append(j.scenarios, other)
		}
	}
	return j, nil
}

// always are the metrics whose bounds hold in every fail mode; the others are those of the scenario's own.
var always = []string{"duplicated", "uncounted", "decide_max", "detect", "heal"}

// inMode is a scenario in a fail mode.
func inMode(s *scenario.Scenario, mode string) (*scenario.Scenario, error) {
	s = s.Clone()
	own := s.Fleet.Mode
	if own == "" {
		own = scenario.DefaultMode
	}
	if err := s.Set("fleet.mode", mode); err != nil {
		return nil, err
	}
	s.Name += ": fail-" + mode
	if mode != own {
		s.Sometimes = nil
		s.Expect = slices.DeleteFunc(s.Expect, func(e scenario.Expectation) bool { return !slices.Contains(always, e.Metric) })
	}
	return s, nil
}
