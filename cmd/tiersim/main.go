// Tiersim rehearses failures of Redis. It runs the shipped limiter through them in virtual time, and reports what
// was admitted and refused, and how long requests waited.
//
//	tiersim list                                         # the scenarios
//	tiersim run outage                                   # one of them
//	tiersim run outage --set fleet.n=50 --html out.html  # changed, and as a picture
//	tiersim run mine.yaml                                # your own
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
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

func main() {
	a := &app{out: os.Stdout, problems: os.Stderr, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	a.text = measure.TextOptions{Color: colors(os.Getenv, term.IsTerminal(int(os.Stdout.Fd())))}
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
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(c, args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return errors.New("which command?\n" + strings.TrimRight(c.UsageString(), "\n"))
		},
	}
	root.AddCommand(a.list(), a.run(), a.sweep(), a.tune(), a.replay(), a.diff(), a.check(), a.faults(),
		a.metrics(), a.version())
	root.SetHelpCommand(help())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return fmt.Errorf("%w\n%s", err, seeHelp(c)) })
	return root
}

// help returns the command that shows the help of another one. Cobra's own shows that of tiersim if it does not know the
// command, and reports success.
func help() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "What a command does, its flags and examples",
		RunE: func(c *cobra.Command, args []string) error {
			asked, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			if asked == c.Root() && len(rest) > 0 {
				return unknown(asked, rest[0])
			}
			asked.InitDefaultHelpFlag()
			return asked.Help()
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, command := range c.Root().Commands() {
				if len(args) == 0 && strings.HasPrefix(command.Name(), begun) {
					names = append(names, cobra.CompletionWithDesc(command.Name(), command.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// unknown returns the error for a command that does not exist. It names those that have a similar name, or says how to
// run the scenario of that name.
func unknown(root *cobra.Command, name string) error {
	problem := fmt.Sprintf("unknown command %q", name)
	var similar []string
	for d := 1; d <= 2 && len(similar) == 0; d++ { // the most similar
		root.SuggestionsMinimumDistance = d
		similar = root.SuggestionsFor(name)
	}
	switch {
	case slices.Contains(sim.Library(), name):
		problem += fmt.Sprintf(": did you mean %q?", "tiersim run "+name)
	case name != "" && len(similar) > 0:
		problem += ": did you mean " + strings.Join(similar, " or ") + "?"
	}
	return fmt.Errorf("%s\n%q lists the commands, %q the scenarios", problem, "tiersim help", "tiersim list")
}

// seeHelp says where to read more about a command.
func seeHelp(c *cobra.Command) string {
	if !c.HasParent() {
		return fmt.Sprintf("%q lists the commands", "tiersim help")
	}
	return fmt.Sprintf("%q says more", "tiersim help "+c.Name())
}

// example returns the first example of a command.
func example(c *cobra.Command) string {
	first, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
	return first
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
		return fmt.Errorf("%s has %s: must be %s, as in\n  %s\n%q lists the scenarios, %s",
			c.Name(), got, c.UseLine(), example(c), "tiersim list", seeHelp(c))
	}
}

// noArguments accepts none.
func noArguments(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s has arguments %q: must be %s\n%s", c.Name(), args, c.UseLine(), seeHelp(c))
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The versions of tiersim and of Go, as reports have them", Args: noArguments,
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
