package sim

import (
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// long has the tests of speed, of determinism and of live faults take the minutes that they need: make hunt
// HUNT=speed, make pages PAGE=engines.
var long = flag.Bool("long", false, "run the tests of speed and determinism in full: minutes")

// cpu is the processor time that this program has taken, by now.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// How long the virtual engine takes, printed. What is held to a bound is the time of processors, which those who
// share the machine change little: two of them are to be ready in time.
func TestSpeed(t *testing.T) {
	for _, c := range []struct {
		processes int
		length    string
		most      time.Duration
	}{
		{50, "60s", 2 * time.Second},
		{2000, "60s", 30 * time.Second},
		{100, "1h", 120 * time.Second},
	} {
		t.Run(fmt.Sprintf("%d processes for %s", c.processes, c.length), func(t *testing.T) {
			if c.processes > 50 && !*long {
				t.Skip("takes up to a minute: make hunt HUNT=speed")
			}
			start, busy := time.Now(), cpu(t)
			r := rehearse(t, fmt.Sprintf("name \"speed\"\nlimit api rate=1000/s\nfleet n=%d\ntraffic poisson rate=1500/s\nrun %s\n",
				c.processes, c.length), nil)
			wall, busy := time.Since(start), cpu(t)-busy
			t.Logf("%.1f s, %.1f s of processors: %d requests at %.1f µs, %d calls/s; unseed %s",
				wall.Seconds(), busy.Seconds(), r.Metrics.Offered,
				float64(wall.Microseconds())/float64(r.Metrics.Offered), int64(r.Metrics.RedisCalls), r.Unseed)
			if busy > 2*c.most && !underRace {
				t.Errorf("took %v of processors: more than two have in %v", busy, c.most)
			}
		})
	}
}
