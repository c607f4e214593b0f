package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A reset that Redis did not carry out is made once more, and is an error if it was not carried out then either.
func TestUnappliedResetIsMadeOnceMore(t *testing.T) {
	for _, c := range []struct {
		name      string
		algorithm lua.Algorithm
		replies   []bool // unapplied
		outcome   local.Outcome
	}{
		{"at once", lua.TokenBucket, []bool{false}, local.Admitted},
		{"once more", lua.TokenBucket, []bool{true, false}, local.Admitted},
		{"twice in vain", lua.TokenBucket, []bool{true, true}, local.Failed},
		{"once more, of a window", lua.FixedWindow, []bool{true, false}, local.Admitted},
		{"twice in vain, of a window", lua.FixedWindow, []bool{true, true}, local.Failed},
		{"once more, of several buckets", lua.TokenBuckets, []bool{true, false}, local.Admitted},
		{"of a log", lua.SlidingLog, []bool{false}, local.Admitted},
	} {
		r := newRig(t, local.Policy{
			Cap: 100, Tokens: 100, Call: lua.Call{Algorithm: c.algorithm},
			NoLease: c.algorithm == lua.SlidingLog,
		})
		w := local.NewWaiter()
		_, e := r.b.Credit(w, local.Fill)
		for i, unapplied := range c.replies {
			if !e.Send || len(w.C) > 0 {
				t.Fatalf("%s: %d of %d calls", c.name, i, len(c.replies))
			}
			r.seq++
			call, _ := r.b.Begin(r.now, local.Conditions{
				Seq: r.seq, Lease: "me", Clock: true, Server: 1e9, RoundTrip: ms,
				Fleet: 1,
			})
			if call.Refund == 0 && call.Reset == 0 {
				t.Fatalf("%s: %+v resets nothing", c.name, call)
			}
			e, _ = r.b.Accept(r.now, call.Seq, lua.Reply{
				Level: 90, TTLLeft: us(time.Second), Epoch: 1,
				Flags: flags(unapplied),
			})
		}
		r.expect(w, c.outcome)
		if e.Send {
			t.Errorf("%s: it is made again", c.name)
		}
		if s := r.balance(); s.Returned+s.Burnt > 0 {
			t.Errorf("%s: %+v", c.name, s)
		}
		if r.b.Pending() {
			t.Errorf("%s: something is still pending", c.name)
		}
	}
}

// What Redis did not take back is burnt and not returned, and is not sent again: a copy of its call could count too.
func TestUnappliedRefundIsBurnt(t *testing.T) {
	for _, algorithm := range []lua.Algorithm{lua.TokenBucket, lua.TokenBuckets, lua.FixedWindow, lua.SlidingLog} {
		for _, unapplied := range []bool{false, true} {
			r := newRig(t, local.Policy{
				Cap: 100, Tokens: 100, Per: time.Hour, Call: lua.Call{Algorithm: algorithm},
				NoLease: true,
			})
			w, _, _ := r.ask(5)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 5, Level: 95, Epoch: 1, Stamp: 7})
			stamp := r.expect(w, local.Admitted).Stamp
			r.b.Return(r.now, 3, local.FromRedis, r.b.Generation(), stamp)
			r.now += local.RefundDelay
			if e := r.b.Check(r.now); !e.Send && algorithm != lua.SlidingLog {
				t.Fatalf("algorithm %d: nothing is sent", algorithm)
			}
			call := r.begin()
			if call.Refund+call.SettledNow() != 3 {
				t.Fatalf("algorithm %d: %+v", algorithm, call)
			}
			r.b.Accept(r.now, call.Seq, lua.Reply{
				Level: 98, Epoch: 1, TTLLeft: us(time.Second),
				Flags: flags(unapplied),
			})
			s := r.balance()
			if unapplied && (s.Burnt != 3 || s.Returned != 0) || !unapplied && (s.Burnt != 0 || s.Returned != 3) ||
				s.Held > 0 {
				t.Errorf("algorithm %d, unapplied %t: %+v", algorithm, unapplied, s)
			}
			r.now += time.Second
			r.b.Probe()
			if again := r.begin(); again.Refund > 0 {
				t.Errorf("algorithm %d, unapplied %t: refunded again: %+v", algorithm, unapplied, again)
			}
		}
	}
}

func flags(unapplied bool) lua.Flags {
	if unapplied {
		return lua.Unapplied
	}
	return 0
}
