package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tiered-limiter/tiered-limiter/internal/tune"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func (a *app) tune() *cobra.Command {
	var f files
	var wanted question
	c := &cobra.Command{
		Use: "tune", Short: "Search lease size and period, fail mode and Options.Processes for a service",
		Args: noArguments,
		Long: `Tune runs the shipped limiter with each of some thirty settings through silent, dying, flapping and slow Redises, partitions
and deploys. It prints the settings that none beats, which one to take, whether standing shares pay, and the policy in
Go. What nothing satisfies it says; the exit status is then 1. It takes some ten seconds on two processors, and a
minute with many keys. sim/tuning.md has examples.`,
		Example: `  tiersim tune --rate 1000/s --processes 20 --over 100% --shortfall 10%
  tiersim tune --rate 5/min --processes 20 --keys 1000 --demand 0.5 --over 30
  tiersim tune --rate 50/s --processes 10 --over 0 --shortfall 60% --calls 200/s`,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if wanted.rate == "" {
			return fmt.Errorf("tune has no --rate: must be given, as in\n  %s\n%s", example(c), seeHelp(c))
		}
		if err := f.check(); err != nil {
			return err
		}
		q, err := wanted.read()
		if err != nil {
			return err
		}
		b := a.bar("tuning")
		answer, err := tune.Search(q, b.progress)
		b.done()
		if err != nil {
			return err
		}
		sweep, err := answer.Sweep()
		if err != nil {
			return err
		}
		err = a.write(f.json, func(w io.Writer) error { return indented(w, sweep) })
		if err == nil && !f.stdout() {
			err = answer.Text(a.out)
		}
		if err == nil && len(answer.Unsatisfied())+len(answer.Broken) > 0 {
			return errBroken
		}
		return err
	}
	wanted.flags(c)
	f.flags(c)
	return c
}

// question holds the flags of a tune.Question. A value with a unit is text.
type question struct {
	tune.Question
	rate, over, shortfall, calls string
	rtt, outage                  time.Duration
}

func (q *question) flags(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&q.rate, "rate", "", "the limit of each key, as in 1000/s, 100/min; must be there")
	flags.Int64Var(&q.Limit.Burst, "burst", 0, "its burst, tokens; 0 is as many as the rate has")
	flags.StringVar(&q.Limit.Name, "name", "api", "of the policy")
	flags.IntVar(&q.Processes, "processes", 20, "that share the limit: 1 to 1000")
	flags.DurationVar(&q.rtt, "rtt", 400*time.Microsecond, "to Redis and back")
	flags.StringVar(&q.Shape, "shape", "steady", "of demand: steady, bursts (all within 0.8 of 2 s), ramp, wave")
	flags.Float64Var(&q.Demand, "demand", 1.5, "of each key, in times its limit")
	flags.Int64Var(&q.Keys, "keys", 1, "that are asked for at one time")
	flags.Int64Var(&q.Cost, "cost", 1, "tokens per request")
	flags.Int64Var(&q.MaxCost, "max-cost", 0, "uniform from --cost to this")
	flags.DurationVar(&q.outage, "outage", 15*time.Second, "how long faults last")
	flags.StringSliceVar(&q.Faults, "faults", nil, "some of "+strings.Join(tune.Faults(), ",")+" (default all)")
	flags.StringVar(&q.over, "over", "100%", "accepted over-admission in the worst interval: tokens, or a part of the burst")
	flags.StringVar(&q.shortfall, "shortfall", "10%", "accepted part of what an ideal limiter admits, outage and all")
	flags.StringVar(&q.calls, "calls", "", "accepted calls of Redis per second (default any number)")
	flags.Float64Var(&q.Requests, "requests", 300, "to simulate per second at most; beyond them one stands for several")
	flags.Uint64Var(&q.Seed, "seed", 1, "what all that is random depends on: from 1")
	_ = c.RegisterFlagCompletionFunc("shape", cobra.FixedCompletions([]string{"steady", "bursts", "ramp", "wave"},
		cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("faults", cobra.FixedCompletions(tune.Faults(),
		cobra.ShellCompDirectiveNoFileComp))
}

// read parses the values with units.
func (q *question) read() (tune.Question, error) {
	q.RTT, q.Outage = scenario.Duration(q.rtt), scenario.Duration(q.outage)
	var all []error
	wrong := func(flag, value, rule string) {
		all = append(all, fmt.Errorf("--%s is %q: must be %s", flag, value, rule))
	}
	// The scenario language parses a limit's rate.
	s, err := scenario.Parse(probe)
	if err != nil {
		return q.Question, err
	}
	if err := s.Set("limit.rate", q.rate); err != nil {
		wrong("rate", q.rate, "tokens per period, as in 1000/s, 100/min or 5/h")
	}
	q.Limit.Tokens, q.Limit.Per = s.Limits[0].Tokens, s.Limits[0].Per
	burst := q.Limit.Burst
	if burst == 0 {
		burst = q.Limit.Tokens
	}
	var ok bool
	if q.Over, ok = part(q.over, float64(burst)); !ok {
		wrong("over", q.over, "tokens, or a part of the burst, as in 100 or 50%")
	}
	if q.Shortfall, ok = part(q.shortfall, 1); !ok || q.Shortfall > 1 {
		wrong("shortfall", q.shortfall, "0 to 100%, as in 5% or 0.05")
	}
	if q.Calls, ok = part(strings.TrimSuffix(q.calls, "/s"), 0); q.calls != "" &&
		(!ok || q.Calls <= 0 || strings.HasSuffix(q.calls, "%")) {
		wrong("calls", q.calls, "more than 0 per second, as in 200/s")
	}
	if q.Seed == 0 {
		wrong("seed", "0", "1 or more")
	}
	return q.Question, errors.Join(all...)
}

// probe returns a scenario whose limit's rate can be set.
const probe = "name \"x\"\nlimit x rate=1/s\nfleet n=1\ntraffic poisson rate=1/s\nrun 10s\n"

// part parses a number that is not negative, or a percentage of a whole.
func part(text string, whole float64) (float64, bool) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v = v * whole / 100
	}
	return v, err == nil && v >= 0 && v <= 1e15
}
