package shares

import (
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
)

// Rules are what may happen in a world beside loss, delay and crashes.
type Rules struct {
	Losses bool // the table is lost
	Jumps  bool // its clock jumps ahead, at most once in the life of a record
	Drift  bool // the clocks of the processes run up to 0.9 % too fast or too slow
	Priced bool // an assumption is broken: what is over the bound is measured, and is no fault
}

// Schedule is one history of a world. It can be played any number of times.
type Schedule struct {
	Rules Rules
	Seed  uint64
	Steps []int // what each does follows from the seed and its number
	extra []action
}

// Random returns the schedule of a seed.
func Random(seed uint64, steps int) Schedule {
	s := Schedule{Seed: seed, Rules: Rules{Losses: seed%3 == 0, Jumps: seed%5 < 2, Drift: seed%2 == 0}}
	for i := range steps {
		s.Steps = append(s.Steps, i)
	}
	return s
}

// Stores makes empty stores.
type Stores func() *adversary.Store

// Play plays a schedule.
func (s Schedule) Play(stores Stores, tell bool) adversary.Outcome {
	return s.play(newWorld(s, stores), tell)
}

func (s Schedule) play(w *world, tell bool) adversary.Outcome {
	w.Tell(tell)
	w.Logf("%d processes, limits %v", len(w.processes), w.versions)
	all := append(actions[:len(actions):len(actions)], s.extra...)
	weight := 0
	for _, a := range all {
		weight += a.weight
	}
	for _, i := range s.Steps {
		if w.check(); w.Fault != "" {
			break
		}
		w.step(i, all, weight)
	}
	if w.check(); w.Fault == "" && !s.Rules.Priced {
		w.Logf("all is well")
		w.heal()
	}
	w.end()
	return adversary.Outcome{Fault: w.Fault, Count: w.admissions, Slack: -w.over, Text: w.Text()}
}

// List returns the steps.
func (s Schedule) List() []int { return s.Steps }

// With returns the schedule with other steps.
func (s Schedule) With(steps []int) Schedule { s.Steps = steps; return s }

func (s Schedule) String() string {
	return fmt.Sprintf("seed %d, %+v, steps %v", s.Seed, s.Rules, s.Steps)
}
