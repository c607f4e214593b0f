package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

const ms = time.Millisecond

// us is a time as Redis tells it.
func us(d time.Duration) int64 { return d.Microseconds() }

// rig drives one bucket by hand: it is the owner and Redis at once.
type rig struct {
	*testing.T
	b   *local.Bucket
	p   *local.Policy
	now time.Duration
	seq int64
}

func newRig(t *testing.T, p local.Policy) *rig {
	t.Helper()
	if p.Period == 0 {
		p.Period = 250 * ms
	}
	if p.Per == 0 {
		p.Per = time.Second
	}
	p.Budget, p.Timeout = 20*ms, 50*ms
	p.Uniform = func() float64 { return 0.5 }
	r := &rig{T: t, b: new(local.Bucket), p: &p, now: time.Second}
	r.b.Init(r.p, "k")
	return r
}

func (r *rig) begin() local.Call { r.Helper(); return r.beginWith(true) }

func (r *rig) beginWith(clock bool) local.Call {
	r.Helper()
	r.seq++
	c, _ := r.b.Begin(r.now, local.Conditions{Seq: r.seq, Lease: "me", Clock: clock, RoundTrip: ms, Fleet: 1})
	return c
}

// ask puts a request of n tokens to the bucket.
func (r *rig) ask(n int64) (*local.Waiter, local.Outcome, local.Effect) {
	w := local.NewWaiter()
	v, e := r.b.Ask(r.now, n, r.now+20*ms, w)
	return w, v, e
}

// lease gives the bucket a lease of n tokens for a second, by a line of two.
func (r *rig) lease(n int64) {
	r.Helper()
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(1)
	c := r.begin()
	if c.Direct || c.Want < 2 {
		r.Fatalf("two waiters led to %+v, want a lease of at least 2", c)
	}
	if _, ok := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: n + 2, Level: 50, TTLLeft: us(time.Second)}); !ok {
		r.Fatal("the reply was not accepted")
	}
	r.expect(a, local.Granted)
	r.expect(b, local.Granted)
}

func (r *rig) expect(w *local.Waiter, o local.Reason) local.Outcome {
	r.Helper()
	select {
	case v := <-w.C:
		if v.Reason != o {
			r.Fatalf("outcome %d, want %d", v.Reason, o)
		}
		return v
	default:
		r.Fatalf("no outcome, want outcome %d", o)
		return local.Outcome{}
	}
}

func (r *rig) pot(want int64) {
	r.Helper()
	if got := r.b.Pot(); got != want {
		r.Fatalf("the pot holds %d, want %d", got, want)
	}
}

// balance checks the ledger's equation.
func (r *rig) balance() local.Stats {
	r.Helper()
	s := r.b.Stats()
	if s.Granted != s.Spent+s.Returned+s.Burnt+s.Held {
		r.Fatalf("granted %d ≠ spent %d + returned %d + burnt %d + held %d", s.Granted, s.Spent, s.Returned, s.Burnt,
			s.Held)
	}
	return s
}
