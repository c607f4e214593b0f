package rls

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// check is a descriptor of a request, with the limit that it meets.
type check struct {
	refused  bool  // by its form: it is over the limit, and takes nothing
	rule     *rule // nil if there is none, or if another one replaces it
	limiter  *tiered.Limiter
	counts   *atomic.Pointer[statistics.Counts] // of the rule; nil for a limit that comes with the request
	key      string
	hits     int64 // 0 only looks
	gone     int64 // hits that were left, and are gone because those asked for are refused
	back     bool  // the hits are given back
	decided  bool
	limit    tiered.Limit
	decision tiered.Decision
}

// room is what a call needs until it is answered. It is used again: a flood of values that were
// never seen makes garbage enough, and garbage decides how much memory the process takes.
type room struct {
	checks    []check
	uses      []tiered.Use
	decisions []tiered.Decision
	name      []byte // of statistics
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// take adds what a check takes to what is decided next.
func (r *room) take(c *check) {
	r.uses, r.decisions = append(r.uses, c.use()), append(r.decisions, tiered.Decision{})
}

// empty forgets what was decided, and the keys.
func (r *room) empty() {
	clear(r.uses)
	clear(r.decisions)
	r.uses, r.decisions = r.uses[:0], r.decisions[:0]
}

// release gives the room back.
func (r *room) release() {
	r.empty()
	clear(r.checks)
	r.checks = r.checks[:0]
	if cap(r.name) > longestKept {
		r.name = nil
	}
	rooms.Put(r)
}

func (c *check) use() tiered.Use { return c.limiter.For(c.key).N(c.hits).WithLimit(c.limit) }

// look reads what is left, and takes nothing. It is over the limit if nothing is left.
func (c *check) look(ctx context.Context) {
	d := c.use().N(1).Peek(ctx)
	if d.Reason == tiered.Granted || d.Reason == tiered.Limited || d.Reason == tiered.ExceedsBurst {
		d.Allowed = d.Remaining > 0 || c.rule.policy.Shadow
	}
	c.decision = d
}

// giveBack gives the hits back. If Redis does not answer, they stay taken.
func (c *check) giveBack(ctx context.Context) {
	if err := c.limiter.Refund(ctx, c.key, c.hits); err != nil {
		c.decision = tiered.Decision{Reason: tiered.Unavailable}
		return
	}
	c.look(ctx)
	c.decision.Allowed = true
}

// takes reports whether the check is to take hits. Otherwise it looks, gives hits back, has no
// limit or is decided.
func (c *check) takes() bool { return c.limiter != nil && !c.decided && c.hits > 0 && !c.back }

// each decides by itself each check that is not decided yet, in the order of the request.
func (r *room) each(ctx context.Context) {
	checks := r.checks
	r.empty()
	for i := range checks {
		if c := &checks[i]; c.takes() {
			r.take(c)
		}
	}
	tiered.All(r.uses...).AllowSeparately(ctx, r.decisions)
	var looks sync.WaitGroup // at the same time, because each may wait for Redis
	defer looks.Wait()
	n := 0
	for i := range checks {
		switch c := &checks[i]; {
		case c.takes():
			c.decision = r.decisions[n]
			c.countRefused(ctx)
			n++
		case c.limiter == nil, c.decided:
		case c.back:
			looks.Go(func() { c.giveBack(ctx) })
		default:
			looks.Go(func() { c.look(ctx) })
		}
	}
}

// countRefused takes hits that are refused, if the rule counts them: of a window what is left of
// it, of a token bucket all, as a debt. Redis hears of it within 50 ms. In shadow mode too, where
// they are admitted.
//
// A single hit that a window refuses finds nothing left. It takes nothing: otherwise it would take
// what other replicas hold in leases and give back.
func (c *check) countRefused(ctx context.Context) {
	d := &c.decision
	switch d.Reason {
	case tiered.Limited, tiered.ExceedsBurst, tiered.Shadowed:
	default:
		return
	}
	if !c.rule.countsRefused(c.hits) || c.hits == 1 && c.rule.has(lua.Window) {
		return
	}
	_ = c.use().Charge() // it is valid: it was decided about
	p := &c.rule.policy
	debt := max(p.MaxDebt, p.Limit.Burst, p.Limit.Tokens) // the rest is forgiven
	longer, edges := refill(p, min(c.hits, debt)), c.rule.has(lua.Edges)
	if edges { // its window ends when it does, also one of the calendar, which has no Per
		longer = 0
	}
	switch window := c.rule.has(lua.Window); {
	case d.RetryAfter == 0 || edges: // no retry helps, or the window's end is told
	case len(p.Limit.Each()) > 1 || window && d.Remaining > 0: // what is left of a window is gone; the next refusal finds nothing
		d.RetryAfter = max(d.RetryAfter, c.use().Peek(ctx).RetryAfter)
	case !window:
		d.RetryAfter = min(d.RetryAfter+longer, refill(p, c.hits+debt))
	}
	c.gone = d.Remaining
	d.Remaining, d.ResetAfter = 0, max(min(d.ResetAfter, math.MaxInt64/4)+longer, d.RetryAfter)
}

// refill returns how long the limit of a policy takes for n tokens.
func refill(p *tiered.Policy, n int64) time.Duration {
	return time.Duration(min(float64(n)*float64(p.Limit.Per)/float64(p.Limit.Tokens), math.MaxInt64/4))
}

// together takes the hits of all checks, or none. A check that took nothing because of another one
// answers what is left. It leaves to each what cannot refuse the request: checks that take no hits,
// and those in quota mode. If the request is refused, those in quota mode take nothing either, and,
// unless it is strict, those that are over their limits count as they would alone.
func (s *Service) together(ctx context.Context, r *room, strict bool) {
	checks := r.checks
	var at []*check
	for i := range checks {
		if c := &checks[i]; c.takes() && !s.quota(c) {
			r.take(c)
			at = append(at, c)
		}
	}
	if !slices.ContainsFunc(checks, func(c check) bool { return c.refused && !s.quota(&c) }) {
		if at == nil {
			return
		}
		d := r.decisions
		all := tiered.All(r.uses...).AllowEach(ctx, d)
		for i, c := range at {
			c.decision, c.decided = d[i], true
			if d[i].Reason == tiered.Unknown && all.Reason != tiered.Unknown { // not decided: another one refused before
				c.decision.Allowed, c.decision.Reason = true, tiered.Granted
			}
		}
		for _, c := range at {
			if !strict {
				c.countRefused(ctx)
			}
		}
		if all.Allowed {
			return
		}
	}
	var looks sync.WaitGroup
	defer looks.Wait()
	for i := range checks {
		if c := &checks[i]; c.takes() {
			c.decided = true
			looks.Go(func() { c.look(ctx) })
		}
	}
}

// quota reports whether a check is in quota mode: it refuses a request only if all that are in
// quota mode are over their limits.
func (s *Service) quota(c *check) bool {
	if c.rule != nil && c.rule.unlimited {
		return false
	}
	return s.options.Quota || c.limiter != nil && c.rule.quota
}
