// Command sizing shows what each constant of the sizing is worth: it runs the loads of TestSizing (package tiered) on
// copies of the source in which one constant is halved, doubled or left out, and makes a table of what changes.
//
//	go run ./internal/sizing [-only regexp] [-jobs 2] [-write docs/performance.md]
//
// The loads run in virtual time with five seeds, so the figures are the same on every machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

func main() {
	only := flag.String("only", "", "only the constants whose name matches this `regexp`")
	jobs := flag.Int("jobs", 2, "so many at once")
	write := flag.String("write", "", "write the tables into this `file`, between its sizing markers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *jobs, *write); err != nil {
		fmt.Fprintln(os.Stderr, "sizing:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, jobs int, write string) error {
	filter, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	var some []constant
	for _, c := range constants {
		if filter.MatchString(c.name) {
			some = append(some, c)
		}
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "sizing")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	text, err := tables(ctx, &runner{root: root, tmp: tmp}, some, max(jobs, 1))
	if err != nil {
		return err
	}
	fmt.Print(text)
	if write == "" {
		return nil
	}
	return section.Write(write, "sizing", text)
}
