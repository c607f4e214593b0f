package benchmarks

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Subject is a contestant at work on a load.
type Subject struct {
	Contestant Contestant
	Load       Load
	Server     *Server // nil without Redis

	decide    Decide
	walks     []*walk   // one per goroutine
	usedUp    time.Time // when the denied key was
	keysThere int64     // in Redis before the load began
}

// mostGoroutines is the largest number of goroutines of any load.
const mostGoroutines = 16

// Start brings a contestant into the steady state of a load. It ends with the test.
func Start(tb testing.TB, name string, l Load) *Subject {
	tb.Helper()
	return start(tb, Named(tb, name), l)
}

func start(tb testing.TB, c Contestant, l Load) *Subject {
	tb.Helper()
	s := &Subject{Contestant: c, Load: l}
	if c.Redis {
		s.Server = StartServer(tb)
	}
	s.decide = c.Make(tb, s.Server, l.Limit)
	for i := range mostGoroutines {
		s.walks = append(s.walks, newWalk(l.Keys, uint64(i)))
	}
	if err := s.settle(); err != nil {
		tb.Fatalf("%s, %s: %v", c.Name, l.Name, err)
	}
	if s.Server != nil && !l.Expect.Down {
		s.keysThere = s.Server.Keys(tb)
	}
	for _, w := range s.walks {
		w.next, w.made = 0, 0
	}
	return s
}

// Tally is the number of answers of each sort.
type Tally [answers]int64

// With returns the number of answers that have a bit.
func (t Tally) With(bit Answer) (n int64) {
	for a, count := range t {
		if Answer(a)&bit != 0 {
			n += count
		}
	}
	return n
}

// Drive makes n decisions on that many concurrent goroutines, and counts the answers.
func (s *Subject) Drive(goroutines, n int) Tally {
	if goroutines == 1 {
		return s.stride(s.walks[0], n)
	}
	var all Tally
	var mu sync.Mutex
	var done sync.WaitGroup
	for i := range goroutines {
		part := n / goroutines
		if i < n%goroutines {
			part++
		}
		done.Go(func() {
			t := s.stride(s.walks[i], part)
			mu.Lock()
			defer mu.Unlock()
			for a, count := range t {
				all[a] += count
			}
		})
	}
	done.Wait()
	return all
}

// stride makes n decisions along a walk.
func (s *Subject) stride(w *walk, n int) (t Tally) {
	ctx := context.Background()
	keys, at, decide := w.keys, w.next, s.decide
	for range n {
		t[decide(ctx, keys[at])&(answers-1)]++
		if at++; at == len(keys) {
			at = 0
		}
	}
	w.next, w.made = at, min(len(keys), w.made+n)
	return t
}

// settleTime is the longest that a contestant may take to reach the steady state.
const settleTime = 30 * time.Second

// settle does the load's work until it is in its steady state: connections are open, leases have the size that
// demand gives them, the key is exhausted, the breaker is open.
func (s *Subject) settle() error {
	switch l := s.Load; {
	case l.Expect.Refused:
		return s.useUp()
	case l.Name == Warm.Name:
		return s.visitAll()
	case l.Expect.Asking:
		// It uses other keys, so that the load's are cold.
		strangers := &Subject{Contestant: s.Contestant, Load: l, decide: s.decide}
		for i := range mostGoroutines {
			strangers.walks = append(strangers.walks, tour(l.Keys+i*100, l.Keys+(i+1)*100))
		}
		if t := strangers.Drive(mostGoroutines, 100*mostGoroutines); t.With(Failed) > 0 {
			return fmt.Errorf("%d of %d decisions failed", t.With(Failed), 100*mostGoroutines)
		}
		return nil
	default:
		return s.untilSteady()
	}
}

// untilSteady works for at least half a second, and until a thousand decisions in a row are as expected.
func (s *Subject) untilSteady() error {
	begin := time.Now()
	for {
		err := s.check(s.Time(1, 1000))
		switch took := time.Since(begin); {
		case err == nil && took > 500*time.Millisecond:
			return nil
		case err != nil && took > settleTime:
			return err
		}
	}
}

// useUp uses the key until it is refused a thousand times in a row.
func (s *Subject) useUp() error {
	for begin := time.Now(); time.Since(begin) < settleTime; {
		if t := s.Drive(1, 1000); t.With(Admitted|Failed) == 0 {
			s.usedUp = time.Now()
			return nil
		}
	}
	return fmt.Errorf("a key of %d is not used up", s.Load.Limit.Tokens)
}

// visitAll uses each key until the process decides it without a call.
func (s *Subject) visitAll() error {
	all := &Subject{decide: s.decide}
	for i := range mostGoroutines {
		all.walks = append(all.walks, tour(i*s.Load.Keys/mostGoroutines, (i+1)*s.Load.Keys/mostGoroutines))
	}
	for begin := time.Now(); time.Since(begin) < settleTime; {
		t := all.Drive(mostGoroutines, s.Load.Keys)
		if t.With(Admitted) == int64(s.Load.Keys) && t.With(Asked|Failed) == 0 {
			return nil
		}
	}
	return fmt.Errorf("not all of %d keys are decided at home", s.Load.Keys)
}
