package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Main is what the test's binary is when it is a process of tiersim.
func Main() { main() }

// Execute is a command line in this process, as if on a terminal or not.
func Execute(out, problems io.Writer, terminal, color bool, args ...string) (status int) {
	return (&app{out: out, problems: problems, terminal: terminal, color: color}).execute(args)
}

// Commands are those of the program, with the examples in their help.
func Commands() []*cobra.Command { return (&app{}).root().Commands() }

// Understands reports whether the flags of a command line can be parsed, and its scenarios be
// loaded.
func Understands(args ...string) error {
	command, args, err := (&app{}).root().Find(args)
	if err == nil {
		err = command.ParseFlags(args)
	}
	if err != nil {
		return err
	}
	sets, _ := command.Flags().GetStringArray("set")
	for _, name := range command.Flags().Args() {
		if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".yaml") {
			continue // what a command before it wrote
		}
		if _, err := (&flags{sets: sets}).load(name); err != nil {
			return err
		}
	}
	return nil
}

// Colors needs a terminal, which no test has.
var Colors = colors

// Rule is what the page on tuning must say.
const Rule = rule
