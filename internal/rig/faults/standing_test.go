package faults

import (
	"math"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestStandingSharesAcrossProcesses runs real processes with standing shares: keys far below their limit, near it and at
// three times it. The fleet grows from 4 to 12 and shrinks again, two processes are killed, and the table of fractions is
// deleted. No interval admits more than a limit allows, and the rarely used key costs Redis almost nothing.
func TestStandingSharesAcrossProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("two minutes of real time")
	}
	t.Parallel()
	const few, many = 4, 12
	server := redistest.Start(t)
	f := &standingFleet{T: t, job: fleet.Job{URL: server.URL(), Loads: standingLoads(few)}}
	f.start(few)
	time.Sleep(85 * time.Second) // the quarantine, and time to fill the shares
	client := server.Client()
	before := server.Calls(client, "evalsha")
	time.Sleep(6 * time.Second)
	inUse := server.Calls(client, "evalsha") - before
	f.start(many - few)
	time.Sleep(10 * time.Second)
	f.all[0].Kill()
	f.all[5].Kill()
	time.Sleep(4 * time.Second)
	table, err := client.Keys(t.Context(), "*st1").Result()
	if err != nil || len(table) != 1 {
		t.Fatalf("tables %v, %v", table, err)
	}
	if err := client.Del(t.Context(), table[0]).Err(); err != nil {
		t.Fatal(err)
	}
	f.start(1) // it is the first to ask a new table
	time.Sleep(6 * time.Second)
	for _, m := range f.all[6:] {
		m.Stop() // one after the other
	}
	time.Sleep(5 * time.Second)
	taken, lag := map[string]int64{}, time.Duration(0)
	for m, r := range f.all.Stop() {
		lag = max(lag, r.Lag)
		for name, p := range r.Stats.Policies {
			taken[name] += p.Standing
		}
		if s := r.Stats.Standing; m != f.all[0] && s.Fraction > 0.5 {
			t.Errorf("a process has %v of the shares", s.Fraction)
		}
	}
	for _, l := range f.job.Loads {
		requests := f.all.Records(l.Name)
		v := fleet.Judge(requests, l.Limit)
		t.Logf("%s: %d requests in %.0f s, %d admitted, an ideal bucket %d, %d by standing shares; over-admission %.0f; "+
			"tightest interval: %v", l.Name, len(requests), v.Length.Seconds(), v.Admitted, v.Ideal, taken[l.Name],
			max(0, math.Ceil(v.Over())), v.Worst)
		if v.Over() > 0 {
			t.Errorf("%s: over-admission: %v", l.Name, v.Worst)
		}
		if taken[l.Name] == 0 {
			t.Errorf("%s: nothing came from standing shares", l.Name)
		}
		if l.Name == "rare" && v.Admitted < v.Ideal && lag <= busy { // otherwise a call may take longer than Budget
			t.Errorf("rare: %d refused that an ideal bucket admits", v.Ideal-v.Admitted)
		}
	}
	t.Logf("%d script calls in 6 s with all shares in use; lag %v", inUse, lag)
}

// standingLoads are what each of n processes offers: keys far below their limit, near it and at three times it, and one
// whose bucket is full every 2 s and is then emptied within 0.8 s. Only that one shows a token too many in short time.
func standingLoads(n int) []fleet.Load {
	load := func(name string, limit tiered.Limit, offer float64) fleet.Load {
		return fleet.Load{
			Policy: tiered.Policy{Name: name, Limit: limit, FailMode: tiered.FailClosed, Standing: tiered.StandingOn},
			Offer:  offer / float64(n),
		}
	}
	limit := tiered.PerSecond(100).WithBurst(200)
	surges := load("surges", tiered.PerSecond(100).WithBurst(96), 130)
	surges.Surges = true
	return []fleet.Load{load("rare", limit, 2), load("near", limit, 80), load("over", limit, 300), surges}
}
