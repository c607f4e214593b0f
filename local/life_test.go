package local

import (
	"testing"
	"time"
)

func TestIdleLeaseGoesBack(t *testing.T) {
	r := newRig(t, Policy{Cap: 1000, Tokens: 1000, Period: 100 * ms})
	r.lease(100)
	r.b.demand.rate = 1000 // busy until now
	r.now += 200 * ms
	r.b.Take(r.now, 1)
	e := r.b.Check(r.now) // used since the last look: that counts from now on
	if e.Send || e.Check == 0 {
		t.Fatalf("%+v, want another look", e)
	}
	r.b.demand.rate = 1000
	r.now = e.Check
	if e = r.b.Check(r.now); !e.Send {
		t.Fatalf("%+v after 2T without use, want the return", e)
	}
	c := r.begin()
	if c.Want != 0 || c.Hold != 0 || c.Ret != 99 {
		t.Fatalf("%+v, want ret 99", c)
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("a token on its way back was taken")
	}
	e, _ = r.b.Accept(r.now, c.Seq, Reply{TTLLeft: time.Second})
	if e.Check != 0 || e.Send {
		t.Fatalf("%+v: nothing is owed any more", e)
	}
	r.b.demand.rate = 0
	r.ask(1)
	if c = r.begin(); !c.Direct {
		t.Fatalf("%+v, want a direct take: no lease is out", c)
	}
}

func TestSlowlyUsedLeaseDoesNotBurn(t *testing.T) {
	for _, c := range []struct {
		rate float64
		want Call
	}{{100, Call{Hold: 99}}, {10, Call{Ret: 99}}} {
		r := newRig(t, Policy{Cap: 1000, Tokens: 1000})
		r.lease(100)
		r.b.demand.rate = c.rate
		r.now += 740 * ms
		r.b.Take(r.now, 1)
		r.b.demand.at = r.now
		if e := r.b.Check(r.now); !e.Send {
			t.Fatalf("%v/s: %+v a quarter before the end, want a call", c.rate, e)
		}
		call := r.begin()
		if call.Want != 0 || call.Hold != c.want.Hold || call.Ret != c.want.Ret {
			t.Fatalf("%v/s: %+v, want %+v", c.rate, call, c.want)
		}
		r.b.Accept(r.now, call.Seq, Reply{TTLLeft: time.Second})
		if _, ok, _ := r.b.Take(r.now+500*ms, 1); ok != (call.Hold > 0) {
			t.Fatalf("%v/s: taken %v after what would have been the end", c.rate, ok)
		}
		r.balance()
	}
}

func TestReturnIsCalledOffWhenTheLeaseIsUsedMeanwhile(t *testing.T) {
	r := newRig(t, Policy{Cap: 1000, Tokens: 1000})
	r.lease(100)
	r.now += 600 * ms
	if e := r.b.Check(r.now); !e.Send {
		t.Fatal("idle, but not sent back")
	}
	r.b.Take(r.now, 1)
	r.seq++
	c, e := r.b.Begin(r.now, Conditions{Seq: r.seq, Clock: true, Trip: ms, Fleet: 1})
	if c.Seq != 0 || e.Check == 0 {
		t.Fatalf("%+v %+v, want no call and another look", c, e)
	}
}

func TestRetireReturnsAndCloses(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	if e := r.b.Retire(r.now); !e.Done || !r.b.Close(r.now) {
		t.Fatalf("%+v: a bucket that owes nothing closes at once", e)
	}
	if _, v, _ := r.ask(1); v.Outcome != Gone {
		t.Fatalf("outcome %d of a closed bucket, want Gone", v.Outcome)
	}

	r = newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	if e := r.b.Retire(r.now); !e.Send || r.b.Close(r.now) {
		t.Fatalf("%+v: the lease is not given back first", e)
	}
	c := r.begin()
	if c.Ret != 10 || c.Hold != 0 || c.Want != 0 {
		t.Fatalf("%+v, want ret 10", c)
	}
	e, _ := r.b.Accept(r.now, c.Seq, Reply{TTLLeft: time.Second})
	if !e.Done || !r.b.Close(r.now) {
		t.Fatalf("%+v, want done", e)
	}
	r.balance()
}

func TestBurnNeverMints(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w, _, _ := r.ask(20)
	c := r.begin()
	r.b.Burn(r.now)
	r.expect(w, Failed)
	if _, ok := r.b.Accept(r.now, c.Seq, Reply{Grant: 10, TTLLeft: time.Second}); ok {
		t.Fatal("a closed bucket accepted a grant")
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("a closed bucket was spent from")
	}
	if s := r.balance(); s.Burnt != 10 {
		t.Errorf("burnt %d, want 10", s.Burnt)
	}
}

func TestExpireEndsTheLeaseAndGivesTheCallUp(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w, _, _ := r.ask(20)
	c := r.begin()
	r.b.Expire(r.now)
	r.expect(w, Failed)
	if _, ok := r.b.Accept(r.now, c.Seq, Reply{Grant: 20, TTLLeft: time.Second}); ok {
		t.Fatal("a call that slept through the standstill was accepted")
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("the lease lives on")
	}
}
