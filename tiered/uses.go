package tiered

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Use is what one request needs: tokens of one key ([Limiter.For]), or of several ([All]). It holds
// no tokens, and may be used again and concurrently. The zero Use is refused with Reason Unknown,
// so that a route without limits is not open.
type Use struct {
	n     int
	first [engine.InlineParts]part
	more  []part // those after first
}

// part is what a request needs of one key.
type part struct {
	limiter *Limiter // nil is refused
	key     string
	cost    int64
	limit   *engine.Resolved // that the request carries, or that of its plan; nil is none
	agreed  bool             // limit is one that the request carries, which beats a plan
	unknown bool             // it names a plan that the policy does not have, and the policy has plans
	place   int              // its index among the arguments of All
}

// For returns a use of one token of key. It takes nothing and does not block:
//
//	d := perTenant.For(tenant).N(cost).WithPlan(plan).Allow(ctx)
func (l *Limiter) For(key string) Use {
	if l.isZero() {
		l = nil
	}
	u := Use{n: 1}
	u.first[0] = part{limiter: l, key: key, cost: 1}
	return u
}

// All joins uses: all are admitted, or none. Those of one key of a Limiter count as one with the
// sum of their costs. The least Budget of several Groups counts.
func All(uses ...Use) Use {
	var u Use
	for i := range uses {
		u.n += max(uses[i].n, 1)
	}
	if u.n > engine.InlineParts {
		u.more = make([]part, u.n-engine.InlineParts)
	}
	// All callers use one order. If two requests want the last tokens of the same keys, the one
	// that is first at the first key is mostly first at all of them, and is admitted. In opposite
	// orders each would refuse the other.
	place := 0
	for i := range uses {
		given := &uses[i]
		for j := range max(given.n, 1) {
			var p part // a zero use is refused
			if given.n > 0 {
				p = *given.at(j)
			}
			p.place += place
			at := place + j
			for ; at > 0 && p.before(u.at(at-1)); at-- {
				*u.at(at) = *u.at(at - 1)
			}
			*u.at(at) = p
		}
		place += max(given.n, 1)
	}
	return u
}

// own gives u a list of parts that it shares with no copy.
func (u *Use) own() { u.more = slices.Clone(u.more) }

// N returns u with a cost of n tokens of each of its keys.
func (u Use) N(n int64) Use {
	u.own()
	for i := range u.n {
		u.at(i).cost = n
	}
	return u
}

// String says what is asked, without the keys.
func (u Use) String() string {
	all := make([]string, u.n)
	for i := range u.n {
		p := u.at(i)
		if all[p.place] = "zero use"; p.limiter != nil {
			all[p.place] = fmt.Sprintf("use of policy %q, cost %d", p.limiter.core.Name, p.cost)
		}
	}
	switch u.n {
	case 0:
		return "zero use"
	case 1:
		return all[0]
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// at returns the i-th in order.
func (u *Use) at(i int) *part {
	if i < engine.InlineParts {
		return &u.first[i]
	}
	return &u.more[i-engine.InlineParts]
}

// before reports whether p is asked before q: by the policy's name, then by the key.
func (p *part) before(q *part) bool {
	if p.limiter == nil || q.limiter == nil {
		return p.limiter == nil && q.limiter != nil
	}
	if c := strings.Compare(p.limiter.core.Name, q.limiter.core.Name); c != 0 {
		return c < 0
	}
	return p.key < q.key
}

// Allow decides whether a request that needs all keys of u may go on now, and takes their tokens if
// so: all or nothing. If one key is refused, what was taken goes back to its lease at once, or to
// Redis within 50 ms, or is burnt on the way.
//
// A key that is known to be over its limit is refused without a call. What this process does not
// know goes to Redis in one pipeline per node. Allow waits no longer than [Limiter.AllowN] in all;
// then each policy decides by its own FailMode. Up to four keys that this process decides alone
// cost no allocation.
//
// The Decision of a refused request is that of the key for which waiting does not help, or else
// takes longest. That of an admitted one is of the key with room for the fewest further requests of
// this kind (Remaining ÷ cost).
func (u Use) Allow(ctx context.Context) Decision { return u.AllowEach(ctx, nil) }

// AllowEach is [Use.Allow], and writes the Decision of the i-th use given to [All] to each[i], as
// far as each has room. If the request is refused, a use that would have been admitted is Granted,
// with its tokens back in Remaining. One that was not decided, because another had refused before,
// has Reason Unknown, and as Remaining what this process held and last saw in Redis.
func (u Use) AllowEach(ctx context.Context, each []Decision) (d Decision) {
	var room [engine.InlineParts]engine.Part
	wide := roomFor(u.n)
	r := u.request(wide.or(room[:0]))
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
	wide.release(u.n)
	return d
}

// wideRoom is room for a request of more than InlineParts parts. It is reused, because garbage
// would be a good part of the cost of a key that was never seen before.
type wideRoom struct{ engine.Request }

var wideRooms = sync.Pool{New: func() any { return new(wideRoom) }}

// roomFor returns room for n parts, nil if they are few.
func roomFor(n int) *wideRoom {
	if n <= engine.InlineParts {
		return nil
	}
	w := wideRooms.Get().(*wideRoom)
	w.Request = slices.Grow(w.Request, n)
	return w
}

// or returns the room, or else few.
func (w *wideRoom) or(few engine.Request) engine.Request {
	if w == nil {
		return few
	}
	return w.Request
}

// release takes the room of n parts back, when the request in it has ended.
func (w *wideRoom) release(n int) {
	if w != nil {
		clear(w.Request[:n])
		wideRooms.Put(w)
	}
}

// AllowSeparately decides each use given to [All] alone, as a batch of independent requests: one
// that is refused takes nothing, and changes nothing for the others. What this process does not
// know goes to Redis in one pipeline per node. It takes no longer than the longest of them, and
// writes to each as AllowEach does.
func (u Use) AllowSeparately(ctx context.Context, each []Decision) {
	var room [engine.InlineParts]engine.Part
	wide := roomFor(u.n)
	r := wide.or(room[:0])
	u.countUnknownPlans()
	for i := range u.n {
		use := u.at(i)
		r = r.NeedAlone(use.limiter.engine(), use.key, use.cost, use.limit)
	}
	r.DecideSeparately(ctx)
	for i := range r {
		if place := u.at(i).place; place < len(each) {
			t := r[i].Told()
			tell(&each[place], &t)
		}
	}
	wide.release(u.n)
}

// request appends the uses to r in order. Uses of one key become one part.
func (u *Use) request(r engine.Request) engine.Request {
	u.countUnknownPlans()
	for i := range u.n {
		use := u.at(i)
		r = r.Need(use.limiter.engine(), use.key, use.cost, use.limit)
	}
	return r
}

// countUnknownPlans counts requests with plans that the policy does not have, and logs the first
// one. The line does not have its name, because a name that comes with a request may be anything,
// even a secret.
func (u *Use) countUnknownPlans() {
	for i := range u.n {
		if p := u.at(i); p.unknown && p.limiter.unknownPlans.Add(1) == 1 {
			l := p.limiter
			l.group.journal.Line(slog.LevelError, "a request has a plan that the policy does not have: the policy's own limit decides",
				"policy", l.core.Name, "plans", strings.Join(planNames(policyOf(l.core.Settings()).Plans), ", "))
		}
	}
}

// engine returns the part of l that decides, nil if l is nil.
func (l *Limiter) engine() *engine.Limiter {
	if l == nil {
		return nil
	}
	return &l.core
}

// Wait waits until all keys of u are admitted together, and takes their tokens: all or nothing. Its
// errors are those of [Limiter.WaitN]. It holds no tokens meanwhile, and waits only in the queue of
// the key that refused it: waiting for one user delays no other user of the same tenant.
func (u Use) Wait(ctx context.Context) error {
	var room [1]engine.Part
	return errorOf(u.request(room[:0]).Wait(orBackground(ctx)))
}
