package benchmarks

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Names of our contestants that ratios refer to.
const (
	Ours       = "ours"        // as it comes
	OursDirect = "ours-direct" // asks Redis for each request
	OursHeld   = "ours-leased" // holds a lease of every key
	OursBoth   = "ours-both"   // asks for each key under two policies, all or nothing
	FailLocal  = "ours-fail-local"
	FailOpen   = "ours-fail-open"
	FailClosed = "ours-fail-closed"
)

// maxKeys is the capacity of a cache of keys: nothing is evicted in these measurements.
const maxKeys = 2 * 100_000

// patient is for a busy machine. The measurements are of a decision's cost, but the fail mode would
// decide whenever the server does not get the processor for 20 ms.
var patient = tiered.Options{Budget: time.Second, Timeout: time.Second}

// ours is this project's limiter in each mode of operation.
var ours = []Contestant{
	ourselves(Ours, tiered.Policy{}, Hot, Denied, Cold),
	ourselves(OursDirect, tiered.Policy{Lease: tiered.Lease{Size: tiered.NoLease}}, Hot, Cold),
	// Renewing 100 000 leases four times a second would measure renewals, so these leases last
	// longer.
	ourselves(OursHeld, tiered.Policy{Lease: tiered.Lease{Size: 1 << 16, Period: time.Minute}}, Warm),
	{Name: OursBoth, Redis: true, Ours: true, KeysPer: 2, Loads: []string{Cold.Name}, Make: func(tb testing.TB, s *Server, l tiered.Limit) Decide {
		first := s.limiter(tb, tiered.Policy{}, l, patient)
		second := fatal.Get(first.Group().NewLimiter(tiered.Policy{Name: "second", Limit: l}))(tb)
		return byTier(tb, false, func(ctx context.Context, key string) tiered.Decision {
			return tiered.All(first.For(key), second.For(key)).Allow(ctx)
		})
	}},
	ourselves(FailLocal, tiered.Policy{FailMode: tiered.FailLocal}, Down),
	ourselves(FailOpen, tiered.Policy{FailMode: tiered.FailOpen}, Down),
	ourselves(FailClosed, tiered.Policy{FailMode: tiered.FailClosed}, Down),
}

func ourselves(name string, p tiered.Policy, loads ...Load) Contestant {
	c := Contestant{Name: name, Redis: true, Ours: true, Asks: p.Lease.Size == tiered.NoLease}
	down := false
	for _, l := range loads {
		c.Loads = append(c.Loads, l.Name)
		down = down || l.Expect.Down
	}
	c.Make = func(tb testing.TB, s *Server, l tiered.Limit) Decide {
		if down {
			return s.without(tb, p, l)
		}
		return decideBy(tb, s.limiter(tb, p, l, patient), down)
	}
	return c
}

// without returns a limiter that has lost its Redis and has opened its breaker. Before that, each
// decision checks whether to try again, and that is not what is measured.
func (s *Server) without(tb testing.TB, p tiered.Policy, l tiered.Limit) Decide {
	s.Kill()
	var open atomic.Bool
	decide := decideBy(tb, s.limiter(tb, p, l, tiered.Options{
		Trace: &tiered.Trace{State: func(e tiered.Event) { open.Store(open.Load() || e.What == "open") }},
	}), true)
	for end := time.Now().Add(settleTime); !open.Load(); time.Sleep(time.Millisecond) {
		if decide(context.Background(), "stranger"); time.Now().After(end) {
			tb.Fatalf("the breaker is not open after %v", settleTime)
		}
	}
	return decide
}

// limiter returns one process' limiter on the server.
func (s *Server) limiter(tb testing.TB, p tiered.Policy, l tiered.Limit, o tiered.Options) *tiered.Limiter {
	tb.Helper()
	p.Limit = l
	p.Name, o.MaxKeys, o.Logger = "bench", maxKeys, slog.New(slog.DiscardHandler)
	limiter, err := tiered.New(s.ownStore(tb), p, &o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = limiter.Close(ctx) // what it does not give back goes with the server
	})
	return limiter
}

// decideBy turns a limiter into a contestant. Without Redis the fail mode must decide, and with it
// never.
func decideBy(tb testing.TB, l *tiered.Limiter, down bool) Decide {
	return byTier(tb, down, l.Allow)
}

func byTier(tb testing.TB, down bool, allow func(context.Context, string) tiered.Decision) Decide {
	var byTier [8]Answer
	for i := range byTier {
		byTier[i] = Failed
	}
	if down {
		byTier[tiered.Failover] = 0
	} else {
		byTier[tiered.Local], byTier[tiered.Remote] = 0, Asked
	}
	var wrong sync.Once
	return func(ctx context.Context, key string) Answer {
		d := allow(ctx, key)
		a := byTier[d.Tier&7]
		if a&Failed != 0 && !down {
			wrong.Do(func() { tb.Logf("the first decision that failed: tier %v, reason %v", d.Tier, d.Reason) })
		}
		if d.Allowed {
			a |= Admitted
		}
		return a
	}
}
