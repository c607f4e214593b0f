package remote_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestServerTime lets fleets of well-behaved processes live by the engines' own clocks, as in production. What they
// are answered depends on the µs, so no two engines agree; what must hold of every answer is checked instead. The
// round trips are what time passes by: leases of a few ms end between two calls, and a thousand tokens per second
// are one per step.
func TestServerTime(t *testing.T) {
	began, all := time.Now(), engines(t)
	all[1].mini.ClockTTL(true)
	seen := make([]census, len(all))
	for i := range seen {
		seen[i] = make(census)
	}
	fleets := 0
	rapid.Check(t, func(t *rapid.T) {
		fleets++
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
		limit := lua.Call{Bucket: fmt.Sprintf("{time/%d}tb2", fleets), Period: 1e6, Fleet: 1}
		limit.Cap = []int64{5, 20, 1, 100}[draw(4)]
		limit.Tokens = []int64{1000, 20_000, 100}[draw(3)]
		limit.TTL = []int64{3000, 30_000, 1000, 10e6}[draw(4)]
		greedy, live := draw(3) == 2, make([]*liveFleet, len(all))
		for i, e := range all {
			live[i] = newLiveFleet(e, began, limit, greedy, seen[i])
		}
		t.Repeat(map[string]func(*rapid.T){"step": func(t *rapid.T) {
			what, who, amount, chance := draw(12), draw(liveProcesses), int64(draw(1<<20)), draw(4)
			for _, f := range live { // the same draws for all, whatever they answer
				if f.step(t, what, who, amount, chance); f.fault != "" {
					t.Fatalf("%s: %s after\n%s", f.engine.name, f.fault, f.log)
				}
			}
		}})
	})
	for i, e := range all {
		t.Logf("%s, %d fleets: %v", e.name, fleets, seen[i])
		if testing.Short() { // a tenth of the steps: chance alone may leave something out
			continue
		}
		for _, kind := range liveKinds {
			if seen[i][kind] < few {
				t.Errorf("%s, %s: %d times in %d steps, want %d", e.name, kind, seen[i][kind], seen[i][anything], few)
			}
		}
	}
}

// TestServerForgets lets a key's time to live run out by the engine's own clock: the bucket is there as long as was
// promised, and then a new one is, full and of another epoch. It takes the second of margin that a key is given.
func TestServerForgets(t *testing.T) {
	all := engines(t)
	all[1].mini.ClockTTL(true)
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			c := lua.Call{
				Bucket: "{time/end}tb2", Cap: 10, Tokens: 1, Period: 1000, TTL: 1000, Fleet: 1,
				Lease: "A", Seq: 1, Want: 10,
			}
			a := e.call(t, c)
			if a.reply.Grant != 10 || a.reply.Flags != lua.Created {
				t.Fatal(a)
			}
			began := time.Now()
			until := began.UnixMilli() + e.look(t, c.Bucket).pttl
			for e.look(t, c.Bucket).fields != nil {
				if time.Since(began) > 30*time.Second {
					t.Fatalf("the key is still there, its end was %d ms ago", time.Now().UnixMilli()-until)
				}
				time.Sleep(time.Millisecond) // a real clock: there is nothing else to wait on
			}
			// 1 ms, as Memory counts whole ms of a clock of its own.
			if early := until - time.Now().UnixMilli(); early > 1 {
				t.Errorf("the key is gone %d ms before its end", early)
			}
			c.Seq, c.Ack, c.Epoch = 2, 1, a.reply.Epoch
			a = e.call(t, c)
			r := a.reply
			if r.Grant != 10 || r.Flags != lua.Created|lua.OtherEpoch|lua.Unrecorded || r.Epoch != r.Now ||
				r.Now <= c.Epoch {
				t.Errorf("after the end: %v", a)
			}
		})
	}
}
