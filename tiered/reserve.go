package tiered

import (
	"context"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Reservation is tokens that were taken, and that may be given back or corrected: once, by the first of Cancel and
// Settle. A Reservation that was refused, and the zero Reservation, hold nothing. Copies are the same Reservation.
type Reservation struct {
	Decision
	limiter *Limiter
	cost    int64
	taking  *taking
}

// taking is where tokens were taken from.
type taking struct {
	bucket *bucket
	source local.Source
	gen    int64 // of the pot, before they were taken
	stamp  *local.Stamp
	ended  atomic.Bool
}

func (t *taking) from(b *bucket, s local.Source) {
	if t == nil {
		return
	}
	if t.bucket != b {
		t.bucket, t.gen, t.stamp = b, b.Generation(), b.StampOf()
	}
	t.source = s
}

// counted notes what tokens were counted by that a verdict admits.
func (t *taking) counted(v local.Verdict) {
	if t != nil {
		t.stamp = v.Stamp
	}
}

// Reserve takes n tokens now, or refuses, as [Limiter.AllowN] does; never a future token. Give back with Cancel what was
// not used, or correct the cost with Settle when it is known.
func (l *Limiter) Reserve(ctx context.Context, key string, n int64) Reservation {
	t := new(taking)
	r := Reservation{limiter: l, cost: n, taking: t}
	l.take(ctx, key, n, t, &r.Decision)
	return r
}

// Cancel gives all tokens back: to the lease if nothing was sent to Redis since, else to Redis, within 50 ms. It neither
// blocks nor fails; what is lost on the way is burnt. Of what the share admitted while Redis did not answer, only the debt is
// taken back: the share has paid.
func (r Reservation) Cancel() { r.Settle(0) }

// Settle corrects the cost to what it turned out to be. What was too much goes back as by Cancel. What was too little is
// charged to the bucket, at most one burst of it, even below zero: the next requests wait for it. A negative actual
// counts as 0.
func (r Reservation) Settle(actual int64) {
	if !r.Allowed || r.taking == nil || !r.taking.ended.CompareAndSwap(false, true) {
		return
	}
	t, g := r.taking, r.limiter.group
	now := g.now()
	switch excess := r.cost - max(actual, 0); {
	case excess > 0:
		t.bucket.apply(now, t.bucket.GiveBack(now, excess, t.source, t.gen, t.stamp))
	case excess < 0:
		b := t.bucket
		e, ok := b.Owe(now, -excess)
		for ; !ok; e, ok = b.Owe(now, -excess) { // evicted and forgotten since
			b = g.find(now, b.ID())
		}
		b.apply(now, e)
	}
}

// Do calls fn if the limit admits one token for key, and gives the token back as [Reservation.Cancel] does if fn fails or
// panics: only successes count. It returns fn's error, or a *[LimitedError] without calling fn.
func (l *Limiter) Do(ctx context.Context, key string, fn func(context.Context) error) error {
	r := l.Reserve(ctx, key, 1)
	if !r.Allowed {
		return r.Err()
	}
	succeeded := false
	defer func() {
		if !succeeded {
			r.Cancel()
		}
	}()
	err := fn(ctx)
	succeeded = err == nil
	return err
}
