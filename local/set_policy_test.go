package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestForeseeTakesNothing(t *testing.T) {
	for _, mode := range []local.FailMode{local.FailLocal, local.FailOpen, local.FailClosed} {
		r := newRig(t, local.Policy{Cap: 10, Tokens: 1, FailMode: mode})
		for range 5 {
			want := map[local.FailMode]local.Outcome{
				local.FailLocal: local.Fallback, local.FailOpen: local.Opened,
				local.FailClosed: local.Failed,
			}[mode]
			if v := r.b.ForeseeFallback(r.now, 10, 1, true); v.Outcome != want {
				t.Fatalf("mode %d: %+v, want %d", mode, v, want)
			}
		}
		if s := r.b.Stats(); s.Fallback+s.Opened+s.Refused != 0 || mode == local.FailClosed && s.Failed != 50 {
			t.Errorf("mode %d: %+v", mode, s)
		}
	}
	r := newRig(t, local.Policy{Cap: 10, Tokens: 1})
	if v := r.b.Fallback(r.now, 7, 1); v.Outcome != local.Fallback {
		t.Fatalf("%+v", v)
	}
	if v := r.b.ForeseeFallback(r.now, 4, 1, true); v.Outcome != local.FallbackSpent || v.Left != 3 || v.Retry <= 0 {
		t.Errorf("%+v, want to be refused", v)
	}
	if v := r.b.Fallback(r.now, 3, 1); v.Outcome != local.Fallback {
		t.Errorf("%+v: what was refused took something", v)
	}
}

func TestSetPolicyMintsNothing(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 1})
	if v := r.b.Fallback(r.now, 10, 1); v.Outcome != local.Fallback {
		t.Fatalf("%+v", v)
	}
	more := *r.p
	more.Cap = 1000
	r.b.SetPolicy(r.now, nil, &more)
	if v := r.b.Fallback(r.now, 1, 1); v.Outcome != local.FallbackSpent {
		t.Errorf("%+v: the share was filled", v)
	}
	less := more
	less.Cap = 2
	r.b.SetPolicy(r.now, nil, &less)
	if v := r.b.Fallback(r.now, 3, 1); v.Outcome != local.Outdated {
		t.Errorf("%+v: it costs more than the burst", v)
	}
	// A key that nobody asked for is full, by whatever limit.
	fresh := newRig(t, *r.p)
	fresh.b.SetPolicy(fresh.now, nil, &more)
	if _, level := fresh.b.Peek(fresh.now); level != 1000 {
		t.Errorf("%d, want 1000", level)
	}
}

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
		if _, ok, _ := r.b.Take(r.now, 1); ok {
			t.Errorf("rule %d: the pot gives", rule)
		}
		if _, v, _ := r.ask(1); v.Outcome != local.Outdated {
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

// What is refused counts by the rule that refused it, also when the rule changes; the share's refusals stay the
// share's.
func TestBlockedIsCountedApart(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 1})
	r.b.Fallback(r.now, 10, 1)
	r.b.Fallback(r.now, 2, 1) // the share is spent
	r.b.CountRefused(3)
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
		r.b.CountRefused(4)
		check("blocked and asked for", 3+7*round, 4*(round+1))
		change(&free)
		check("let in", 3+7*round, 4*(round+1))
		r.b.CountRefused(7)
		check("refused", 3+7*(round+1), 4*(round+1))
	}
	// What is off these books is off the demand's: else it would count as asked for the less afterwards.
	r.now += time.Second
	change(&blocked)
	if offers := r.b.Offers(r.now); offers != 12 {
		t.Errorf("%d were offered, want the 12 that the share was asked for", offers)
	}
}

// Of numbers that nobody set no call is made, whatever is asked for. Who was limited once keeps the numbers, and hands
// them to the next bucket of the key; buckets of one policy share what they keep.
func TestNoCallByNumbersThatNobodySet(t *testing.T) {
	for _, rule := range []local.Rule{local.Unlimited, local.Blocked, local.Unresolved} {
		r := newRig(t, local.Policy{Cap: 64, Tokens: 64, Rule: rule, Unset: true})
		w := local.NewWaiter()
		if v, e := r.b.Credit(w, local.Fill); v.Outcome != local.Outdated || e != (local.Effect{}) {
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

// A policy that leases no more still uses what it holds. A request that needs that and more was asked for again and again, until
// the fail mode decided.
func TestNoLeaseUsesWhatIsHeld(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 1})
	r.lease(40)
	direct := *r.p
	direct.NoLease = true
	r.b.SetPolicy(r.now, nil, &direct)
	w, _, _ := r.ask(80)
	if c := r.begin(); c.Direct || c.Hold != 40 || c.Min != 40 {
		t.Fatalf("%+v, want to ask for what is missing", c)
	}
	r.b.Accept(r.now, r.seq, lua.Reply{Grant: 40, Level: 10, TTLLeft: us(time.Second)})
	r.expect(w, local.Admitted)
	r.pot(0)
	r.balance()
}

// A direct take cannot use what is held: what Redis refuses is refused.
func TestRefusedDirectTake(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Call: lua.Call{Algorithm: lua.SlidingWindow}, Window: time.Second})
	r.lease(40)
	direct := *r.p
	direct.NoLease, direct.Unleased = true, true
	r.b.SetPolicy(r.now, nil, &direct)
	for range 2 {
		w, _, _ := r.ask(80)
		c := r.begin()
		if !c.Direct && !c.Unleased || c.Min != 80 {
			t.Fatalf("%+v, want to take 80 directly", c)
		}
		r.b.Accept(r.now, r.seq, lua.Reply{
			Code: lua.Denied, Level: 50, Retry: us(time.Millisecond),
			TTLLeft: us(time.Second),
		})
		r.expect(w, local.Refused)
		r.now += time.Second
	}
	r.balance()
}
