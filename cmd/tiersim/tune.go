package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func (a *app) tune() *cobra.Command {
	var w wish
	c := &cobra.Command{
		Use: "tune", Short: "Try fail modes, leases, Options.Processes and standing shares for a service", Args: cobra.NoArgs,
		Long: `Tune runs the shipped limiter with eleven settings through an outage, a partition, a deploy and a slow
Redis. It says what each costs, and which one to take. If none keeps what you accept, the exit status is 1.
sim/tuning.md has examples.`,
		Example: `  tiersim tune --rate 1000/s --processes 20 --over 100% --shortfall 10%
  tiersim tune --rate 5/min --processes 20 --keys 1000 --demand 0.5 --over 30
  tiersim tune --rate 50/s --processes 10 --over 0 --shortfall 60% --calls 200/s`,
	}
	c.RunE = func(*cobra.Command, []string) error {
		if err := w.read(); err != nil {
			return err
		}
		progress, done := a.bar("tuning")
		results, err := w.run(&sim.Options{Seed: w.seed, Progress: progress})
		done()
		if err != nil {
			return err
		}
		take, kept := w.choose(results)
		_, err = io.WriteString(a.out, w.answer(results, take, kept))
		if err == nil && !kept {
			return errBroken
		}
		return err
	}
	w.flags(c.Flags())
	_ = c.MarkFlagRequired("rate")
	return c
}

// wish is a service, and what its user accepts.
type wish struct {
	service
	bounds [3]bound // of Over, Short and Calls of a result
	seed   uint64
	texts  struct{ rate, over, short, calls string } // flags with units
}

func (w *wish) flags(f *pflag.FlagSet) {
	f.StringVar(&w.texts.rate, "rate", "", "the limit of each key, as in 1000/s, 100/min; must be there")
	f.Int64Var(&w.limit.Burst, "burst", 0, "its burst, tokens; 0 is as many as the rate has")
	f.IntVar(&w.processes, "processes", 12, "that share the limit")
	f.DurationVar(&w.rtt, "rtt", 400*time.Microsecond, "to Redis and back")
	f.Float64Var(&w.demand, "demand", 1.5, "of each key, in times its limit")
	f.Int64Var(&w.keys, "keys", 1, "that are asked for at one time")
	f.Int64Var(&w.cost, "cost", 1, "tokens per request")
	f.Int64Var(&w.maxCost, "max-cost", 0, "costs are uniform from --cost to this; 0 is --cost")
	f.DurationVar(&w.outage, "outage", 15*time.Second, "how long faults last")
	f.StringVar(&w.texts.over, "over", "200%", "accepted over the limit of a key at worst: tokens, or a part of the burst")
	f.StringVar(&w.texts.short, "shortfall", "20%", "accepted loss of what an ideal limiter admits, outage and all")
	f.StringVar(&w.texts.calls, "calls", "", "accepted calls of Redis per second (default any number)")
	f.Uint64Var(&w.seed, "seed", 1, "what all that is random depends on")
}

// read reads the flags, and reports all that is wrong with them.
func (w *wish) read() error {
	var all []error
	must := func(ok bool, flag string, value any, rule string) {
		if text, isText := value.(string); isText {
			value = strconv.Quote(text)
		}
		if !ok {
			all = append(all, fmt.Errorf("--%s is %v: must be %s", flag, value, rule))
		}
	}
	limit, err := tiered.ParseLimit(w.texts.rate)
	must(err == nil, "rate", w.texts.rate, "tokens per period, as in 1000/s, 100/min or 5/h")
	limit.Burst = cmp.Or(w.limit.Burst, limit.Burst, limit.Tokens)
	w.limit, w.maxCost = limit, cmp.Or(w.maxCost, w.cost)
	most := limit.Burst // of a cost
	if err != nil {
		most = math.MaxInt64
	}
	sound := err != nil || tiered.Policy{Name: "api", Limit: limit}.Validate() == nil
	must(sound, "burst", limit.Burst, "1 to 2^40 tokens")
	must(w.processes >= 1 && w.processes <= 1000, "processes", w.processes, "1 to 1000")
	must(w.rtt >= time.Microsecond && w.rtt <= 10*time.Second, "rtt", w.rtt, "1us to 10s")
	must(w.demand >= 0.01 && w.demand <= 100, "demand", w.demand, "0.01 to 100 times the limit")
	must(w.keys >= 1 && w.keys <= 1e6, "keys", w.keys, "1 to 1000000")
	must(w.cost >= 1 && w.cost <= most, "cost", w.cost, "1 to the burst")
	must(w.maxCost >= w.cost && w.maxCost <= most, "max-cost", w.maxCost, "the cost to the burst")
	must(w.outage >= 3*time.Second && w.outage <= 10*time.Minute, "outage", w.outage, "3s to 10m")
	must(w.seed >= 1, "seed", w.seed, "1 or more")
	var ok [3]bool
	over, isPart := strings.CutSuffix(w.texts.over, "%")
	w.bounds[0], ok[0] = newBound(over, "")
	if w.bounds[0].scale = float64(limit.Burst); isPart {
		w.bounds[0].most *= w.bounds[0].scale / 100
	}
	w.bounds[1], ok[1] = newBound(w.texts.short, "%")
	w.bounds[2], ok[2] = newBound(cmp.Or(w.texts.calls, "Inf/s"), "/s")
	must(ok[0], "over", w.texts.over, "tokens, or per cent of the burst, as in 100 or 50%")
	must(ok[1] && w.bounds[1].most <= 100, "shortfall", w.texts.short, "0% to 100%, as in 5%")
	must(ok[2] && w.bounds[2].most > 0, "calls", w.texts.calls, "more than 0 per second, as in 200/s")
	if len(all) > 0 {
		return errors.Join(all...)
	}
	w.plan()
	run, measured := time.Duration(w.end).Seconds(), time.Duration(w.end-w.warm).Seconds()
	n := w.rate / float64(w.keys) * float64(w.played)
	must(n*run <= mostRequests, "rate", w.texts.rate, fmt.Sprintf("low enough for %d requests of a key in the %v s of a "+
		"run: it has %.3g. A larger --cost makes them fewer", mostRequests, run, n*run))
	must(n*measured >= fewestRequests, "demand", w.demand, fmt.Sprintf("high enough for %d requests in %v s: "+
		"it makes %.3g. More --keys or a longer --outage make more", fewestRequests, measured, n*measured))
	return errors.Join(all...)
}
