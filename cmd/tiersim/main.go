// Tiersim rehearses failures of Redis. It runs the shipped limiter through them in virtual time,
// and reports what was admitted and refused, and how long requests waited.
//
//	tiersim list                                         # the scenarios
//	tiersim run outage                                   # one of them
//	tiersim run outage --set fleet.n=50 --html out.html  # changed, and as a picture
//	tiersim run mine.yaml                                # your own
//	tiersim sweep outage --axis fleet.size=0,5,20        # side by side
//	tiersim tune --rate 1000/s --processes 20            # what to choose
//
// The exit status is 0 when all expectations were met, 1 when one was not, and 2 when something
// could not be run.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

func main() {
	a := &app{out: os.Stdout, problems: os.Stderr, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	a.color = colors(os.Getenv, term.IsTerminal(int(os.Stdout.Fd())))
	os.Exit(a.execute(os.Args[1:]))
}

// app is the program.
type app struct {
	out, problems io.Writer
	terminal      bool // problems go to a terminal, so a bar may move there
	color         bool // of out
	understood    bool // the command line
}

// The exit statuses.
const (
	passed      = 0
	broken      = 1
	notRunnable = 2
)

// errBroken says that an expectation failed, or that two reports that should be equal differ. The
// details have been printed.
var errBroken = errors.New("an expectation is broken")

// execute runs a command line and returns the exit status.
func (a *app) execute(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.problems)
	c, err := root.ExecuteC()
	switch {
	case err == nil:
		return passed
	case errors.Is(err, errBroken):
		return broken
	}
	fmt.Fprintln(a.problems, "tiersim:", err)
	if !a.understood {
		fmt.Fprint(a.problems, c.UsageString())
	}
	return notRunnable
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tiersim",
		Short: "Rehearse failures of Redis with the shipped limiter, in virtual time",
		Long: `Tiersim runs the shipped limiter, as many processes on one Redis, through a scenario in virtual time, and says what was
admitted, refused and waited for. sim/README.md teaches it in ten minutes.

Exit status: 0 all expectations were met, 1 one was not, 2 it could not be run.`,
		Version:       sim.Version(),
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRun: func(*cobra.Command, []string) { a.understood = true },
	}
	root.AddCommand(a.list(), a.run(), a.sweep(), a.tune(), a.replay(), a.diff(), a.check(), a.faults(), a.metrics())
	return root
}

// colors reports whether a text may have colors: on a terminal, unless the user disables them
// (https://no-color.org).
func colors(getenv func(string) string, terminal bool) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// patience is how long work may take before a line says how far it is, where no bar can move.
const patience = 10 * time.Second

// bar shows the progress of long work: on a terminal by a bar, which done removes, and elsewhere by
// a line from time to time.
func (a *app) bar(what string) (progress func(at, of time.Duration), done func()) {
	if !a.terminal {
		var mu sync.Mutex
		told := time.Now()
		return func(at, of time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(told) >= patience {
				told = time.Now()
				fmt.Fprintf(a.problems, "tiersim: %s, %.0f %%\n", what, 100*float64(at)/float64(of))
			}
		}, func() {}
	}
	const steps = 1000
	b := progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(a.problems), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(40),
		progressbar.OptionClearOnFinish(), progressbar.OptionShowElapsedTimeOnFinish(),
	)
	// Errors are of a terminal that nobody sees. The last step belongs to done, so that the bar is
	// removed once.
	progress = func(at, of time.Duration) { _ = b.Set(int(float64(at) / float64(of) * (steps - 1))) }
	return progress, func() { _ = b.Finish() }
}
