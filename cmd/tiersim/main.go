// Tiersim rehearses failures of Redis. It runs the shipped limiter through them in virtual time, and reports what
// was admitted and refused, and how long requests waited.
//
//	tiersim list                                         # the scenarios
//	tiersim run outage                                   # one of them
//	tiersim run outage --set fleet.n=50 --html out.html  # changed, and as a picture
//	tiersim run mine.sim                                 # your own
//	tiersim sweep outage --axis fleet.size=0,5,20        # side by side
//	tiersim tune --rate 1000/s --processes 20            # what to choose
//
// The exit status is 0 when all expectations were met, 1 when one was not, and 2 when something could not be run.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

func main() {
	sim.Child()
	logging.Disable() // go-redis would write a line for each connection that a fault breaks
	a := &app{out: os.Stdout, problems: os.Stderr, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	a.text = measure.TextOptions{Color: colors(os.Getenv, term.IsTerminal(int(os.Stdout.Fd()))), ASCII: !utf8(os.Getenv)}
	os.Exit(a.execute(os.Args[1:]))
}

// app is the program.
type app struct {
	out, problems io.Writer
	terminal      bool // problems go to a terminal, so a bar may move there
	text          measure.TextOptions
}

// The exit statuses.
const (
	passed      = 0
	broken      = 1
	notRunnable = 2
)

// errBroken says that an expectation failed, or that two reports that should be equal differ. The details have been
// printed.
var errBroken = errors.New("an expectation is broken")

// execute runs a command line and returns the exit status.
func (a *app) execute(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.problems)
	switch err := root.Execute(); {
	case errors.Is(err, errBroken):
		return broken
	case err != nil:
		fmt.Fprintln(a.problems, "tiersim:", err)
		return notRunnable
	}
	return passed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tiersim",
		Short: "Rehearse failures of Redis with the shipped limiter, in virtual time",
		Long: `Tiersim runs the shipped limiter, as many processes on one Redis, through a scenario in virtual time, and says what was
admitted, refused and waited for. sim/README.md teaches it in ten minutes.

Exit status: 0 all expectations were met, 1 one was not, 2 it could not be run.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return errors.New("which command?\n" + strings.TrimRight(c.UsageString(), "\n"))
		},
	}
	root.AddCommand(a.list(), a.run(), a.sweep(), a.tune(), a.swarm(), a.replay(), a.diff(), a.check(), a.faults(),
		a.metrics(), a.version())
	return root
}

// arguments accepts least to most arguments, any number if most is 0. The error shows how to go on.
func arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= least && (most == 0 || len(args) <= most) {
			return nil
		}
		got := "no arguments"
		if len(args) > 0 {
			got = fmt.Sprintf("arguments %q", args)
		}
		example, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		return fmt.Errorf("%s has %s: must be %s, as in\n  %s\n%q lists the scenarios, %q says more",
			c.Name(), got, c.UseLine(), example, "tiersim list", "tiersim help "+c.Name())
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The versions of tiersim and of Go, as reports have them", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.out, "tiersim", sim.Version())
			return err
		},
	}
}

// colors reports whether a text may have colors: on a terminal, unless the user disables them
// (https://no-color.org).
func colors(getenv func(string) string, terminal bool) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// utf8 reports whether the user's locale is UTF-8. The first variable that is set decides, as in POSIX.
func utf8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(getenv(name)); v != "" {
			return strings.HasSuffix(v, "utf-8") || strings.HasSuffix(v, "utf8")
		}
	}
	return false
}
