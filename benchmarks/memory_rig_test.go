package benchmarks

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// growth returns how much more memory the server uses per key after fill has made that many.
func (s *Server) growth(tb testing.TB, keys int64, fill func()) float64 {
	tb.Helper()
	there, before := s.Keys(tb), s.settledMemory(tb)
	fill()
	if made := s.Keys(tb) - there; made < keys-1 || made > keys+1 { // one other key may come or go
		tb.Fatalf("%d keys came, to be %d", made, keys)
	}
	return (s.settledMemory(tb) - before) / float64(keys)
}

// memory returns what the server uses, except for its clients' connections: their number has
// nothing to do with keys.
func (s *Server) memory(tb testing.TB) float64 {
	tb.Helper()
	return s.info(tb, "Memory", "used_memory") - s.info(tb, "Memory", "mem_clients_normal")
}

// settledMemory returns memory once it has not changed for half a second. While Redis moves the
// keys into a larger table, both tables exist.
func (s *Server) settledMemory(tb testing.TB) float64 {
	tb.Helper()
	const still = 4096 // bytes: what asking takes
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	last, since := s.memory(tb), time.Now()
	for deadline := time.Now().Add(settleTime); time.Now().Before(deadline); {
		<-ticks.C
		switch now := s.memory(tb); {
		case math.Abs(now-last) > still:
			last, since = now, time.Now()
		case time.Since(since) > 500*time.Millisecond:
			return now
		}
	}
	tb.Fatal("the server's memory does not settle")
	return 0
}

// mustLease fails the test unless that many buckets have a lease of each process.
func (s *Server) mustLease(tb testing.TB, keys, processes int) {
	tb.Helper()
	ctx := context.Background()
	full := 0
	for each := s.operator.Scan(ctx, 0, "*tb2", 1000).Iterator(); each.Next(ctx); {
		fields := fatal.Get(s.operator.HKeys(ctx, each.Val()).Result())(tb)
		leases := 0
		for _, f := range fields {
			if strings.HasPrefix(f, "p") {
				leases++
			}
		}
		if leases == processes {
			full++
		}
	}
	if full < keys {
		tb.Fatalf("%d buckets are leased by %d processes, to be %d", full, processes, keys)
	}
}
