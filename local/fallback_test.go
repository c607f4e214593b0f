package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// alone decides n tokens by the fail mode, in a fleet of one.
func (r *rig) alone(n int64) local.Outcome { return r.b.ByFailMode(r.now, n, 1) }

// admitAlone is alone that must be admitted.
func (r *rig) admitAlone(n int64) {
	r.Helper()
	if v := r.alone(n); v.Reason != local.Fallback && v.Reason != local.Open {
		r.Fatalf("%+v, want to be admitted alone", v)
	}
}

// askAndBegin puts one request of one token, and returns the call that is made for it.
func (r *rig) askAndBegin() local.Call {
	r.Helper()
	r.now = max(r.now, r.b.BackOff())
	if _, v, e := r.ask(1); v.Reason != local.Waiting || !e.Send {
		r.Fatalf("%+v %+v, want to wait for a call", v, e)
	}
	return r.begin()
}

// A fallback that refuses says to the nearest nanosecond when it will admit, and then it does. Of a
// time of years, which float64 does not tell so exactly, it says a little more.
func TestFallbackSaysWhenItWillAdmit(t *testing.T) {
	for _, per := range []time.Duration{time.Minute, 24 * time.Hour, 365 * 24 * time.Hour} {
		for tokens := range int64(40) {
			p := local.Policy{Cap: 1 + tokens%11, Tokens: 1 + tokens, Per: per, FailMode: local.FailLocal}
			r := newRig(t, p)
			r.admitAlone(p.Cap)
			r.now += time.Second
			want := float64(p.Cap)*float64(per)/float64(p.Tokens) - float64(time.Second)
			v := r.alone(p.Cap)
			if late := float64(v.Retry) - want; v.Reason != local.FallbackSpent || late > 0.6+want/0x1p50 {
				t.Fatalf("%d of %d per %v: %+v, want to be refused for %.1f ns at most", p.Cap, p.Tokens, per, v, want)
			}
			r.now += v.Retry
			if v := r.b.ForeseeFailMode(r.now, p.Cap, 1); v.Reason != local.Fallback {
				t.Fatalf("%d of %d per %v: %+v is foreseen, want to be admitted", p.Cap, p.Tokens, per, v)
			}
			r.admitAlone(p.Cap)
		}
	}
}

// Nothing is foreseen for more than a fallback holds, though its refill brought the rest within a
// nanosecond.
func TestForeseeFallbackKeepsToTheBurst(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 1e12, FailMode: local.FailLocal})
	if v := r.b.ForeseeFailMode(r.now, 6, 2); v.Reason != local.FallbackSpent || v.Retry != 0 {
		t.Errorf("%+v, want never", v)
	}
}

func TestRetiredBucketTellsItsDebtOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		mode local.FailMode
		end  func(r *rig) local.Effect // of the retired bucket's first try
	}{
		{"no answer", local.FailLocal, func(r *rig) local.Effect { return r.b.Fail(r.now, r.begin().Seq, false) }},
		{"the breaker is open", local.FailLocal, func(r *rig) local.Effect { return r.b.Drop(r.now) }},
		{"no answer, fail-open", local.FailOpen, func(r *rig) local.Effect { return r.b.Fail(r.now, r.begin().Seq, false) }},
		{"the breaker is open, fail-open", local.FailOpen, func(r *rig) local.Effect { return r.b.Drop(r.now) }},
	} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: c.mode})
		r.admitAlone(5)
		r.admitAlone(3) // by fail-open: only counted yet
		if e := r.b.Retire(r.now); !e.Send || r.b.Finish(r.now) {
			t.Fatalf("%s: %+v, want the debt to be told first", c.name, e)
		}
		e := c.end(r)
		for i := 0; !e.Done; i++ {
			if i == 10 {
				t.Fatalf("%s: it is kept for ever", c.name)
			}
			r.now = max(r.now, e.Check)
			if e = r.b.Check(r.now); e.Send {
				call := r.begin()
				if call.Debt > 0 {
					t.Fatalf("%s: %+v: the debt was told twice", c.name, call)
				}
				if call.Seq > 0 {
					e, _ = r.b.Accept(r.now, call.Seq, lua.Reply{TTLLeft: us(time.Second)})
				}
			}
		}
		if !r.b.Finish(r.now) {
			t.Errorf("%s: not closed", c.name)
		}
	}
}

// For a millisecond fail-open only counts, without a lock. All of that becomes debt, once, whatever
// comes first: the next request, the reply to a call, its own cancelation, the clock's standing
// still, or the end of the bucket.
func TestWhatFailOpenOnlyCountsIsOwedOnce(t *testing.T) {
	open := func(t *testing.T) *rig {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: local.FailOpen})
		c := r.askAndBegin()
		r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 40})
		r.admitAlone(4)
		before := r.b.Booked()
		r.admitAlone(6)
		if r.b.Booked() != before {
			t.Fatal("it was booked at once: this shows nothing")
		}
		return r
	}
	for _, c := range []struct {
		name      string
		meanwhile func(r *rig)
		debt      int64
		owed      int64
	}{
		{"nothing", func(*rig) {}, 10, 10},
		{"more of the same", func(r *rig) { r.admitAlone(2); r.now += ms; r.admitAlone(3); r.admitAlone(1) }, 16, 16},
		{"a part is given back", func(r *rig) { r.b.Return(r.now, 6, local.FromFallback, 0, nil) }, 4, 4},
		{"all is given back", func(r *rig) { r.b.Return(r.now, 10, local.FromFallback, 0, nil) }, 0, 0},
		{"a request that turns out dearer", func(r *rig) { r.b.Charge(r.now, 5) }, 15, 15},
		{"a call fails", func(r *rig) { r.b.Fail(r.now, r.askAndBegin().Seq, false); r.admitAlone(1) }, 11, 11},
		{"a call is refused by the breaker", func(r *rig) { r.b.Probe(); r.b.Drop(r.now) }, 10, 10},
		{"the lease id is given up", func(r *rig) { r.b.Expire(r.now) }, 10, 10},
		{"evicted and asked for again", func(r *rig) { r.b.Retire(r.now); r.b.Revive() }, 10, 10},
		{"looked at", func(r *rig) { r.b.Check(r.now); r.b.Stats() }, 10, 10},
	} {
		r := open(t)
		c.meanwhile(r)
		call := r.begin() // of what is in the queue, if anything is
		if call.Seq == 0 {
			r.now = max(r.now, r.b.BackOff())
			r.ask(1)
			call = r.begin()
		}
		if call.Direct || call.Debt != c.debt || c.debt > 0 && (call.Seen != 40 || call.Epoch != 7) {
			if c.debt > 0 || call.Debt != 0 {
				t.Errorf("%s: %+v, want debt %d since overflow 40 of epoch 7", c.name, call, c.debt)
			}
		}
		r.b.Accept(r.now, call.Seq, lua.Reply{Grant: call.Want, Epoch: 7, Overflow: 50, TTLLeft: us(time.Second)})
		r.now += time.Millisecond
		r.b.Account(r.now)
		if owing, _ := r.b.Owing(); owing != 0 || r.b.Booked() != 0 {
			t.Errorf("%s: %d is owed when all was settled", c.name, owing)
		}
		if s := r.balance(); s.Settled != c.debt {
			t.Errorf("%s: %d settled, want %d", c.name, s.Settled, c.debt)
		}
	}
}
