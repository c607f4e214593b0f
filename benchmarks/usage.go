package benchmarks

import (
	"syscall"
	"testing"
	"time"
)

// Usage is what a number of decisions cost.
type Usage struct {
	N          int
	Goroutines int
	Tally      Tally
	Wall       time.Duration
	Client     time.Duration // processor time of this process, all its threads: the limiter's background work too
	Server     time.Duration // processor time of the redis-server
	Commands   int64         // sent to it
	Flights    int64         // in so many writes
}

// Per returns a time or a number per decision.
func Per[T ~int64](u Usage, x T) float64 { return float64(x) / float64(u.N) }

// Measure makes n decisions and returns their cost. It checks nothing: see Check.
func (s *Subject) Measure(tb testing.TB, goroutines, n int) Usage {
	tb.Helper()
	done := s.begin(tb)
	return done(s.Time(goroutines, n))
}

// Time is Measure with the wall time only.
func (s *Subject) Time(goroutines, n int) Usage {
	start := time.Now()
	tally := s.Drive(goroutines, n)
	return Usage{N: n, Goroutines: goroutines, Tally: tally, Wall: time.Since(start)}
}

// begin reads the meters and clocks. It returns a function that reads them again and fills in the difference.
// Asking the server takes time on both sides, so that is first here and last there.
func (s *Subject) begin(tb testing.TB) func(Usage) Usage {
	tb.Helper()
	live := s.Server != nil && !s.Load.Expect.Down
	var server time.Duration
	var commands, flights int64
	if live {
		server = s.Server.CPU(tb)
		commands, flights = s.Server.Meter.commands.Load(), s.Server.Meter.flights.Load()
	}
	client := ownCPU(tb)
	return func(u Usage) Usage {
		tb.Helper()
		u.Client = ownCPU(tb) - client
		if live {
			u.Commands, u.Flights = s.Server.Meter.commands.Load()-commands, s.Server.Meter.flights.Load()-flights
			u.Server = s.Server.CPU(tb) - server
		}
		return u
	}
}

// ownCPU returns the processor time that this process has used.
func ownCPU(tb testing.TB) time.Duration {
	tb.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
