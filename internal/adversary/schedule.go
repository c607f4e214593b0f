package adversary

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Schedule is one history of a world. It can be played any number of times.
type Schedule struct {
	Scope   *Scope
	Seed    uint64   // of the processes' jitter
	Choices []uint16 // each an action of the scope; one that is not possible in its turn is left out
}

// Random returns a schedule that follows from its seed alone: one of the scopes, and up to steps steps.
func Random(scopes []*Scope, seed uint64, steps int) Schedule {
	r := rand.New(rand.NewPCG(seed, 2))
	s := Schedule{Scope: scopes[r.IntN(len(scopes))], Seed: seed, Choices: make([]uint16, steps/2+r.IntN(steps/2))}
	for i := range s.Choices {
		s.Choices[i] = uint16(r.IntN(len(s.Scope.Actions)))
	}
	return s
}

// action returns the action of a choice.
func (s *Scope) action(choice uint16) Action { return s.Actions[int(choice)%len(s.Actions)] }

// Outcome is the result of a schedule.
type Outcome struct {
	Fault string  // what broke, "" if nothing did
	Calls int     // that the store executed
	Slack float64 // tokens that were left of the limit that came nearest to its bound
}

// Play plays a schedule in a store, and shuts all processes down.
func (s Schedule) Play(bank *Store, bucket string) Outcome {
	w := New(s.Scope, bank, bucket, s.Seed)
	s.play(w)
	return Outcome{Fault: w.fault, Calls: w.calls, Slack: w.slack()}
}

// Describe plays a schedule and describes every step.
func (s Schedule) Describe(bank *Store, bucket string) string {
	w := New(s.Scope, bank, bucket, s.Seed)
	w.log = new(strings.Builder)
	s.play(w)
	return fmt.Sprintf("scope %s, seed %d, choices %x\n%s", s.Scope.Name, s.Seed, s.Choices, w.log)
}

func (s Schedule) play(w *World) {
	s.steps(w)
	if w.fault == "" {
		w.logf("all go home")
		w.shutDown(s.Seed%2 == 0)
	}
	if w.fault != "" {
		w.logf("BROKEN: %s", w.fault)
	}
	w.lose() // a server is used by many
}

// steps plays the prelude and the choices, and reports whether the last of them was possible.
func (s Schedule) steps(w *World) (possible bool) {
	for _, a := range s.Scope.Prelude {
		w.logStep(0, a)
		w.Do(a)
	}
	for i, choice := range s.Choices {
		a := s.Scope.action(choice)
		w.logStep(i, a)
		if possible = w.Do(a); !possible {
			w.logStep(i, nil)
		}
		if w.fault != "" {
			return possible
		}
	}
	return possible
}

// Shrink returns the shortest schedule it finds that still breaks something. broken plays one.
func Shrink(s Schedule, broken func(Schedule) bool) Schedule {
	s.Choices = Shortest(s.Choices, func(choices []uint16) bool {
		return broken(Schedule{Scope: s.Scope, Seed: s.Seed, Choices: choices})
	})
	return s
}

// Shortest leaves out of a list what it can, as long as it is still broken: parts of half of the list first, then smaller
// ones.
func Shortest[T any](list []T, broken func([]T) bool) []T {
	for size := len(list) / 2; size > 0; {
		smaller := false
		for at := 0; at+size <= len(list); {
			if without := slices.Concat(list[:at], list[at+size:]); broken(without) {
				list, smaller = without, true
			} else {
				at += size
			}
		}
		if !smaller || size > len(list)/2 {
			size /= 2
		}
	}
	return list
}
