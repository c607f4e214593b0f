package tiered

import (
	"flag"
	"math"
	"strconv"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

var hotKey = flag.String("hot-key", "", "measure shards in full, and write the table into this `file`")

// TestHotKey makes the table of what shards are worth: fleets in virtual time that share one key of 1000/s and a
// burst of 200, with one bucket, with shards of which each process has one, and with the second that it really has.
// What counts is what is admitted, as a part of what one ideal bucket admits: the worst of the seeds, for a seed is
// also a way to spread the processes. Calls are those of the busiest bucket's Redis, if each had one of its own.
//
// It holds the lines that make shards worth having. Without -hot-key it makes fewer of them, shorter.
func TestHotKey(t *testing.T) {
	if underRace {
		t.Skip("its loads run in other tests")
	}
	full := *hotKey != ""
	seeds, length := uint64(1), 3*second
	if full {
		seeds, length = 3, 12*second
	}
	rows := [][]string{{
		"processes", "taken", "demand", "one bucket", "calls/s", "shards", "its own only", "with a second",
		"calls/s, all shards",
	}}
	for _, processes := range []int{10, 100} {
		for _, lease := range []Lease{{Size: NoLease}, {}} {
			taken := "directly"
			if lease.Size == 0 {
				taken = "by lease"
			}
			for _, demand := range []float64{0.8, 1.5} {
				for _, k := range []int{4, 8} {
					if !full && (k == 8 || processes == 100 && demand == 1.5) {
						continue
					}
					f := fleetRun{
						processes: processes, limit: thousand, demand: demand, lease: lease,
						mode: FailClosed, trip: roundTrip, length: length,
					}
					one := f.runs(t, seeds)
					f.shards = k
					both := f.runs(t, seeds)
					f.pinned = true
					own := f.runs(t, seeds)
					use := func(all []figures) float64 { return least(all, figures.use) / median(one, figures.use) }
					rows = append(rows, []string{
						strconv.Itoa(processes), taken, strconv.FormatFloat(demand, 'f', 1, 64),
						cell(one, 3, figures.use), cell(one, 0, figures.load), strconv.Itoa(k),
						strconv.FormatFloat(use(own), 'f', 3, 64), strconv.FormatFloat(use(both), 'f', 3, 64),
						cell(both, 0, figures.load),
					})
					for _, all := range [][]figures{one, both, own} {
						if over := most(all, figures.excess); over > 0 {
							t.Errorf("%d processes, %d shards: %v tokens over the bound", processes, k, over)
						}
					}
					if use(both) < use(own) || use(own) < 0.95 && use(both) < use(own)+0.05 {
						t.Errorf("%d processes, %d shards: a second shard admits %.3f, without it %.3f", processes, k,
							use(both), use(own))
					}
					if processes == 100 && k == 4 && use(both) < 0.97 {
						t.Errorf("100 processes, %d shards: %.3f of what one bucket admits", k, use(both))
					}
				}
			}
		}
	}
	text := section.Table(rows)
	t.Log("\n" + text)
	if full {
		if err := section.Write(*hotKey, "hot-key", text); err != nil {
			t.Fatal(err)
		}
	}
}

func least(all []figures, of func(figures) float64) float64 {
	x := math.Inf(1)
	for _, m := range all {
		x = min(x, of(m))
	}
	return x
}
