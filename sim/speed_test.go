package sim

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// cpu is the processor time that this program has taken, by now.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// How long the virtual engine takes, printed; the bounds are for two processors that have other things to do as well.
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
			if testing.Short() && c.processes > 50 {
				t.Skip("takes up to a minute")
			}
			start, busy := time.Now(), cpu(t)
			r := rehearse(t, fmt.Sprintf("name \"speed\"\nlimit api rate=1000/s\nfleet n=%d\ntraffic poisson rate=1500/s\nrun %s\n",
				c.processes, c.length), nil)
			wall, busy := time.Since(start), cpu(t)-busy
			t.Logf("%.1f s, %.1f s of processors: %d requests at %.1f µs, %d calls/s; unseed %s",
				wall.Seconds(), busy.Seconds(), r.Metrics.Offered, float64(wall.Microseconds())/float64(r.Metrics.Offered), int64(r.Metrics.RedisCalls), r.Unseed)
			if wall > 3*c.most {
				t.Errorf("took %v, more than three times %v", wall, c.most)
			}
		})
	}
}
