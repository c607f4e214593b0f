package promlimit_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A round of TestRatiosScrape is tries turns with a scrape and as many without, one after the
// other.
const (
	rounds = 31
	tries  = 5
	turn   = 100 * time.Millisecond
	second = time.Second / turn // turns
	keys   = 10_000             // that a scrape walks

	processors = 2
)

// A scrape every second does not slow decisions about a hot key down. It is a line of `make
// ratios`, and takes half a minute.
//
// Of a round the fastest turn of each kind counts, because other load on the machine only makes
// turns longer. A second with a scrape is a turn with it and nine without. The garbage of a scrape
// is collected in the same turn, by a whole collection, which is more than a scrape causes.
func TestRatiosScrape(t *testing.T) {
	if os.Getenv("TIERED_TEST_RATIOS") == "" {
		t.Skip("takes half a minute: make ratios, or TIERED_TEST_RATIOS=1")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerSecond(1_000_000_000)})
	l := testgroup.Of(t, g, "api")
	for i := range keys {
		l.Allow(t.Context(), strconv.Itoa(i))
	}
	r := register(t, promlimit.NewCollector(g))
	scraped := make(chan time.Duration)
	shortest := time.Hour
	with := func() float64 {
		go func() {
			begin := time.Now()
			if _, err := r.Gather(); err != nil {
				t.Error(err)
			}
			took := time.Since(begin)
			runtime.GC()
			scraped <- took
		}()
		ns := nsPerDecision(l)
		shortest = min(shortest, <-scraped)
		return ns
	}
	for range second {
		nsPerDecision(l) // until it has a lease
	}
	var quotients []float64
	for i := range rounds {
		a, b := math.Inf(1), math.Inf(1)
		for k := range tries {
			if (i+k)%2 == 0 {
				a = min(a, with())
			}
			b = min(b, nsPerDecision(l))
			if (i+k)%2 != 0 {
				a = min(a, with())
			}
		}
		quotients = append(quotients, (a+float64(second-1)*b)/(float64(second)*b))
	}
	if shortest > turn {
		t.Errorf("a scrape took %v or more: it does not fit into a turn of %v", shortest, turn)
	}
	slices.Sort(quotients)
	t.Logf("quotients from %.3f to %.3f; a scrape of %d keys took %v or more",
		quotients[0], quotients[rounds-1], keys, shortest)
	line := ratio.Line{
		Name: "hot key: a scrape every second ÷ none, ns per decision", Value: quotients[rounds/2], Bound: 1.05,
	}
	fmt.Println(line)
	if !line.Holds() {
		t.Errorf("%s is %v, which misses its bound", line.Name, line.Value)
	}
}

// nsPerDecision asks for a hot key on each processor for a turn, so that a scrape takes its time
// from decisions.
func nsPerDecision(l *tiered.Limiter) float64 {
	const batch = 100
	var total atomic.Int64
	var work sync.WaitGroup
	begin := time.Now()
	for i := range processors {
		work.Go(func() {
			n, key := 0, "hot"+strconv.Itoa(i)
			for time.Since(begin) < turn {
				for range batch {
					l.Allow(context.Background(), key)
				}
				n += batch
			}
			total.Add(int64(n))
		})
	}
	work.Wait()
	return processors * float64(time.Since(begin).Nanoseconds()) / float64(total.Load())
}
