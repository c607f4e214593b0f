package adversary

import (
	"fmt"
	"math/rand/v2"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
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

// Place is a bucket in a store.
type Place struct {
	Store  *Store
	Bucket string
}

// Play plays a schedule, and shuts all processes down.
func (s Schedule) Play(in Place) Outcome {
	w := New(s.Scope, in.Store, in.Bucket, s.Seed)
	s.play(w)
	return Outcome{Fault: w.Fault, Count: w.calls, Slack: w.slack()}
}

// Describe plays a schedule and describes every step.
func (s Schedule) Describe(in Place) string {
	w := New(s.Scope, in.Store, in.Bucket, s.Seed)
	w.Journal.Describe()
	s.play(w)
	return fmt.Sprintf("scope %s, seed %d, choices %x\n%s", s.Scope.Name, s.Seed, s.Choices, w.Text())
}

// Without returns the shortest schedule it finds that still breaks something.
func (s Schedule) Without(in Place) Schedule {
	s.Choices = proof.Shortest(s.Choices, func(choices []uint16) bool {
		return Schedule{Scope: s.Scope, Seed: s.Seed, Choices: choices}.Play(in).Fault != ""
	})
	return s
}

func (s Schedule) play(w *World) {
	s.steps(w)
	if w.Fault == "" {
		w.Logf("all go home")
		w.shutDown(s.Seed%2 == 0)
	}
	w.lose() // a server is used by many
}

// steps plays the prelude and the choices, and reports whether the last of them was possible.
func (s Schedule) steps(w *World) (possible bool) {
	for _, a := range s.Scope.Prelude {
		w.Step(0, a)
		w.Do(a)
	}
	for i, choice := range s.Choices {
		a := s.Scope.action(choice)
		w.Step(i, a)
		if possible = w.Do(a); !possible {
			w.Undo()
		}
		if w.Fault != "" {
			return possible
		}
	}
	return possible
}
