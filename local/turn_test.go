package local

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// told is a bucket of 10 that gets a token per second, 8 of which were taken now.
func told(t *testing.T, p Policy) *rig {
	t.Helper()
	p.Cap, p.Tokens = 10, 1
	r := newRig(t, p)
	w, _, _ := r.ask(8)
	c := r.begin()
	if !c.Direct || c.Want != 8 {
		t.Fatalf("%+v, want a direct take", c)
	}
	reply := lua.Reply{Grant: 8, Level: 2, Epoch: 1, Overflow: 1 << 40, Reset: us(8 * time.Second)}
	if _, ok := r.b.Accept(r.now, c.Seq, reply); !ok {
		t.Fatal("the reply was not accepted")
	}
	r.expect(w, Admitted)
	return r
}

// to is another limit for the bucket.
func (r *rig) to(cap, tokens int64) Effect {
	p := *r.b.Policy()
	p.Cap, p.Tokens = cap, tokens
	_, e, _ := r.b.SetPolicy(r.now, nil, &p)
	return e
}

// call is what the owner sends when Redis is to be told.
func (r *rig) call() Call {
	r.Helper()
	if e := r.b.Check(r.now); !e.Send {
		r.Fatalf("%+v, want a call", e)
	}
	return r.begin()
}

// What came until a limit changed came by the old one: here too.
func TestLevelGoesOnFromTheOldRate(t *testing.T) {
	for _, c := range []struct {
		name        string
		after       time.Duration
		cap, tokens int64
		level, soon int64 // at once, and after 10 ms
	}{
		{"raised rate", 3 * time.Second, 10, 100, 5, 6},
		{"raised burst and rate", 3 * time.Second, 1000, 1000, 5, 15},
		{"lowered burst", 3 * time.Second, 3, 1, 3, 3},
		{"lowered rate", 7500 * ms, 1000, 100, 9, 10},
		{"full by the old burst", 8 * time.Second, 1000, 1, 1000, 1000},
	} {
		r := told(t, Policy{})
		r.now += c.after
		r.to(c.cap, c.tokens)
		if _, level := r.b.Peek(r.now); level != c.level {
			t.Errorf("%s: level %d, want %d", c.name, level, c.level)
		}
		if _, level := r.b.Peek(r.now + 10*ms); level != c.soon {
			t.Errorf("%s: level %d after 10 ms, want %d", c.name, level, c.soon)
		}
	}
}

// Redis hears of another limit by one call, unless the bucket is full by all that is known, or nothing changed for it.
func TestAnotherLimitIsTold(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(r *rig)
		p     Policy
		cap   int64
		tell  bool
	}{
		{"not full", func(*rig) {}, Policy{}, 20, true},
		{"not full, several buckets", func(*rig) {}, Policy{Call: lua.Call{Algorithm: lua.TokenBuckets}}, 20, true},
		{"a window", func(*rig) {}, Policy{Call: lua.Call{Algorithm: lua.FixedWindow}}, 20, false},
		{"nearly full", func(r *rig) { r.now += 7999 * ms }, Policy{}, 20, true},
		{"full", func(r *rig) { r.now += 8 * time.Second }, Policy{}, 20, false},
		{
			"full, several buckets", func(r *rig) { r.now += 8 * time.Second },
			Policy{Call: lua.Call{Algorithm: lua.TokenBuckets}},
			20, false,
		},
		{"full, by what is known, but a call failed", func(r *rig) {
			r.now += 8 * time.Second
			w, _, _ := r.ask(1)
			r.b.Fail(r.now, r.begin().Seq)
			r.expect(w, Failed)
			r.now += 5 * time.Second
		}, Policy{}, 20, true},
		{"the same", func(*rig) {}, Policy{}, 10, false},
		{"somebody waits, and his call will tell", func(r *rig) { r.ask(1) }, Policy{}, 20, false},
		{"evicted", func(r *rig) { r.b.retire(r.now) }, Policy{}, 20, false},
	} {
		r := told(t, c.p)
		c.setup(r)
		if e := r.to(c.cap, 1); e.Report != c.tell {
			t.Errorf("%s: %+v, want Tell %v", c.name, e, c.tell)
		}
		if !c.tell {
			continue
		}
		call := r.call()
		if call.Want != 0 || call.Hold != 0 || call.Policy.Cap != c.cap {
			t.Errorf("%s: %+v, want a look by the new limit", c.name, call)
		}
		if e, ok := r.b.Accept(r.now, call.Seq, lua.Reply{Level: 3, Epoch: 1}); !ok || e.Send || e.Report ||
			r.b.Check(r.now).Send {
			t.Errorf("%s: %+v, want nothing more", c.name, e)
		}
	}
	if e := newRig(t, Policy{Cap: 10, Tokens: 1}).to(20, 1); e.Report {
		t.Errorf("%+v: nobody asked for this key", e)
	}
}

// The limit that changes may not be the one that a process goes by when it is alone.
func TestAnotherFirstLimitIsTold(t *testing.T) {
	r := told(t, Policy{Call: lua.Call{Algorithm: lua.TokenBuckets}, First: Numbers{100, 100, time.Second}})
	p := *r.b.Policy()
	p.First.Tokens = 50
	if _, e, _ := r.b.SetPolicy(r.now, nil, &p); !e.Report {
		t.Errorf("%+v, want Tell", e)
	}
}

// Where Redis does not answer, telling it is one try; the next request tells.
func TestTellingIsOneTry(t *testing.T) {
	r := told(t, Policy{})
	r.to(20, 1)
	e := r.b.Check(r.now)
	if !e.Send {
		t.Fatalf("%+v", e)
	}
	for range 1000 { // the breaker lets nothing through
		if e = r.b.Drop(r.now); e.Check == 0 {
			break
		}
		r.now = e.Check
		if e = r.b.Check(r.now); e.Send {
			t.Fatalf("asks again at %v", r.now)
		}
	}
	r.now += time.Second
	r.ask(1)
	if c := r.begin(); c.Policy.Cap != 20 {
		t.Errorf("%+v", c)
	}
	if e := r.b.Fail(r.now, r.seq); e.Send {
		t.Errorf("%+v: asks again at once", e)
	}
}

// So it is with a lease: all that it asks for until it is over is what it asks for without a change, and one call more.
func TestTellingOfALeaseIsOneTry(t *testing.T) {
	tries := func(cap, tokens int64) (n int) {
		r := newRig(t, Policy{Cap: 100, Tokens: 10})
		r.lease(20)
		e := r.to(cap, tokens)
		if e.Report {
			e = r.b.Check(r.now)
		}
		for range 1000 {
			switch {
			case e.Send:
				n++
				e = r.b.Drop(r.now)
			case e.Check > 0:
				r.now = max(e.Check, r.now)
				e = r.b.Check(r.now)
			default:
				return n
			}
		}
		t.Fatal("it does not end")
		return n
	}
	if before, told := tries(100, 10), tries(200, 20); told != before+1 {
		t.Errorf("%d tries, %d without a change", told, before)
	}
}

// What is leased goes back when the limit is lowered, whatever is on its way: nothing is renewed that was leased under
// the larger.
func TestLoweredLeaseGoesBack(t *testing.T) {
	for _, algorithm := range []lua.Algorithm{lua.TokenBucket, lua.TokenBuckets, lua.FixedWindow} {
		for _, c := range []struct {
			name        string
			cap, tokens int64
			back        bool
		}{
			{"raised", 200, 20, false},
			{"a smaller burst", 50, 1, true},
			{"a lower rate", 100, 1, true},
			{"the same", 100, 10, false},
		} {
			r := newRig(t, Policy{Cap: 100, Tokens: 10, Call: lua.Call{Algorithm: algorithm}})
			r.lease(20)
			r.to(c.cap, c.tokens)
			if _, ok, _ := r.b.Take(r.now, 1); ok == c.back {
				t.Errorf("%s: the pot gives: %v", c.name, ok)
			}
			if c.name == "the same" {
				continue
			}
			r.now += minIdle
			if e := r.b.Check(r.now); !e.Send {
				if algorithm != lua.FixedWindow {
					t.Errorf("%s: %+v, want a call", c.name, e)
				}
				continue
			}
			call := r.begin()
			if c.back && (call.Ret != 20 || call.Hold != 0) || !c.back && (call.Ret != 0 || call.Hold != 19) {
				t.Errorf("%s: %+v", c.name, call)
			}
			r.b.Accept(r.now, call.Seq, lua.Reply{Level: 50, TTLLeft: us(time.Second)})
			r.balance()
		}
	}
}

// A grant that was on its way when the limit was lowered goes back too, and a waiter waits for one under the new limit.
func TestGrantOfALargerLimitGoesBack(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 10})
	r.lease(20)
	r.now += 5 * ms
	r.b.Take(r.now, 20)
	w, _, _ := r.ask(3)
	under := r.begin()
	if under.Direct || under.Policy.Cap != 100 {
		t.Fatalf("%+v", under)
	}
	if e := r.to(10, 1); e.Report {
		t.Errorf("%+v: the end of the call will tell", e)
	}
	e, ok := r.b.Accept(r.now, under.Seq, lua.Reply{Grant: under.Want, Level: 50, TTLLeft: us(time.Second)})
	if !ok || !e.Send {
		t.Fatalf("%v, %+v, want a call", ok, e)
	}
	r.pot(0)
	c := r.begin()
	if c.Ret != under.Want || c.Hold != 0 || c.Policy.Cap != 10 || c.Min != 3 {
		t.Errorf("%+v, want %d back and 3 for who waits", c, under.Want)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 3, TTLLeft: us(time.Second)})
	r.expect(w, Admitted)
	r.balance()
}

// The share counts by the old rate until the limit changes.
func TestShareGoesOnFromTheOldRate(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 1})
	if v := r.b.Fallback(r.now, 10, 1); v.Outcome != Shared {
		t.Fatalf("%+v", v)
	}
	r.now += 5 * time.Second
	r.to(1000, 1000)
	if v := r.b.Fallback(r.now, 6, 1); v.Outcome != ShareSpent {
		t.Errorf("%+v, want to be refused", v)
	}
	if v := r.b.Fallback(r.now, 5, 1); v.Outcome != Shared {
		t.Errorf("%+v, want 5", v)
	}
}
