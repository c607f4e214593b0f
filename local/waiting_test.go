package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// insist is ask for who waits and asks again.
func (r *rig) insist(n, more int64) (*local.Waiter, local.Outcome, local.Effect) {
	w := local.NewWaiter()
	w.AskAgain, w.More = true, more
	v, e := r.b.Ask(r.now, n, r.now+20*ms, w)
	return w, v, e
}

// After what came for one who waits, the next knows when its tokens can be there, to the part of a
// token that no reply tells: unless the level may have been at its burst meanwhile, or its room is
// taken.
func TestGrantLeavesAKnownPartOfAToken(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration // asks again after a denial that told of 1.5 tokens
		cost  int64
		level int64 // left, as the reply has it
		wait  time.Duration
		next  int64
		known bool
	}{
		{"a part is left", 200 * ms, 3, 0, 50 * ms, 1, true},
		{"others took whole tokens", 700 * ms, 3, 2, 50 * ms, 3, true},
		{"others gave some back", 200 * ms, 3, 2, 100 * ms, 3, true},
		{"it was full", 3 * time.Second, 3, 0, 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, local.Policy{Cap: 10, Tokens: 10, NoLease: true})
			w, _, _ := r.insist(3, 0)
			call := r.begin()
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: 0, Level: 1, Retry: us(150 * ms)})
			r.expect(w, local.Limited)
			r.now += c.after
			w, v, _ := r.insist(c.cost, 9) // short, so that what is left is told of
			if v.Reason != local.Waiting {
				t.Fatalf("%+v", v)
			}
			call = r.begin()
			if !call.Direct || call.Want != c.cost+3 {
				t.Fatalf("%+v, want a direct take of it, and a quarter of the burst", call)
			}
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: c.cost, Level: c.level})
			r.expect(w, local.Granted)
			v, refused := r.b.Hot().RefuseWaiter(r.now, c.next)
			if late := v.Retry - c.wait; refused != c.known || refused && (late < 0 || late > 2*time.Microsecond) {
				t.Errorf("refused %v, %v, want %v, %v", refused, v.Retry, c.known, c.wait)
			}
		})
	}
}

// A direct take brings more for those behind; what nobody wants goes back.
func TestDirectTakeForThoseBehind(t *testing.T) {
	for _, c := range []struct{ grant, first, second, more, back int64 }{
		{9, 2, 3, 4, 0}, {6, 2, 3, 1, 0}, {5, 2, 3, 0, 0}, {4, 2, 0, 2, 0}, {2, 2, 0, 0, 0},
	} {
		r := newRig(t, local.Policy{Cap: 16, Tokens: 10, NoLease: true})
		first, _, _ := r.insist(2, 100)
		second, _, _ := r.ask(3)
		call := r.begin()
		if !call.Direct || call.Min != 2 || call.Want != 9 {
			t.Fatalf("%+v, want a direct take of 9, 2 at least", call)
		}
		r.b.Accept(r.now, call.Seq, lua.Reply{Grant: c.grant})
		if r.expect(first, local.Granted); first.MoreGranted != c.more {
			t.Errorf("a grant of %d: %+v, want %d more", c.grant, first, c.more)
		}
		if c.second > 0 {
			r.expect(second, local.Granted)
		}
		if s := r.balance(); s.Held != c.back || s.Spent != c.grant-c.back {
			t.Errorf("a grant of %d: %+v, want %d to go back", c.grant, s, c.back)
		}
	}
}
