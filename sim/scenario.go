package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Scenario is what happens to whom. [Outage] is one that can be run as it is or changed first.
type Scenario struct {
	Name  string
	Learn string // what it shows, in a line

	// Processes share the limits: 1 … 1000. They start within the first second.
	Processes int

	// Options are those of each process' Group. Random is the simulation's.
	Options tiered.Options

	// Hot is traffic to be limited, all on one key: its over-admission is measured. Cold is traffic of Keys users each of
	// whom stays within the limit: what is refused of it is a fault. Their policies need different names; their FailMode
	// is the simulation's.
	Hot, Cold Traffic

	// Modes are the fail modes to compare, each in a run of its own with the same arrivals.
	Modes []tiered.FailMode

	// From and To are when the network to Redis is a black hole, of all processes at once, and Length is when it all
	// ends. The load does not change.
	From, To, Length time.Duration

	// Seed is what all that is random depends on.
	Seed uint64
}

// Traffic is requests of one token at random (Poisson) times, spread over all keys and all processes alike.
type Traffic struct {
	Policy tiered.Policy
	Keys   int     // 1 … 100 000
	Load   float64 // requests per key, over all processes, in times the limit: > 0
}

// Outage is Redis gone for 15 s of a minute, while twenty processes are offered half more than the limit for one hot key,
// and 30 % of their limit by each of 200 other users.
func Outage() Scenario {
	return Scenario{
		Name:      "outage",
		Learn:     "what each fail mode admits and refuses while Redis is silent, and in the recovery",
		Processes: 20,
		Hot: Traffic{
			// At this burst a lease lasts the usual 250 ms, so that Redis sees few calls: miniredis needs a third of a
			// millisecond for each.
			Policy: tiered.Policy{Name: "hot", Limit: tiered.PerSecond(1000)},
			Keys:   1,
			Load:   1.5,
		},
		Cold: Traffic{
			Policy: tiered.Policy{Name: "cold", Limit: tiered.PerMinute(100)},
			Keys:   200,
			Load:   0.3,
		},
		Modes:  []tiered.FailMode{tiered.FailLocal, tiered.FailOpen, tiered.FailClosed},
		From:   20 * time.Second,
		To:     35 * time.Second,
		Length: time.Minute,
		Seed:   1,
	}
}

// Scenarios are those that come with the package.
func Scenarios() []Scenario { return []Scenario{Outage()} }

// validate reports all that is wrong with s.
func (s *Scenario) validate() error {
	var all []error
	check := func(ok bool, field string, value any, rule string) {
		if !ok {
			all = append(all, fmt.Errorf("sim: Scenario.%s is %v: %s", field, value, rule))
		}
	}
	check(s.Processes >= 1 && s.Processes <= 1000, "Processes", s.Processes, "must be 1 to 1000")
	check(s.Hot.Keys == 1, "Hot.Keys", s.Hot.Keys, "must be 1")
	check(s.Cold.Keys >= 1 && s.Cold.Keys <= 100_000, "Cold.Keys", s.Cold.Keys, "must be 1 to 100000")
	for _, t := range []struct {
		name string
		load float64
	}{{"Hot", s.Hot.Load}, {"Cold", s.Cold.Load}} {
		check(t.load > 0 && !math.IsInf(t.load, 1), t.name+".Load", t.load, "must be positive")
	}
	check(len(s.Modes) > 0, "Modes", s.Modes, "must name a fail mode")
	check(s.From >= startup, "From", s.From, "must be 1s or later: the processes start before")
	check(s.To > s.From, "To", s.To, "must be after From")
	check(s.Length > s.To, "Length", s.Length, "must be after To")
	return errors.Join(append(all, s.tryOut())...)
}

// tryOut reports what the limiter finds wrong with policies and options: by making one, in real time and without Redis.
func (s *Scenario) tryOut() error {
	store := remote.NewMemory()
	g, err := tiered.NewGroup(store, &s.Options)
	if err != nil {
		return err
	}
	_, hot := g.Limiter(s.Hot.Policy)
	_, cold := g.Limiter(s.Cold.Policy)
	return errors.Join(hot, cold, g.Close(context.Background()), store.Close())
}

// burst is the burst of a limit.
func burst(l tiered.Limit) int64 {
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// perSecond is the rate of a limit.
func perSecond(l tiered.Limit) float64 { return float64(l.Tokens) / l.Per.Seconds() }
