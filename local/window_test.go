package local_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// What was admitted in an outage is reported in pieces, each with the time of its last admission,
// the latest first, and what no window counts any more not at all. A fixed window has one piece,
// because it does not matter where in it that is.
func TestWindowDebtIsReportedWhereItCounts(t *testing.T) {
	for _, c := range []struct {
		algorithm lua.Algorithm
		want      [][2]int64 // tokens, and the second
	}{
		{lua.FixedWindow, [][2]int64{{75, 200}}}, // it began at 150, which is when the first of the three pieces ended
		{lua.SlidingWindow, [][2]int64{{25, 200}, {25, 175}, {25, 150}, {25, 125}}},
		{lua.SlidingLog, [][2]int64{{25, 200}, {25, 175}, {25, 150}, {25, 125}}},
	} {
		for _, mode := range []local.FailMode{local.FailLocal, local.FailOpen} {
			r := newRig(t, local.Policy{
				Cap: 1000, Tokens: 1000, Per: 100 * time.Second, FailMode: mode,
				Call: lua.Call{Algorithm: c.algorithm, Period: 100e6, Span: 1},
			})
			start := r.now
			for range 200 {
				r.now += time.Second
				r.b.ByFailMode(r.now, 1, 1)
			}
			r.now += 100 * ms
			r.b.Probe()
			var got [][2]int64
			for len(got) < 9 {
				r.seq++
				call, _ := r.b.Begin(r.now, local.Conditions{
					Seq: r.seq, Lease: "me", Clock: true, Server: 1e15 + (r.now - start).Microseconds(), Phase: 50e6, Fleet: 1,
				})
				if call.Debt == 0 {
					break
				}
				got = append(got, [2]int64{call.Debt, (call.Since - 1e15) / 1e6})
				if e, ok := r.b.Accept(r.now, call.Seq, lua.Reply{Epoch: 1, Stamp: 1}); !ok || !e.Send {
					break
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, algorithm %d: tokens and seconds %v, want %v", mode, c.algorithm, got, c.want)
			}
			if s := r.balance(); s.Settled != 200 || owed(r.b) != (due{}) {
				t.Errorf("%v, algorithm %d: %d settled of 200, %+v owed", mode, c.algorithm, s.Settled, owed(r.b))
			}
		}
	}
}

// A refund names the oldest of its stamps, whichever came first: a newer one would give back more
// than counts there. Stamps of two buckets do not go together: what was counted by one that is not
// there any more is given back to none.
func TestRefundNamesItsOldestStamp(t *testing.T) {
	for _, c := range []struct {
		name      string
		at, epoch [2]int64 // of two requests for 2 and 3 tokens, which come back in this order
		want      [3]int64 // refund, at, epoch
	}{
		{"older first", [2]int64{10, 20}, [2]int64{1, 1}, [3]int64{5, 10, 1}},
		{"newer first", [2]int64{20, 10}, [2]int64{1, 1}, [3]int64{5, 10, 1}},
		{"made anew meanwhile", [2]int64{10, 20}, [2]int64{1, 2}, [3]int64{2, 10, 1}},
	} {
		r := newRig(t, local.Policy{
			Cap: 10, Tokens: 10, Per: time.Minute, Call: lua.Call{Algorithm: lua.FixedWindow, Period: 60e6},
			NoLease: true,
		})
		var stamps [2]*local.Stamp
		for i, n := range []int64{2, 3} {
			w, _, _ := r.ask(n)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: n, Level: 5, Which: 1, Stamp: c.at[i], Epoch: c.epoch[i]})
			r.expect(w, local.Granted)
			stamps[i] = w.Stamp
		}
		for i, n := range []int64{2, 3} {
			r.b.Return(r.now, n, local.FromRedis, r.b.Generation(), stamps[i])
		}
		r.b.Probe()
		got := r.begin()
		if got := [3]int64{got.Refund, got.At, got.Epoch}; got != c.want {
			t.Errorf("%s: refund, stamp and epoch %d, want %d", c.name, got, c.want)
		}
		r.balance()
	}
}

// A lease that ends with its fixed window cannot be prolonged, so no call tries to; and at the
// edge, when the whole limit is there again, nothing that was learned before denies it.
func TestAtTheEdgeOfAFixedWindow(t *testing.T) {
	for _, c := range []struct {
		name    string
		window  time.Duration // of a sliding window
		left    time.Duration // of the lease
		grant   int64
		check   time.Duration // from the reply on
		holdOff time.Duration // likewise
	}{
		{name: "far from the edge", left: time.Second, grant: 100, check: 500 * ms},
		{name: "near the edge", left: 200 * ms, grant: 100, check: 500 * ms}, // when it may lie idle
		{name: "a sliding window's replay", window: time.Minute, left: 200 * ms, grant: 100, check: 10 * ms},
		{name: "short, far from the edge", left: time.Second, grant: 9, holdOff: 249 * ms},
		{name: "short, near the edge", left: 200 * ms, grant: 9, holdOff: 200 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, local.Policy{
				Cap: 1000, Tokens: 1000, Per: 10 * time.Second,
				Call: lua.Call{Algorithm: lua.FixedWindow, Period: 10e6}, Window: c.window,
			})
			r.b.SetDemand(100)
			r.ask(8)
			r.ask(1)
			call := r.begin()
			if call.Want <= 9 || call.TTL != us(time.Second) {
				t.Fatalf("%+v", call)
			}
			r.now += ms
			e, ok := r.b.Accept(r.now, call.Seq, lua.Reply{Grant: min(c.grant, call.Want), Active: 2, TTLLeft: us(c.left)})
			if !ok {
				t.Fatal("not accepted")
			}
			if c.check > 0 && e.Check != r.now+c.check {
				t.Errorf("looked at again in %v, want %v", e.Check-r.now, c.check)
			}
			if off := r.b.HoldOff(); c.holdOff > 0 && off != r.now+c.holdOff {
				t.Errorf("a hold-off of %v, want %v", off-r.now, c.holdOff)
			}
		})
	}
}
