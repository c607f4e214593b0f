package benchmarks

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// Subject is a contestant at work on a load.
type Subject struct {
	Contestant Contestant
	Load       Load
	Server     *Server // nil without Redis, and if it is down

	decide    Decide
	walks     []*walk   // one per goroutine
	begun     time.Time // with full buckets
	keysThere int64     // in Redis before the load began
}

// mostGoroutines is the largest number of goroutines of any load.
const mostGoroutines = 16

// Start brings a contestant into the steady state of a load. It ends with the test.
func Start(tb testing.TB, name string, l Load) *Subject {
	tb.Helper()
	i := slices.IndexFunc(Contestants, func(c Contestant) bool { return c.Name == name })
	if i < 0 {
		tb.Fatalf("no contestant %q", name)
	}
	return start(tb, Contestants[i], l)
}

func start(tb testing.TB, c Contestant, l Load) *Subject {
	tb.Helper()
	s := &Subject{Contestant: c, Load: l}
	if c.Redis {
		s.Server = StartServer(tb)
	}
	s.decide = c.Make(tb, s.Server, l.Limit)
	s.walks = newWalks(l.Keys)
	if l.Expect.Down {
		s.Server = nil // killed
	}
	if err := s.settle(); err != nil {
		tb.Fatalf("%s, %s: %v", c.Name, l.Name, err)
	}
	if s.Server != nil {
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

// settle does the load's work until the answers are as expected, for at least half a second:
// connections are open, leases have the size that demand gives them, a denied key is used up, all
// keys of Warm are leased.
func (s *Subject) settle() error {
	work, least := *s, 500*time.Millisecond
	if s.Load.Expect.Asking {
		// A few other keys once, so that the load's are cold.
		work.walks, least = tours(s.Load.Keys, s.Load.Keys+100*mostGoroutines), 0
	}
	n := 0
	for _, w := range work.walks {
		n += len(w.keys)
	}
	s.begun = time.Now()
	work.begun = s.begun
	for {
		err := work.check(work.Time(mostGoroutines, max(n, 1000)))
		switch took := time.Since(s.begun); {
		case err == nil && took > least:
			return nil
		case err != nil && took > settleTime:
			return err
		}
	}
}
