package benchmarks

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// strays returns how many of n decisions may be of another kind than the load's: because a lease
// was late, a denial was checked again, or a call was a probe. Before a contestant's turn its lease
// may have been returned, and then all goroutines wait.
func strays(n int) int64 { return 2*mostGoroutines + int64(n)/1000 }

// Check fails the run unless u is the work that the load describes.
func (s *Subject) Check(tb testing.TB, u Usage) {
	tb.Helper()
	s.must(tb, s.check(u))
}

// CheckKeys fails the run unless Redis has a bucket of each key that was used.
func (s *Subject) CheckKeys(tb testing.TB) {
	tb.Helper()
	s.must(tb, s.checkKeys(tb))
}

func (s *Subject) must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s, %s: this was not the work that was to be measured: %v", s.Contestant.Name, s.Load.Name, err)
	}
}

// check looks at the answers and at the number of commands.
func (s *Subject) check(u Usage) error {
	n, c, e := int64(u.N), s.Contestant, s.Load.Expect
	admitted, asked := u.Tally.With(Admitted), u.Tally.With(Asked)
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if failed := u.Tally.With(Failed); failed > 0 {
		problem("%d of %d decisions failed", failed, n)
	}
	switch {
	case e.Refused:
		if most := s.refilled(); admitted > most {
			problem("%d admitted, of a key that was used up; %d can have been refilled", admitted, most)
		}
	case e.Down && c.Name == FailClosed:
		if admitted > 0 {
			problem("%d of %d admitted by fail-closed", admitted, n)
		}
	case n-admitted > s.unreasonable(u):
		problem("%d of %d refused", n-admitted, n)
	}
	switch {
	case !c.Ours:
	case e.Asking || c.Asks:
		if asked < n-n/20 {
			problem("only %d of %d decisions waited for Redis", asked, n)
		}
	case asked > strays(u.N):
		problem("%d of %d waited for Redis", asked, n)
	}
	// A batch that was fetched before may serve the first decisions. Client is 0 if only the time
	// was read.
	if least := int64(c.Commands*float64(admitted)) - 1; u.Client > 0 && !e.Refused && u.Commands < least {
		problem("%d commands for %d admitted: it has fallen back on itself", u.Commands, admitted)
	}
	return errors.Join(problems...)
}

// unreasonable returns how many decisions may be refused far below the limit: none, unless that is
// a contestant's known fault.
func (s *Subject) unreasonable(u Usage) int64 {
	if s.Load.Name != Hot.Name || u.Goroutines < 2 {
		return 0
	}
	return int64(s.Contestant.Refuses * float64(u.N))
}

// refilled returns the most tokens that a used-up key may have gained since it was full.
func (s *Subject) refilled() int64 {
	return 1 + int64(time.Since(s.begun).Seconds()*perSecond(s.Load.Limit))
}

func (s *Subject) checkKeys(tb testing.TB) error {
	if s.Server == nil || s.Load.Name != Cold.Name {
		return nil
	}
	want, got := max(s.Contestant.KeysPer, 1)*int64(distinct(s.walks, s.Load.Keys)), s.Server.Keys(tb)-s.keysThere
	if got < want-want/50 || got > want+want/50+2 { // the operator's own keys may come or go
		return fmt.Errorf("%d different keys were asked for, and Redis has %d", want, got)
	}
	return nil
}
