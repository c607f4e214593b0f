package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// A decision over one key begins in take, which admits what the lease holds. decideAtOnce refuses what is known to be
// denied. Everything else is a request over a list of one key: see request.

// Allow is AllowN for one token.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision) {
	l.take(ctx, key, 1, nil, &d)
	return d
}

// AllowN decides whether a request for key that costs n tokens may go on now, and takes them if so.
//
// It answers at once if the process holds a lease with n tokens, or knows that Redis has none. Otherwise it asks
// Redis and waits, at most for Options.Budget, and until 10 ms before the deadline of ctx: for half of the time if less
// than 20 ms are left. If Redis does not answer by then, the policy's FailMode decides, so there is an answer before the deadline. It checks ctx only
// while it waits: the Reason is [Canceled] if ctx is canceled meanwhile, or had ended before. There is no error to
// handle: the Decision's Reason says what went wrong.
//
// The key may be any bytes, 1 to [MaxKeyLength] of them. n must be 1 to the burst: to 7/8 of it with
// Standing.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision) {
	l.take(ctx, key, n, nil, &d)
	return d
}

// take is AllowN. If t is not nil, take stores in it how the tokens can be returned. It writes the Decision into *d,
// because copies of it were a quarter of the cost of a decision.
func (l *Limiter) take(ctx context.Context, key string, n int64, t *taking, d *Decision) {
	if l.isZero() {
		*d = Decision{}
		return
	}
	mode := l.mode.Load()
	if mode&^modeStanding != 0 {
		l.takeInMode(ctx, key, n, t, d)
		return
	}
	if uint(len(key)-1) >= MaxKeyLength || uint64(n-1) >= maxTokens {
		l.invalid(d, key, valid(key, n))
		l.countRequest(d, n)
		return
	}
	g := l.group
	now := g.now()
	if mode != 0 {
		l.takeStanding(ctx, now, key, n, t, d)
		return
	}
	b := g.find(now, l.id(key))
	if t != nil {
		t.setSource(b, local.FromLease)
	}
	left, ok, renew := b.Take(now, n)
	if !ok {
		if t == nil {
			if l.decideAtOnce(d, now, b, key, n) {
				return
			}
			t = &taking{limiter: l, key: key, cost: n, bucket: b}
		}
		t.ask(ctx, now, d)
		return
	}
	if renew {
		b.apply(now, b.Renew(now))
	}
	b.decide(d, now, key, answer{Granted, Local, left, 0})
	if n != 1 {
		l.countRequest(d, n)
	}
}

// decideAtOnce decides without Redis if the lease does not hold the tokens: by a known denial, or by the fail mode. It
// reports false if it cannot decide. The same by a request would cost half as much again.
func (l *Limiter) decideAtOnce(d *Decision, now time.Duration, b *bucket, key string, n int64) bool {
	p := b.Policy()
	if p.Rule != local.ByLimit || n > p.Cap || l.group.closed.Load() {
		return false
	}
	node := b.unhealthy()
	if node == nil {
		v, denied := b.Refuse(now, n)
		if denied {
			b.decide(d, now, key, answer{Limited, Local, v.Left, v.Retry})
			b.CountRefused(n) // after the Decision is written: see local.CountRefused
			if n != 1 {
				l.countRequest(d, n)
			}
		}
		return denied
	}
	if node.ProbeDue(now) {
		return false
	}
	if v, ok := b.TryFallback(now, n); ok {
		b.byFailMode(d, now, key, v)
		b.CountFallback(n)
		l.countRequest(d, n)
		return true
	}
	if b.fallBack(d, now, key, n).Outcome == local.Outdated {
		return false
	}
	l.countRequest(d, n)
	return true
}

// takeInMode is take of a Limiter that is traced, unlimited or in shadow mode.
func (l *Limiter) takeInMode(ctx context.Context, key string, n int64, t *taking, d *Decision) {
	if t == nil {
		t = &taking{limiter: l, key: key, cost: n}
	}
	r := request{{taking: *t}}
	r.decide(ctx, d)
	*t = r[0].taking
}

// valid returns Granted, or the reason why no limit would admit the request. It does not know the key's burst.
func valid(key string, n int64) Reason {
	switch {
	case key == "" || len(key) > MaxKeyLength:
		return InvalidKey
	case n <= 0:
		return InvalidCost
	case n > maxTokens:
		return ExceedsBurst
	}
	return Granted
}

// ask decides over one key whose lease does not hold the tokens, by a request.
func (t *taking) ask(ctx context.Context, now time.Duration, d *Decision) {
	r := request{{taking: *t, now: now, until: now + t.limiter.group.options.Budget}}
	r[0].decideHere()
	r.decideRest(ctx, d)
	*t = r[0].taking
}

// unhealthy returns the node that b was last sent to if its breaker is not closed, and otherwise nil. It only reads the
// breaker's state. A sender asks the breaker for permission just before it sends something.
func (b *bucket) unhealthy() *dispatch.Node {
	n := b.node.Load()
	if n == nil {
		n = b.knownNode()
	}
	if n == nil || n.State() == failover.Closed {
		return nil
	}
	return n
}

// probe reports whether b's node is unhealthy, and sends it a probe if one is due.
func (b *bucket) probe(now time.Duration) bool {
	n := b.unhealthy()
	if n != nil && n.ProbeDue(now) {
		b.apply(now, b.Probe())
	}
	return n != nil
}
