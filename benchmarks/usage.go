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

	// Only of a Fleet:
	P50, P99 time.Duration // of a decision
	Late     time.Duration // 99th percentile of how much later than due a request was made
}

// Per returns a time or a number per decision.
func Per[T ~int64](u Usage, x T) float64 { return float64(x) / float64(u.N) }

// Wall returns a usage's time per decision.
func Wall(u Usage) float64 { return Per(u, u.Wall) }

// ClientCPU returns the client's processor time per decision.
func ClientCPU(u Usage) float64 { return Per(u, u.Client) }

// ServerCPU returns the server's processor time per decision.
func ServerCPU(u Usage) float64 { return Per(u, u.Server) }

// calls returns the commands per decision that were sent to Redis.
func calls(u Usage) float64 { return Per(u, u.Commands) }

// waited returns the part of the decisions that waited for Redis.
func waited(u Usage) float64 { return Per(u, u.Tally.With(Asked)) }

// cpu returns the processor time of process and Redis together per decision, and per request that
// is made.
func cpu(u Usage) float64 { return ClientCPU(u) + ServerCPU(u) }

// serverLoad returns the part of a processor that Redis used.
func serverLoad(u Usage) float64 { return float64(u.Server) / float64(u.Wall) }

// Measure makes n decisions and returns their cost. It checks nothing: see Check.
func (s *Subject) Measure(tb testing.TB, goroutines, n int) Usage {
	tb.Helper()
	done := begin(tb, s.Server)
	return done(s.Time(goroutines, n))
}

// Time is Measure with the wall time only.
func (s *Subject) Time(goroutines, n int) Usage {
	start := time.Now()
	tally := s.Drive(goroutines, n)
	return Usage{N: n, Goroutines: goroutines, Tally: tally, Wall: time.Since(start)}
}

// begin reads the clocks, and the meter of a server if there is one. It returns a function that
// reads them again and fills in the difference. Asking the server takes time on both sides, so that
// is first here and last there.
func begin(tb testing.TB, s *Server) func(Usage) Usage {
	tb.Helper()
	var server time.Duration
	var commands int64
	if s != nil {
		commands, server = s.commands(tb), s.CPU(tb)
	}
	client := ownCPU(tb)
	return func(u Usage) Usage {
		tb.Helper()
		u.Client = ownCPU(tb) - client
		if s != nil {
			u.Server = s.CPU(tb) - server
			u.Commands = s.commands(tb) - commands
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
