package engine

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// The walk over the sources of tokens, which engine.go lists. A new source is a constant there, a
// case in look and take here, and one in [source.putBack]. Four functions ask some of the sources
// without it, because each is for one purpose: [Limiter.Take] and [Limiter.TakeLeased] for speed,
// [Part.foreseenByRedis] and [Limiter.Known] to tell of a key.

// walk asks the sources one after the other, until the parts are decided. A request for several
// keys has asked [Part.refuseKnown] before.
//
// The order keeps small what has to be put back if a part refuses. Leases and shares come first,
// because tokens can be put back into them. What is known to be refused needs no call. Redis is
// next, for all keys at once. Fail modes are last, because nothing can be put back into a fallback.
func (r Request) walk(ctx context.Context) {
	for s := lease; s <= failMode && r.pending(); s++ {
		switch s {
		case redis:
			r.askRedis(ctx)
		case failMode:
			r.fallBack()
		default:
			for i := range r {
				if p := &r[i]; p.state == undecided {
					s.take(p)
				}
			}
		}
	}
	for i := range r {
		if p := &r[i]; p.Limiter != nil && p.Limiter.carries.Load() {
			if p.goByOwn(); p.state == refused {
				p.Outcome = p.byOwnLimit(ctx, p.Outcome)
			}
		}
	}
}

// fallBack lets the fail modes decide, once everything is taken that other sources decide. If there
// are several parts, it first checks that each fail mode would admit its part.
func (r Request) fallBack() {
	for i := range r {
		if p := &r[i]; p.several {
			p.refuseKnown()
		}
	}
	for i := range r {
		if p := &r[i]; p.state == leftToFailMode && !(p.several && r.has(refused)) {
			failMode.take(p)
		}
	}
}

// look returns the source that would decide the part, and how: see [source.look]. The fail mode
// always does.
func (p *Part) look() (s source, o local.Outcome) {
	s = lease
	if p.state == leftToFailMode {
		s = failMode
	}
	for ; ; s++ {
		if o, ok := s.look(p); ok {
			return s, o
		}
	}
}

// refuseKnown refuses the part if this process knows that the source which would decide it refuses.
// It looks first, so that a part that may be admitted takes nothing while other parts may refuse.
func (p *Part) refuseKnown() {
	for p.pending() {
		s, o := p.look()
		if s == failMode {
			p.leaveToFailMode()
		}
		switch {
		case s == redis, o.Allowed():
			return
		case o.Reason == local.Outdated:
			p.findAgain(failMode)
		default:
			s.take(p)
		}
	}
}

// look returns how the source would decide over a part. It takes nothing and counts nothing. It
// reports false if the next source would be asked. The Reason is Unknown if Redis would decide, and
// Outdated if the part's bucket is to be looked up again.
func (s source) look(p *Part) (o local.Outcome, ok bool) {
	b := p.bucket
	o.Policy = b.Policy()
	switch s {
	case lease:
		o.Left, ok = b.Hot().Foresee(p.now, p.Cost)
		o.Reason, o.Tier = local.Granted, local.Local
	case standingShare:
		if ok = b.share().holds(p.now, p.Cost); ok {
			o = local.Decided(o.Policy, local.Granted, local.Local, b.seenLeft(p.now), 0)
		}
	case denial:
		if p.down() {
			return o, false
		}
		o, ok = p.denied()
	case redis:
		return o, !p.down()
	case failMode:
		o, ok = b.ForeseeFailMode(p.now, p.Cost, p.Limiter.Group.fleetOf(b)), true
	}
	if ok {
		o = b.share().tell(o, p.now, p.Cost)
	}
	return o, ok
}

// take lets the source decide over a part, and counts that. The part stays undecided if the next
// source is to be asked. Redis is asked about all parts at once instead: see [Request.askRedis].
func (s source) take(p *Part) {
	b := p.bucket
	switch s {
	case lease:
		left, ok, renew := b.Hot().Take(p.now, p.Cost)
		if ok {
			p.renew = renew
			p.answer(local.Decided(b.Policy(), local.Granted, local.Local, left, 0))
		}
	case standingShare:
		if o, ok := p.Limiter.takeShare(p.now, b, b.ID(), p.Cost, &p.Tokens); ok {
			p.decided(o, b)
		}
	case denial:
		if o, ok := s.look(p); ok {
			if !p.asksAgain() {
				b.Hot().CountRefused(p.Cost)
			}
			p.decided(o, b)
		}
	case failMode:
		p.fallBack()
	}
}

// denied reports whether this process knows that Redis refuses the tokens.
func (p *Part) denied() (local.Outcome, bool) {
	if p.asksAgain() {
		return p.bucket.Hot().RefuseWaiter(p.now, p.Cost)
	}
	return p.bucket.Hot().Refuse(p.now, p.Cost)
}
