package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestReturnGoesIntoThePotOnlyIfNothingLeft(t *testing.T) {
	for _, c := range []struct {
		name      string
		source    local.Source
		meanwhile func(r *rig)
		pot       int64 // more than before
		refund    int64
		burnt     int64
	}{
		{"at once", local.FromLease, func(*rig) {}, 3, 0, 0},
		{"others took meanwhile", local.FromLease, func(r *rig) { r.b.Hot().Take(r.now, 2) }, 1, 0, 0},
		{"a direct take", local.FromRedis, func(*rig) {}, 0, 3, 0},
		{"a renewal left", local.FromLease, func(r *rig) { r.ask(20); r.begin() }, 0, 3, 0},
		{"a renewal left and failed", local.FromLease, func(r *rig) { r.ask(20); r.b.Fail(r.now, r.begin().Seq, false) }, 0, 3, 0},
		{"the lease went back", local.FromLease, func(r *rig) {
			e := r.b.Check(r.now) // used since the last look: that counts from now on
			r.now = e.Check
			r.b.Check(r.now)
			r.begin()
		}, -7, 3, 0},
		{
			"the lease is over", local.FromLease, func(r *rig) { r.now = r.b.Deadline() }, 0, 3,
			0,
		},
		{"the lease was given up", local.FromLease, func(r *rig) { r.b.Expire(r.now) }, -7, 0, 10},
		{"its lease id was given up", local.FromRedis, func(r *rig) { r.b.Expire(r.now) }, -7, 0, 10},
		{"burnt under way", local.FromLease, func(r *rig) {
			r.now += 100 * ms
			r.ask(20)
			call := r.begin()
			r.now = r.b.Deadline()
			// and all 20 went to the line
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: 20, TTLLeft: us(2 * time.Second)})
		}, -7, 3, 7},
		{"burnt after it was taken under way", local.FromLease, nil, -7, 3, 7},
		{"evicted and gone", local.FromLease, func(r *rig) { r.b.Burn(r.now) }, -7, 0, 7}, // and its key is looked up again
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, local.Policy{Cap: 1000, Tokens: 1000})
			r.lease(10)
			var call local.Call
			if c.meanwhile == nil { // the call leaves, they are taken, the lease ends, and the reply brings another
				r.now += 100 * ms
				r.b.SetDemand(1000)
				r.b.Probe()
				call = r.begin()
			}
			gen := r.b.Generation()
			if _, ok, _ := r.b.Hot().Take(r.now, 3); !ok {
				t.Fatal("nothing to take")
			}
			if c.meanwhile != nil {
				c.meanwhile(r)
			} else {
				r.now = r.b.Deadline()
				r.b.Accept(r.now, call.Seq, lua.Reply{Grant: call.Want, TTLLeft: us(2 * time.Second)})
				r.b.Hot().Take(r.now, call.Want)
			}
			e, ok := r.b.Return(r.now, 3, c.source, gen, nil)
			if ok == r.b.Closed() {
				t.Errorf("closed %v, and it took them back: %v", r.b.Closed(), ok)
			}
			r.pot(7 + c.pot)
			if r.b.ToRefund() != c.refund || r.b.Stats().Burnt != c.burnt {
				t.Errorf("refund %d, burnt %d, want %d and %d", r.b.ToRefund(), r.b.Stats().Burnt,
					c.refund, c.burnt)
			}
			r.balance()
			if c.refund == 0 || r.b.Calling() || r.b.BackOff() > r.now { // then another event sends it
				return
			}
			if e.Check == 0 || e.Check > r.now+local.RefundDelay {
				t.Fatalf("%+v, want to be looked at within %v", e, local.RefundDelay)
			}
			r.now = e.Check
			if e = r.b.Check(r.now); !e.Send {
				t.Fatalf("%+v, want to be sent", e)
			}
			if call := r.begin(); call.Direct || call.Refund != 3 || call.Want != 0 {
				t.Fatalf("%+v, want a refund of 3", call)
			}
		})
	}
}

// Tokens that are not given back after all are burnt once: they are held no more, and no later
// refund pays for them.
func TestRefundThatIsGivenUpIsBurntOnce(t *testing.T) {
	for name, end := range map[string]func(r *rig){
		"its call is refused": func(r *rig) {
			r.b.Rejected(r.now, r.begin().Seq)
			r.now = r.b.BackOff()
			w, _, _ := r.ask(1) // and so is the next one, which carries nothing
			r.b.Rejected(r.now, r.begin().Seq)
			r.expect(w, local.Unavailable)
		},
		"its call is lost":           func(r *rig) { r.b.Fail(r.now, r.begin().Seq, false) },
		"the lease id ends under it": func(r *rig) { r.begin(); r.b.Expire(r.now) },
		"the lease id ends before":   func(r *rig) { r.b.Expire(r.now) },
		"the bucket closes before":   func(r *rig) { r.b.Burn(r.now) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, local.Policy{Cap: 100, Tokens: 100, Per: time.Hour, NoLease: true})
			r.ask(5)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 5, Level: 95, Epoch: 1})
			r.b.Return(r.now, 3, local.FromRedis, r.b.Generation(), nil)
			r.now += local.RefundDelay
			r.b.Check(r.now)
			end(r)
			if s := r.balance(); s.Burnt != 3 || s.Held != 0 || s.Spent != 2 {
				t.Errorf("%+v, want 2 spent and 3 burnt", s)
			}
		})
	}
}
