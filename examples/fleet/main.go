// Fleet shows what the limiter is for: many processes share one limit, and hardly ask for it.
//
//	go run ./examples/fleet                                  # eight limiters in this process, no Redis
//	go run ./examples/fleet -redis redis://127.0.0.1:6379    # the same through Redis
//
// Each of the eight is what a process of a service would have: a limiter of its own, which knows
// nothing of the others but what the store tells. Together they are offered three times the limit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type figures struct{ offered, admitted, waited atomic.Int64 }

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	url := flags.String("redis", "", "URL of a Redis; without it, a store in this process")
	processes := flags.Int("processes", 8, "limiters that share the limit")
	rate := flags.Int64("rate", 2000, "tokens per second, all together")
	burst := flags.Int64("burst", 500, "tokens at once, all together")
	load := flags.Float64("load", 3, "offered, in times the rate")
	seconds := flags.Int("seconds", 6, "how long")
	if err := flags.Parse(args); err != nil {
		return err
	}

	var store remote.Store = remote.NewMemory()
	if *url != "" {
		var err error
		if store, err = remote.Open(*url, &remote.RedisOptions{Logger: slog.Default()}); err != nil {
			return err
		}
	}
	defer store.Close()
	policy := tiered.Policy{Name: "fleet", Limit: tiered.PerSecond(*rate).WithBurst(*burst)}
	groups := make([]*tiered.Group, *processes)
	limiters := make([]*tiered.Limiter, *processes)
	for i := range groups {
		var err error
		if groups[i], err = tiered.NewGroup(store, nil); err == nil {
			limiters[i], err = groups[i].NewLimiter(policy)
		}
		if err != nil {
			return err
		}
	}

	fmt.Fprintf(out, "%d limiters share %d tokens per second with bursts of %d, and are offered %g times that:\n\n",
		*processes, *rate, *burst, *load)
	var f figures
	// Half a second short, so that the report's last tick finds the end.
	ctx, stop := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second-time.Second/2)
	defer stop()
	var all sync.WaitGroup
	start := time.Now()
	for _, l := range limiters {
		all.Go(func() { offer(ctx, l, *load*float64(*rate)/float64(*processes), &f) })
	}
	report(ctx, out, start, &f, groups, *rate, *burst)
	all.Wait()

	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var err error
	for _, g := range groups {
		err = errors.Join(err, g.Close(closing))
	}
	return err
}

// offer makes rate requests per second, at random times.
func offer(ctx context.Context, l *tiered.Limiter, rate float64, f *figures) {
	next := time.Now()
	for {
		next = next.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		d := l.Allow(ctx, "everybody")
		f.offered.Add(1)
		if d.Allowed {
			f.admitted.Add(1)
		}
		if d.Tier != tiered.Local {
			f.waited.Add(1)
		}
	}
}

// report prints a line per second, and what it comes to.
func report(ctx context.Context, out io.Writer, start time.Time, f *figures, groups []*tiered.Group, rate, burst int64) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "second\toffered\tadmitted\twaited for the store\tcalls to the store\t")
	var offered, admitted, waited, calls int64
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for second := 1; ctx.Err() == nil; second++ {
		<-tick.C
		o, a, w, c := f.offered.Load(), f.admitted.Load(), f.waited.Load(), storeCalls(groups)
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t\n", second, o-offered, a-admitted, w-waited, c-calls)
		offered, admitted, waited, calls = o, a, w, c
	}
	_ = table.Flush()
	end, _ := ctx.Deadline()
	elapsed := end.Sub(start).Seconds()
	bound := float64(burst) + float64(rate)*elapsed
	fmt.Fprintf(out, "\nadmitted %d in %.2f s; one ideal bucket admits %.0f at most (burst + rate·t): %.1f %%\n",
		admitted, elapsed, bound, 100*float64(admitted)/bound)
	fmt.Fprintf(out, "%.1f %% of the decisions were made without asking; %.3f calls per decision\n",
		100*(1-float64(waited)/float64(offered)), float64(calls)/float64(offered))
}

func storeCalls(groups []*tiered.Group) (n int64) {
	for _, g := range groups {
		for _, node := range g.Stats().Nodes {
			n += node.Calls.Sent
		}
	}
	return n
}
