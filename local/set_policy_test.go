package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// What a policy without a limit finds in the pot goes back, and nobody gets it.
func TestNoLimitClosesThePot(t *testing.T) {
	for _, rule := range []local.Rule{local.Unlimited, local.Blocked, local.Unresolved} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 1})
		r.lease(20)
		other := local.Policy{
			Cap: 1, Tokens: 1, Per: 1, Rule: rule, Budget: r.p.Budget, Timeout: r.p.Timeout,
			Uniform: r.p.Uniform, Period: r.p.Period,
		}
		_, effect, _ := r.b.SetPolicy(r.now, nil, &other)
		if _, ok, _ := r.b.Hot().Take(r.now, 1); ok {
			t.Errorf("rule %d: the pot gives", rule)
		}
		if _, v, _ := r.ask(1); v.Reason != local.Outdated {
			t.Errorf("rule %d: %+v", rule, v)
		}
		for i := 0; effect.Send == false && effect.Check > 0 && i < 100; i++ {
			r.now = effect.Check
			effect = r.b.Check(r.now)
		}
		c := r.begin()
		if c.Ret != 20 || c.Policy.Cap != 100 {
			t.Errorf("rule %d: %+v, want the 20 to go back by the numbers that they were taken by", rule, c)
		}
	}
}

// What is refused counts by the rule that refused it, also when the rule changes; the share's
// refusals stay the share's.
func TestBlockedIsCountedApart(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 1})
	r.b.ByFailMode(r.now, 10, 1)
	r.b.ByFailMode(r.now, 2, 1) // the share is spent
	r.b.Hot().CountRefused(3)
	blocked, free := *r.p, *r.p
	blocked.Rule = local.Blocked
	var kept local.Stats
	change := func(p *local.Policy) {
		folded, _, _ := r.b.SetPolicy(r.now, nil, p)
		kept.Add(folded)
	}
	check := func(when string, limited, refused int64) {
		t.Helper()
		s := r.b.Stats()
		s.Add(kept)
		if s.Refused-s.FallbackSpent != limited || s.FallbackSpent != 2 || s.Blocked != refused {
			t.Errorf("%s: %+v, want %d by the limit, 2 by the share and %d blocked", when, s, limited, refused)
		}
	}
	check("at first", 3, 0)
	for round := range int64(2) {
		change(&blocked)
		check("blocked", 3+7*round, 4*round)
		r.b.Hot().CountRefused(4)
		check("blocked and asked for", 3+7*round, 4*(round+1))
		change(&free)
		check("let in", 3+7*round, 4*(round+1))
		r.b.Hot().CountRefused(7)
		check("refused", 3+7*(round+1), 4*(round+1))
	}
	// What is off these books is off the demand's: else it would count as asked for the less
	// afterwards.
	r.now += time.Second
	change(&blocked)
	if offers := r.b.Offers(r.now); offers != 12 {
		t.Errorf("%d were offered, want the 12 that the share was asked for", offers)
	}
}

// Of numbers that nobody set no call is made, whatever is asked for. Who was limited once keeps the
// numbers, and hands them to the next bucket of the key; buckets of one policy share what they
// keep.
func TestNoCallByNumbersThatNobodySet(t *testing.T) {
	for _, rule := range []local.Rule{local.Unlimited, local.Blocked, local.Unresolved} {
		r := newRig(t, local.Policy{Cap: 64, Tokens: 64, Rule: rule, Unset: true})
		w := local.NewWaiter()
		if v, e := r.b.Credit(w, local.Fill); v.Reason != local.Outdated || e != (local.Effect{}) {
			t.Errorf("rule %d: Reset: %+v, %+v", rule, v, e)
		}
		if e, _, _, ok := r.b.Charge(r.now, 5); !ok || e != (local.Effect{}) {
			t.Errorf("rule %d: Owe: %+v, %v", rule, e, ok)
		}
		if e := r.b.Probe(); e.Send {
			if c := r.begin(); c.Seq != 0 {
				t.Errorf("rule %d: a probe: %+v", rule, c)
			}
		}
		limited := &local.Policy{
			Cap: 10, Tokens: 1, Per: time.Hour, Rules: new(local.Rules), Period: r.p.Period,
			Budget: r.p.Budget, Timeout: r.p.Timeout, Uniform: r.p.Uniform,
		}
		old := newRig(t, *limited)
		old.b.SetPolicy(old.now, nil, limited)
		old.b.SetPolicy(old.now, nil, r.p)
		if p := old.b.Policy(); p.Rule != rule || p.Cap != 10 || p.Unset || p != limited.WithRule(rule) {
			t.Errorf("rule %d: %+v after a limit of 10", rule, p)
		}
		r.b.Inherit(r.p)
		if r.b.Policy() != r.p {
			t.Errorf("rule %d: %+v", rule, r.b.Policy())
		}
		r.b.Inherit(old.b.Policy())
		if r.b.Policy() != limited.WithRule(rule) {
			t.Errorf("rule %d: %+v, want what the earlier one had", rule, r.b.Policy())
		}
		r.b.Charge(r.now, 5)
		if c := r.begin(); c.Debt != 5 || c.Policy.Cap != 10 {
			t.Errorf("rule %d: %+v, want a debt of 5 by a limit of 10", rule, c)
		}
		more := &local.Policy{
			Cap: 20, Tokens: 1, Per: time.Hour, Period: r.p.Period, Budget: r.p.Budget,
			Timeout: r.p.Timeout, Uniform: r.p.Uniform,
		}
		limits := newRig(t, *more)
		limits.b.Inherit(old.b.Policy())
		if p := limits.b.Policy(); p.Cap != 20 {
			t.Errorf("rule %d: %+v, want its own limit", rule, p)
		}
	}
}

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
	r.expect(w, local.Granted)
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

// Redis hears of another limit by the key's next call. Nothing is sent for it alone, also if Redis
// does not answer that.
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
			r.b.Fail(r.now, c.Seq, false)
			r.now += 10 * time.Second
		}
	}
}

// What is leased goes back when the limit is lowered, whatever is on its way: nothing is renewed
// that was leased under the larger.
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
			if _, ok, _ := r.b.Hot().Take(r.now, 1); ok == c.back {
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
