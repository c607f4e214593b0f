package tiered

import (
	"context"
	"errors"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Reset fills the bucket of key, and this process' standing share of it. What was used is forgiven,
// so a later Cancel in a window returns nothing. What is leased stays leased. For when other
// processes hear of it, how long it blocks, and what an error means, see [Limiter.Refund].
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if r := l.valid(key, 1); r != Granted {
		return l.refusal(key, 1, r).Err()
	}
	if err := l.credit(ctx, key, local.Fill); err != nil {
		return err
	}
	l.core.RefundShare(key, local.Fill)
	return nil
}

// Refund gives n tokens to key, 1 … 2⁴⁰: to make up for a request that failed later, or as a gift.
// To return what a request did not use, prefer [Reservation.Cancel], which does not block. The
// bucket gets no fuller than its burst, less what is leased; the rest is lost. With Standing this
// process' share gets tokens first, as far as it lacks them. A refund raises the bound by what was
// given in the interval. A known denial is dropped here at once, and in other processes within 5 s.
//
// It blocks for at most two Options.Budget. nil means that Redis has done it. After an error that
// is unknown, so a second call may give the tokens twice. If Algorithm is not TokenBucket, the
// error is errors.ErrUnsupported.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) error {
	if err := l.checkCost(key, n); err != nil {
		return err
	}
	if a := l.Policy().Algorithm; a.has(lua.Window) {
		return fmt.Errorf("%w: tiered: policy %q counts by a %v: tokens can be given to a TokenBucket only",
			errors.ErrUnsupported, l.core.Name, a)
	}
	if n -= l.core.RefundShare(key, n); n == 0 {
		return nil
	}
	return l.credit(ctx, key, n)
}

// checkCost reports a key or a number of tokens that is not valid.
func (l *Limiter) checkCost(key string, n int64) error {
	reason := l.valid(key, n)
	if reason == ExceedsBurst {
		reason = InvalidCost // no bucket can have so many
	}
	if reason == Granted {
		return nil
	}
	return l.refusal(key, n, reason).Err()
}

// Charge takes the tokens of u, 1 … 2⁴⁰ of each key, whether it has them or not: for a cost that is
// known afterwards and was not reserved. The key may go below zero, as far as Policy.MaxDebt
// allows, and is then refused until it has refilled, except that each other process may spend what
// it has leased. The rest is forgiven, and counted in Stats. In a window the charge counts as if it
// were admitted now, up to the limit. With Standing, this process' share of the key is charged
// first (docs/standing.md).
//
// It does not block, except that it calls Policy.PerKey if the process does not keep the key. Redis
// hears of it within 50 ms, or when it answers again, and other processes when they ask Redis next.
// Until then a key that is full there refills nothing, so after a minute without Redis the charge
// costs up to a minute's refill more; and if the process dies, it is lost. An error means that a
// key or the cost is not valid, and nothing was charged.
func (u Use) Charge() error {
	if u.n == 0 {
		return (*Limiter)(nil).checkCost("", 1)
	}
	for i := range u.n { // nothing is charged if anything is not valid
		p := u.at(i)
		if err := p.limiter.checkCost(p.key, p.cost); err != nil {
			return err
		}
	}
	u.countUnknownPlans()
	for i := range u.n {
		p := u.at(i)
		p.limiter.core.Charge(p.key, p.cost, p.limit)
	}
	return nil
}

// credit gives n tokens to key, or fills it with n = local.Fill, and waits until Redis has done it.
func (l *Limiter) credit(ctx context.Context, key string, n int64) error {
	done, cause := l.core.Credit(ctx, key, n)
	switch {
	case done:
		return nil
	case cause == nil:
		return fmt.Errorf("%w: Redis is not known to have changed a key of policy %q", ErrUnavailable, l.core.Name)
	}
	return fmt.Errorf("%w: Redis is not known to have changed a key of policy %q: %w", ErrUnavailable, l.core.Name, cause)
}
