package faults

import (
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
)

// withClock starts one server whose clock can be set.
func withClock(s *faultRun) {
	var err error
	if s.clock, err = redistest.NewClock(s); errors.Is(err, redistest.ErrNoCompiler) {
		s.Skip(err)
	} else if err != nil {
		s.Fatal(err)
	}
	s.single(redistest.StartEnv(s, s.clock.Env()))
}

// setClock sets the clock of Redis, by that much from the true time.
func (s *faultRun) setClock(ahead time.Duration) {
	if err := s.clock.Set(ahead); err != nil {
		s.Fatal(err)
	}
}
