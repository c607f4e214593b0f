package benchmarks

import (
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestRatiosDeniedCommands has processes ask 10 000 times a second, each for an exhausted key of
// its own, for longer than a denial is believed: five seconds. They are measured side by side, as
// they have nothing to do but wait.
func TestRatiosDeniedCommands(t *testing.T) {
	forRatios(t)
	const processes, rate, length = 5, 10_000, 12 * time.Second
	perDecision := make([]float64, processes)
	subjects := make([]*Subject, processes)
	for i := range subjects {
		subjects[i] = Start(t, Ours, Denied)
	}
	var done sync.WaitGroup
	for i, s := range subjects {
		done.Go(func() {
			before := s.Server.commands(t)
			u := s.pace(rate, length)
			if err := s.check(u); err != nil {
				t.Error(err)
			}
			if want := rate * int(length.Seconds()); u.N < want*9/10 {
				t.Errorf("%d decisions in %v, to be %d", u.N, length, want)
			}
			perDecision[i] = float64(s.Server.commands(t)-before) / float64(u.N)
		})
	}
	done.Wait()
	some(t, "Redis commands per denied decision, one process, 10 000/s on one exhausted key of 100 per hour",
		ratio.Median(perDecision), 0.0005)
}

// pace makes so many decisions a second, by the clock and not by the ticks that it gets.
func (s *Subject) pace(rate int, length time.Duration) Usage {
	u := Usage{Goroutines: 1}
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for start := time.Now(); u.Wall < length; u.Wall = time.Since(start) {
		<-ticks.C
		due := int(time.Since(start).Seconds()*float64(rate)) - u.N
		for a, count := range s.Drive(1, due) {
			u.Tally[a] += count
		}
		u.N += due
	}
	return u
}

// TestRatiosRedisMemory fills Redis with buckets and divides what they take. A bucket's name is
// part of it: 16 bytes of key, and what the policy and the prefix add. The bounds are 5 % above
// what the format of the day took: the digits of a level vary by less, and a field more takes more.
func TestRatiosRedisMemory(t *testing.T) {
	forRatios(t)
	t.Run("direct", func(t *testing.T) {
		s := Start(t, Ours, Cold)
		const keys = 50_000
		perKey := s.Server.growth(t, keys, func() {
			s.walks = []*walk{tour(0, keys/2), tour(keys/2, keys)}
			// Twice: from then on a level is a fraction, which has more digits.
			if tally := s.Drive(2, 2*keys); tally.With(Asked) != 2*keys || tally.With(Admitted) != 2*keys {
				t.Fatalf("of %d tokens %d were taken directly", 2*keys, tally.With(Asked))
			}
		})
		atMost(t, "bytes in Redis per direct bucket, keys of 16 bytes", perKey, 240)
	})
	t.Run("leased", func(t *testing.T) {
		const keys, processes = 4_000, 10
		server := StartServer(t)
		policy := tiered.Policy{Lease: tiered.Lease{Size: 1 << 10, Period: time.Minute}}
		var all []*Subject
		for range processes {
			l := server.limiter(t, policy, stock, patient)
			s := &Subject{
				Contestant: Contestant{Ours: true}, Load: Load{Keys: keys}, decide: decideBy(t, l, false),
				walks: []*walk{tour(keys, keys+1)},
			}
			s.Drive(1, 1) // connects, and says that it is there
			s.walks = tours(0, keys)
			all = append(all, s)
		}
		perKey := server.growth(t, keys, func() {
			for _, s := range all {
				fatal.If(t, s.settle())
			}
		})
		server.mustLease(t, keys, processes)
		atMost(t, "bytes in Redis per bucket leased by 10 processes, keys of 16 bytes", perKey, 945)
	})
}
