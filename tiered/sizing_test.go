package tiered_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var sizing = flag.Bool("sizing", false, "run the loads of TestSizing and print their figures")

// TestSizing runs the loads that the constants of the sizing are judged by, and prints
// "load<TAB>figure<TAB>value". Run it before and after a change of a constant:
// docs/internals/sizing.md.
func TestSizing(t *testing.T) {
	if !*sizing {
		t.Skip("-args -sizing")
	}
	type figure struct {
		name string
		of   func(figures) float64
	}
	// What a figure is called says its unit. Digits are those that differ between seeds.
	use := figure{"utilisation %", func(m figures) float64 { return 100 * m.utilisation }}
	calls := figure{"calls per 1000 decisions", func(m figures) float64 { return 1000 * m.perDecision }}
	price := figure{"calls per 1000 tokens", func(m figures) float64 { return 1000 * m.perToken }}
	waited := figure{"waited per million", figures.waits}
	parked := figure{"most parked in one process, % of the burst", func(m figures) float64 { return 100 * m.parked }}
	burnt := figure{"burnt per million tokens", func(m figures) float64 { return m.burnt }}
	pageful := tiered.PerSecond(100).WithBurst(200)
	for _, c := range []struct {
		name    string
		run     fleetRun
		figures []figure
	}{
		{"0.8 of 20000 per s", fleetRun{limit: roomy, demand: 0.8, tail: true}, []figure{calls, waited, parked}},
		{
			"0.8 of 20000 per s, burst 80000",
			fleetRun{limit: tiered.PerSecond(20_000).WithBurst(80_000), demand: 0.8},
			[]figure{calls, waited, parked},
		},
		{"0.8 of 20000 per s, stalls", fleetRun{limit: roomy, demand: 0.8, stalls: true}, []figure{waited}},
		{"0.8 of 20000 per s, burst 4000, stalls", fleetRun{
			limit: tiered.PerSecond(20_000).WithBurst(4000), demand: 0.8, stalls: true,
		}, []figure{calls, waited}},
		{"0.8 of 1000 per s", fleetRun{limit: tiered.PerSecond(1000), demand: 0.8, tail: true}, []figure{calls, waited}},
		{"0.95 of 1000 per s, burst 200", fleetRun{limit: thousand, demand: 0.95}, []figure{use, calls, waited}},
		{
			"3 times 1000 per s, burst 200",
			fleetRun{limit: thousand, demand: 3, length: 30 * second},
			[]figure{use, price, parked},
		},
		{"3 times 10 per s", fleetRun{limit: tiered.PerSecond(10), demand: 3, length: 60 * second}, []figure{use, price}},
		{
			"0.9 of 40 per s",
			fleetRun{limit: tiered.PerSecond(40), demand: 0.9, length: 60 * second},
			[]figure{use, calls, waited},
		},
		{
			"1.2 times 10 per s, moving",
			fleetRun{limit: tiered.PerSecond(10), demand: 1.2, hot: true, length: 60 * second},
			[]figure{use},
		},
		{
			"1.2 times 1000 per s, burst 200, moving",
			fleetRun{limit: thousand, demand: 1.2, hot: true},
			[]figure{use, price},
		},
		{
			"0.8 of 1000 per s, burst 200, moving",
			fleetRun{limit: thousand, demand: 0.8, hot: true},
			[]figure{use, calls, waited},
		},
		{
			"surges, burst 200",
			fleetRun{limit: thousand, demand: 3, surges: true, length: 30 * second},
			[]figure{use, price},
		},
		{
			"surges, burst 1000",
			fleetRun{limit: tiered.PerSecond(1000), demand: 3, surges: true, length: 30 * second},
			[]figure{use, price, burnt},
		},
		// 6 requests/s and key in each process: 1.5 in a period of 250 ms.
		{
			"6 per s, key and process",
			fleetRun{limit: pageful, demand: 0.6 * 20, keys: 20, length: 30 * second},
			[]figure{calls, waited, burnt},
		},
		{"far away, short period", fleetRun{
			limit: roomy, demand: 0.8, trip: 15 * ms, tail: true, lease: tiered.Lease{Period: 20 * ms},
		}, []figure{calls, waited, use}},
		{"tiny burst", fleetRun{limit: tiered.PerSecond(1000).WithBurst(8), demand: 0.8}, []figure{use, calls}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.run
			f.processes, f.mode, f.watch = 10, tiered.FailClosed, true
			if f.trip == 0 {
				f.trip = roundTrip
			}
			if f.length == 0 {
				f.length = 12 * second
			}
			all := f.runs(t, 5)
			if over := most(all, figures.excess); over > 0 {
				t.Errorf("%.0f tokens over the bound", over)
			}
			for _, g := range c.figures {
				fmt.Printf("%s\t%s\t%v\n", c.name, g.name, median(all, g.of))
			}
		})
	}
	t.Run("a denied key", func(t *testing.T) {
		f := fleetRun{
			processes: 1, limit: tiered.PerHour(100), demand: 36_000, mode: tiered.FailClosed, trip: roundTrip,
			length: 60 * second,
		}
		fmt.Printf("a denied key\tcalls per s\t%v\n", median(f.runs(t, 5), figures.load))
	})
	t.Run("canceled reservations", func(t *testing.T) {
		calls, away := canceled(t)
		fmt.Printf("canceled reservations\tcalls per reservation\t%v\n", calls)
		fmt.Printf("canceled reservations\tms until the token is back\t%v\n", away)
	})
}

// canceled makes reservations of a key without leases, 20/s at random times, and cancels each after
// 5 ms. It reports the calls per reservation, and how long a canceled token stays away, by Little's
// law.
func canceled(t *testing.T) (calls, away float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		store := newDistant(roundTrip)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(1).WithBurst(n), Lease: neverLeased}, nil)
		random := rand.New(rand.NewPCG(1, 1))
		var all sync.WaitGroup
		var since time.Duration // of what is away, all together
		over, end := context.WithCancel(ctx)
		all.Go(func() {
			for last := time.Now(); over.Err() == nil; {
				time.Sleep(ms)
				since += time.Duration(l.Stats().Leases.Held) * time.Since(last)
				last = time.Now()
			}
		})
		for range n {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(50*ms)))
			all.Go(func() {
				r := l.ReserveN(ctx, "k", 1)
				time.Sleep(5 * ms)
				r.Cancel()
			})
		}
		time.Sleep(second)
		end()
		all.Wait()
		calls = float64(store.calls.Load()) / n
		away = since.Seconds() * 1000 / n
	})
	return calls, away
}
