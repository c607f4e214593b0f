package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// told is a bucket of 10 that gets a token per second, 8 of which were taken now.
func told(t *testing.T, p local.Policy) *rig {
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
	r.expect(w, local.Admitted)
	return r
}

// to is another limit for the bucket.
func (r *rig) to(cap, tokens int64) local.Effect {
	p := *r.b.Policy()
	p.Cap, p.Tokens = cap, tokens
	_, e, _ := r.b.SetPolicy(r.now, nil, &p)
	return e
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
		r := told(t, local.Policy{})
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

// Redis hears of another limit by the key's next call. Nothing is sent for it alone, also if Redis does not answer that.
func TestNextCallCarriesAnotherLimit(t *testing.T) {
	for name, p := range map[string]local.Policy{
		"one limit":      {},
		"several limits": {Call: lua.Call{Algorithm: lua.TokenBuckets}},
		"a window":       {Call: lua.Call{Algorithm: lua.FixedWindow}},
	} {
		r := told(t, p)
		if e := r.to(20, 1); e.Send || r.b.Check(r.now+time.Second).Send {
			t.Errorf("%s: %+v, want no call", name, e)
		}
		for range 2 {
			r.now += time.Second
			r.ask(1)
			c := r.begin()
			if c.Policy.Cap != 20 {
				t.Errorf("%s: %+v", name, c)
			}
			r.b.Fail(r.now, c.Seq)
			r.now += 10 * time.Second
		}
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
			r := newRig(t, local.Policy{Cap: 100, Tokens: 10, Call: lua.Call{Algorithm: algorithm}})
			r.lease(20)
			r.to(c.cap, c.tokens)
			if _, ok, _ := r.b.Take(r.now, 1); ok == c.back {
				t.Errorf("%s: the pot gives: %v", c.name, ok)
			}
			if c.name == "the same" {
				continue
			}
			r.now += local.MinIdle
			if e := r.b.Check(r.now); e.Send != c.back {
				t.Errorf("%s, %v: %+v, want a call: %v", c.name, algorithm, e, c.back)
			}
			if !c.back {
				continue
			}
			call := r.begin()
			if call.Ret != 20 || call.Hold != 0 {
				t.Errorf("%s: %+v", c.name, call)
			}
			r.b.Accept(r.now, call.Seq, lua.Reply{Level: 50, TTLLeft: us(time.Second)})
			r.balance()
		}
	}
}

// A grant that was on its way when the limit was lowered goes back too, and a waiter waits for one under the new limit.
func TestGrantOfALargerLimitGoesBack(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 10})
	r.lease(20)
	r.now += 5 * ms
	r.b.Take(r.now, 20)
	w, _, _ := r.ask(3)
	under := r.begin()
	if under.Direct || under.Policy.Cap != 100 {
		t.Fatalf("%+v", under)
	}
	r.to(10, 1)
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
	r.expect(w, local.Admitted)
	r.balance()
}

// The share counts by the old rate until the limit changes.
func TestShareGoesOnFromTheOldRate(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 1})
	if v := r.b.Fallback(r.now, 10, 1); v.Outcome != local.Fallback {
		t.Fatalf("%+v", v)
	}
	r.now += 5 * time.Second
	r.to(1000, 1000)
	if v := r.b.Fallback(r.now, 6, 1); v.Outcome != local.FallbackSpent {
		t.Errorf("%+v, want to be refused", v)
	}
	if v := r.b.Fallback(r.now, 5, 1); v.Outcome != local.Fallback {
		t.Errorf("%+v, want 5", v)
	}
}
