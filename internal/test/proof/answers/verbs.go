package answers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Verb is the kind of a step.
type Verb uint8

// The verbs.
const (
	Ask      Verb = iota // AllowN
	Hurry                // AllowN with a context that ends after Pause
	Again                // AllowN, N times
	Back                 // AllowN until it is refused, and back when that says: see process.back
	Climb                // the same for one token, and then for N
	Crowd                // AllowN of several costs at one time, and back when one that is refused is told
	Scout                // PeekN, and again when that says
	Look                 // PeekN, and then AllowN
	Each                 // Peek and PeekEach
	Known                // PeekN of 0
	Reserve              // ReserveN
	Settle               // settles a reservation at N tokens
	Cancel               // cancels a reservation
	AtMost               // AllowAtMost
	Together             // AllowEach over all policies
	Apart                // AllowSeparately over all policies
	Carry                // AllowN of a use with another limit, by itself or as a plan
	Do                   // Reserve, and Cancel if Pick is odd
	Wait                 // WaitN for at most Pause
	Behind               // the same, while the next steps are played
	WaitAll              // Wait for a key of all policies
	Charge               // Charge
	Refund               // Refund
	Reset                // Reset
	Change               // SetPolicy with another limit, in all processes or in one
	Rule                 // PerKey returns another limit from now on, in all processes
	Others               // AllowN of N other keys, so that this one may be evicted
	Figures              // Stats
	Restart              // closes a process, and opens another in its place
	Down                 // the store refuses all calls
	Hang                 // it does not answer
	Well                 // it works again
)

var ctx = context.Background()

// verbs play the steps. Each writes down what it does.
var verbs = [...]func(p *process, x *Step, a place){
	Ask:   func(p *process, x *Step, a place) { p.ask(a, x.N) },
	Carry: func(p *process, x *Step, a place) { p.askBy(x, a, x.N) },
	Hurry: func(p *process, x *Step, a place) {
		var d tiered.Decision
		text := within(x.Pause, "d = "+p.text("AllowN", a, x.N))
		ctx, cancel := context.WithTimeout(ctx, x.Pause)
		defer cancel()
		p.call(min(p.Budget, x.Pause), text, func() { d = p.limiters[a.which].AllowN(ctx, a.key, x.N) })
		p.decision(&d, a.which, x.N)
	},
	Again: func(p *process, x *Step, a place) {
		for range x.N {
			p.ask(a, 1)
		}
	},
	Back: (*process).back,
	Climb: func(p *process, x *Step, a place) {
		one := *x
		one.N = 1
		p.back(&one, a)
		p.ask(a, 1)
		p.back(x, a)
	},
	Crowd: (*process).crowd,
	Scout: (*process).scout,
	Look:  (*process).look,
	Each:  (*process).each,
	Known: func(p *process, _ *Step, a place) { p.peek(a, 0) },
	Reserve: func(p *process, x *Step, a place) {
		var r tiered.Reservation
		text := "rs = append(rs, " + p.text("ReserveN", a, x.N) + ")\nd = rs[len(rs)-1].Decision"
		p.call(p.Budget, text, func() { r = p.limiters[a.which].ReserveN(ctx, a.key, x.N) })
		p.decision(&r.Decision, a.which, x.N)
		p.held = append(p.held, &reservation{Reservation: r, by: p, at: a, cost: x.N})
	},
	Settle: (*process).settle,
	Cancel: (*process).settle,
	AtMost: func(p *process, x *Step, a place) {
		p.call(4*p.Budget, "_, d = "+p.text("AllowAtMost", a, x.N), func() {
			granted, d := p.limiters[a.which].AllowAtMost(ctx, a.key, x.N)
			c := p.counts[a.which]
			if p.judge(&d); granted > 0 {
				c.admitted(granted, d.Burst == math.MaxInt64, d.Reason != tiered.Granted)
			}
			c.parts = true
		})
	},
	Together: (*process).together,
	Apart: func(p *process, x *Step, a place) {
		uses, text := p.uses(a.key, x.N)
		uses = append(uses, p.limiters[a.which].For(a.key).N(1))
		text = fmt.Sprintf("all = tiered.All(%s, %s.For(%q))\nall.AllowSeparately(ctx, each)\nd = each[0]",
			text, p.limiter(a.which), a.key)
		all, each := tiered.All(uses...), make([]tiered.Decision, 3)
		p.call(p.Budget, text, func() { all.AllowSeparately(ctx, each) })
		for i := range p.limiters {
			p.decision(&each[i], i, x.N)
		}
		p.decision(&each[len(p.limiters)], a.which, 1)
	},
	Do: (*process).reserveAndCancel,
	Wait: func(p *process, x *Step, a place) {
		p.code.add("%s", p.waitCode(x, a))
		p.wait(x, a)()
	},
	Behind: func(p *process, x *Step, a place) {
		p.code.add("waiters.Go(func() %s)\nsynctest.Wait()", p.waitCode(x, a))
		p.waiting[a]++
		p.waiters.Go(func() {
			note := p.wait(x, a)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ended = append(p.ended, func() { p.waiting[a]--; note() })
		})
	},
	WaitAll: func(p *process, x *Step, a place) {
		ctx, cancel := context.WithTimeout(ctx, x.Pause)
		defer cancel()
		uses, text := p.uses(a.key, x.N)
		for i, c := range p.counts {
			k := p.at(place{i, a.key})
			k.touched, k.gave = time.Now(), time.Now()
			c.unsure, c.quiet, c.Waiting.Longest = true, true, max(c.Waiting.Longest, x.Pause)
			c.Waiting.GaveUp, c.Waiting.Admitted = c.Waiting.GaveUp+1, c.Waiting.Admitted+1 // one of both, of one policy
		}
		text = within(x.Pause, "_ = tiered.All("+text+").Wait(ctx)")
		p.call(x.Pause, text, func() { _ = tiered.All(uses...).Wait(ctx) })
	},
	Charge: func(p *process, x *Step, a place) {
		before := p.limiters[a.which].PeekN(ctx, a.key, 0)
		p.call(0, fmt.Sprintf("_ = %s.For(%q).N(%d).Charge()", p.limiter(a.which), a.key, x.N), func() {
			if err := p.limiters[a.which].For(a.key).N(x.N).Charge(); err != nil {
				p.blame("stats", fmt.Sprintf("t.Errorf(%q)", err), "Charge: %v", err)
			}
		})
		p.charged(before, a, x.N)
		if !p.unlimited(a) {
			p.counts[a.which].Leases.Spent += x.N
		}
	},
	Refund: func(p *process, x *Step, a place) {
		p.at(a).gave = time.Now()
		p.call(2*p.Budget, "_ = "+p.text("Refund", a, x.N), func() { _ = p.limiters[a.which].Refund(ctx, a.key, x.N) })
	},
	Reset: func(p *process, _ *Step, a place) {
		p.at(a).gave = time.Now()
		p.call(2*p.Budget, "_ = "+p.text("Reset", a), func() { _ = p.limiters[a.which].Reset(ctx, a.key) })
	},
	Change: func(p *process, x *Step, a place) {
		p.changes(a.which)
		for _, q := range p.slots {
			if y := q.limiters[a.which].Policy(); q == p || x.Pick%2 == 0 {
				y.Limit = x.Limit
				p.code.add("{\nx := %[1]s.Policy()\nx.Limit = %[2]s\n_ = %[1]s.SetPolicy(x)\n}", q.limiter(a.which), proof.Code(x.Limit))
				_ = q.limiters[a.which].SetPolicy(y)
			}
		}
	},
	Rule: func(p *process, x *Step, a place) {
		p.changes(a.which)
		if r := p.Rules[a.which]; r != nil {
			r[a.key] = x.Limit
			p.code.add("rules[%d][%q] = %s", a.which, a.key, proof.Code(x.Limit))
			for _, q := range p.slots {
				p.code.add("%s.Refresh(%q)", q.limiter(a.which), a.key)
				q.limiters[a.which].Refresh(a.key)
				q.counts[a.which].unsure = true // how what was reserved is settled
			}
		}
	},
	Others: func(p *process, x *Step, a place) {
		for i := range x.N {
			p.ask(place{a.which, fmt.Sprint("other", i)}, 1)
		}
	},
	Figures: func(p *process, _ *Step, _ place) { p.figures() },
	Restart: func(p *process, _ *Step, _ place) {
		for i, l := range p.limiters {
			if l.Policy().Limit != p.Policies[i].Limit { // it opens with that of before
				p.changes(i)
			}
		}
		p.close()
		p.code.add("open(%d)", p.slot)
		p.open(p.slot)
	},
	Down: func(p *process, _ *Step, _ place) {
		p.down, p.wentDown = true, time.Now()
		p.code.add("store.Fail(errors.New(\"down\"))")
		p.store.Fail(errDown)
	},
	Hang: func(p *process, _ *Step, _ place) {
		p.wentDown = time.Now()
		p.code.add("store.now.Store(true)")
		p.store.hangs.Store(true)
	},
	Well: func(p *process, _ *Step, _ place) { p.well() },
}

// limiter returns the Limiter of a policy as Go.
func (p *process) limiter(which int) string { return fmt.Sprintf("p[%d][%d]", p.slot, which) }

// text returns a call of a method of a policy's Limiter as Go, of a key and perhaps of tokens.
func (p *process) text(method string, a place, n ...int64) string {
	tokens := ""
	if len(n) > 0 {
		tokens = fmt.Sprint(", ", n[0])
	}
	return fmt.Sprintf("%s.%s(ctx, %q%s)", p.limiter(a.which), method, a.key, tokens)
}

// uses returns a use of a key for each policy, and all of them as Go.
func (p *process) uses(key string, n int64) (uses []tiered.Use, text string) {
	for i, l := range p.limiters {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s.For(%q).N(%d)", p.limiter(i), key, n)
		uses = append(uses, l.For(key).N(n))
	}
	return uses, text
}

// within is a call whose context ends after a time, as Go.
func within(d time.Duration, call string) string {
	return fmt.Sprintf("{\nctx, cancel := context.WithTimeout(ctx, %s)\n%s\ncancel()\n}", proof.Code(d), call)
}

// unlimited reports whether no limit decides a key.
func (w *player) unlimited(a place) bool {
	l := w.Rules[a.which][a.key]
	return l == tiered.Unlimited() || l == tiered.Blocked()
}

// decision judges a Decision of one key by itself, and counts it.
func (p *process) decision(d *tiered.Decision, which int, n int64) {
	p.judge(d)
	p.counts[which].count(d, n)
}

// ask asks for n tokens.
func (p *process) ask(a place, n int64) tiered.Decision { return p.askBy(&Step{}, a, n) }

// askBy asks for n tokens by the limit of a step.
func (p *process) askBy(x *Step, a place, n int64) (d tiered.Decision) {
	k, l, name := p.at(a), p.limiters[a.which], p.limiter(a.which)
	k.touched, k.carried = time.Now(), k.carried || x.By != byKey
	if k.carried { // who carries nothing goes by the policy again
		p.changes(a.which)
	}
	use, text := l.For(a.key).N(n), fmt.Sprintf("%s.For(%q).N(%d)", name, a.key, n)
	allow := use.Allow
	switch x.By {
	case byLimit:
		allow, text = use.WithLimit(x.Limit).Allow, text+".WithLimit("+proof.Code(x.Limit)+").Allow(ctx)"
	case byPlan:
		allow, text = use.WithPlan(plan).Allow, fmt.Sprintf("%s.WithPlan(%q).Allow(ctx)", text, plan)
	default:
		text = p.text("AllowN", a, n)
		allow = func(ctx context.Context) tiered.Decision { return l.AllowN(ctx, a.key, n) }
	}
	p.call(p.Budget, "d = "+text, func() { d = allow(ctx) })
	k.touched = time.Now()
	p.decision(&d, a.which, n)
	return d
}

// peek looks whether n tokens are there.
func (p *process) peek(a place, n int64) (v tiered.Decision) {
	p.call(p.Budget, "v = "+p.text("PeekN", a, n), func() { v = p.limiters[a.which].PeekN(ctx, a.key, n) })
	p.judge(&v)
	return v
}

// settle settles or cancels a reservation.
func (p *process) settle(x *Step, _ place) {
	w := p.player
	i := len(w.held) - 1 - x.Pick%max(len(w.held), 1)
	if i < 0 {
		return
	}
	r := w.held[i]
	k := r.by.at(r.at)
	k.gave, k.touched = time.Now(), time.Now()
	if n := x.N - r.cost; x.Verb == Settle && n > 0 && !r.ended && r.Allowed && r.Reason != tiered.Shadowed && !w.unlimited(r.at) {
		r.by.counts[r.at.which].Leases.Spent += n
	}
	r.ended = true
	if x.Verb == Cancel {
		w.call(0, fmt.Sprintf("rs[%d].Cancel()", i), r.Cancel)
	} else {
		w.call(0, fmt.Sprintf("rs[%d].Settle(%d)", i, x.N), func() { r.Settle(x.N) })
	}
}

// together asks for a key of all policies at once.
func (p *process) together(x *Step, a place) {
	uses, text := p.uses(a.key, x.N)
	for i := range p.limiters {
		k := p.at(place{i, a.key})
		k.touched, k.gave = time.Now(), time.Now()
	}
	var d tiered.Decision
	each := make([]tiered.Decision, 2)
	p.call(p.Budget, "d = tiered.All("+text+").AllowEach(ctx, each)", func() { d = tiered.All(uses...).AllowEach(ctx, each) })
	p.judge(&d)
	for i := range uses {
		p.judge(&each[i])
		if d.Allowed || !each[i].Allowed && each[i].Reason != tiered.Unknown || each[i].Reason == tiered.Shadowed {
			p.counts[i].count(&each[i], x.N)
		} else if each[i].Reason == tiered.Fallback { // these tokens stay counted
			p.counts[i].Tokens.Fallback += x.N
		} else if each[i].Reason == tiered.Open {
			p.counts[i].Tokens.Open += x.N
		}
	}
}

// reserveAndCancel reserves a token, and cancels that if Pick is odd.
func (p *process) reserveAndCancel(x *Step, a place) {
	fails := x.Pick%2 == 1
	text := fmt.Sprintf("if r := %s; r.Allowed && %t {\nr.Cancel()\n}", p.text("Reserve", a), fails)
	p.call(p.Budget, text, func() {
		r := p.limiters[a.which].Reserve(ctx, a.key)
		err := r.Err()
		if r.Allowed && fails {
			r.Cancel()
		}
		var refused *tiered.LimitedError
		if errors.As(err, &refused) {
			p.decision(&refused.Decision, a.which, 1)
		} else {
			p.counts[a.which].admitted(1, p.unlimited(a), p.Policies[a.which].Shadow || p.isDown())
		}
	})
	p.at(a).gave = time.Now()
}

func (p *process) waitCode(x *Step, a place) string {
	return within(x.Pause, "_ = "+p.text("WaitN", a, x.N))
}

// wait waits for tokens. It returns what is to be noted then: callers in the background write
// nothing themselves.
func (p *process) wait(x *Step, a place) func() {
	ctx, cancel := context.WithTimeout(ctx, x.Pause)
	defer cancel()
	begin := time.Now()
	err := p.limiters[a.which].WaitN(ctx, a.key, x.N)
	end := time.Now()
	return func() {
		p.late(end.Sub(begin), x.Pause)
		p.at(a).touched = end
		unsure := p.isDown() || !begin.After(p.wentDown) && p.wentDown.Before(end) || !begin.After(p.cameBack) || p.Policies[a.which].Shadow
		p.counts[a.which].waited(err, x.N, end.Sub(begin), p.unlimited(a), unsure)
	}
}
