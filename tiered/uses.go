package tiered

import (
	"context"
	"fmt"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Use is what one request needs of one key: tokens of a policy. Make it with [Limiter.For]. The zero Use is refused.
type Use struct {
	limiter *Limiter
	key     string
	cost    int64
	limit   *engine.Resolved // that the request carries; nil is none
}

// For returns a use of one token of key: of more by [Use.N], and by another limit by [Use.WithLimit]. It takes nothing and
// does not block. Give it to [All], or ask it alone:
//
//	d := perTenant.For(tenant).N(cost).WithLimit(plan).Allow(ctx)
func (l *Limiter) For(key string) Use {
	if l.isZero() {
		l = nil
	}
	return Use{limiter: l, key: key, cost: 1}
}

// String says what is asked, without the key, which may be a secret.
func (u Use) String() string {
	if u.limiter == nil {
		return "zero use"
	}
	return fmt.Sprintf("use of policy %q, cost %d", u.limiter.core.Name, u.cost)
}

// N returns u with a cost of n tokens, whatever it cost before.
func (u Use) N(n int64) Use {
	u.cost = n
	return u
}

// Allow is [Uses.Allow] of this use alone.
func (u Use) Allow(ctx context.Context) Decision { return All(u).Allow(ctx) }

// Wait is [Uses.Wait] of this use alone.
func (u Use) Wait(ctx context.Context) error { return All(u).Wait(ctx) }

// Reserve takes the tokens of this use now, and never reserves the future: it is [Uses.Reserve] of this use alone.
func (u Use) Reserve(ctx context.Context) Reservation { return All(u).Reserve(ctx) }

// Uses are several uses that one request needs together. They hold no tokens, and may be used again and concurrently.
// The zero Uses, and All without uses, are refused with Reason Unknown, so that a route without its limits is not
// open.
type Uses struct {
	n     int
	first [engine.InlineParts]numbered
	more  []numbered // those after first
}

// numbered is a use and its index among the arguments of All.
type numbered struct {
	Use
	place int
}

// All joins uses of several keys, of one policy or of several: all of them are admitted, or none. Two uses of
// the same key of the same Limiter count as one use with the sum of their costs.
//
// The Limiters may belong to different Groups. Then the shortest of their Budgets counts.
func All(uses ...Use) Uses {
	u := Uses{n: len(uses)}
	if u.n > engine.InlineParts {
		u.more = make([]numbered, u.n-engine.InlineParts)
	}
	// All callers use one order. If two requests want the last tokens of the same keys, the one that is first at the
	// first key is mostly first at all of them, and is admitted. In opposite orders each would refuse the other.
	for i, use := range uses {
		j := i
		for ; j > 0 && use.before(&u.at(j-1).Use); j-- {
			*u.at(j) = *u.at(j - 1)
		}
		*u.at(j) = numbered{use, i}
	}
	return u
}

// String says what is asked, without the keys, which may be secrets.
func (u Uses) String() string {
	all := make([]string, u.n)
	for i := range u.n {
		n := u.at(i)
		all[n.place] = n.String()
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// at returns the i-th in order.
func (u *Uses) at(i int) *numbered {
	if i < engine.InlineParts {
		return &u.first[i]
	}
	return &u.more[i-engine.InlineParts]
}

// before reports whether u is asked before v: by the policy's name, then by the key.
func (u *Use) before(v *Use) bool {
	if u.limiter == nil || v.limiter == nil {
		return u.limiter == nil && v.limiter != nil
	}
	if c := strings.Compare(u.limiter.core.Name, v.limiter.core.Name); c != 0 {
		return c < 0
	}
	return u.key < v.key
}

// Allow decides whether a request that needs all the uses may go on now, and takes their tokens if so: all or nothing.
// If one use is refused, what was taken is returned: to the lease at once, or to Redis within 50 ms. Tokens that are
// lost on the way are burnt.
//
// A key that is known to be over its limit is refused without a call. What this process does not know goes to Redis in
// one pipeline per node. Allow waits at most for Options.Budget in all, and no longer than [Limiter.AllowN] if ctx has
// a deadline; then each policy decides by its own FailMode. It allocates nothing for up to four uses that this process
// decides alone.
//
// A refusal is the Decision of the strictest use that refused: one for which waiting does not help, or the one with the
// longest RetryAfter. An admission is that of the use that has room for the fewest further requests of this kind
// (Remaining ÷ cost).
func (u Uses) Allow(ctx context.Context) Decision { return u.AllowEach(ctx, nil) }

// AllowEach does what [Uses.Allow] does, and writes the Decision of the i-th use given to [All] to each[i], as far as
// each has room. If the request is refused, a use that would have been admitted is Granted, with its tokens back in
// Remaining. One that was not decided, because another had refused before, has Reason Unknown, and its Remaining is
// what this process held and last saw in Redis.
func (u Uses) AllowEach(ctx context.Context, each []Decision) (d Decision) {
	var room [engine.InlineParts]engine.Part
	r := u.request(room[:0])
	if p := r.Decide(ctx); p != nil {
		t := p.Told()
		tell(&d, &t)
	}
	r.End()
	for i := range u.n {
		if use := u.at(i); use.place < len(each) {
			p, _ := r.Find(use.limiter.engine(), use.key)
			t := p.State(r.Refused())
			tell(&each[use.place], &t)
		}
	}
	return d
}

// AllowSeparately decides each use as [Use.Allow] would: one that is refused takes nothing, and changes nothing for the
// others. Use it for a batch of independent requests, because all that this process does not know goes to Redis in one
// pipeline per node. It takes no longer than the longest of them. It writes to each as AllowEach does.
func (u Uses) AllowSeparately(ctx context.Context, each []Decision) {
	var room [engine.InlineParts]engine.Part
	r := engine.Request(room[:0])
	for i := range u.n {
		use := &u.at(i).Use
		r = r.NeedAlone(use.limiter.engine(), use.key, use.cost, use.limit)
	}
	r.DecideSeparately(ctx)
	for i := range r {
		if place := u.at(i).place; place < len(each) {
			t := r[i].Told()
			tell(&each[place], &t)
		}
	}
}

// request appends the uses to r in order. Uses of one key become one part.
func (u *Uses) request(r engine.Request) engine.Request {
	for i := range u.n {
		use := &u.at(i).Use
		r = r.Need(use.limiter.engine(), use.key, use.cost, use.limit)
	}
	return r
}

// engine returns the part of l that decides, nil if l is nil.
func (l *Limiter) engine() *engine.Limiter {
	if l == nil {
		return nil
	}
	return &l.core
}

// Reserve takes the tokens of all uses now or none, as [Uses.Allow] does, and never reserves the future.
// [Reservation.Settle] takes one actual cost for each use, in the order that was given to All.
func (u Uses) Reserve(ctx context.Context) (r Reservation) {
	h := new(held)
	parts := u.request(make(engine.Request, 0, u.n))
	if p := parts.Decide(ctx); p != nil {
		t := p.Told()
		tell(&r.Decision, &t)
	}
	parts.End()
	h.takings, h.uses = make([]engine.Taking, len(parts)), make([]useCost, u.n)
	for i := range parts {
		h.takings[i] = parts[i].Taking
	}
	for i := range u.n {
		use := u.at(i)
		_, part := parts.Find(use.limiter.engine(), use.key)
		h.uses[use.place] = useCost{taking: part, cost: use.cost}
	}
	r.held = h
	return r
}
