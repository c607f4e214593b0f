package tiered

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Allow is AllowN for one token.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision) {
	l.allow(ctx, key, 1, &d)
	return d
}

// AllowN decides whether a request for key that costs n tokens may go on now, and takes them if so.
// The key may be any 1 to 65 536 bytes. n must be 1 to the burst: to the part of Redis with
// Standing.
//
// It answers at once if the process holds a lease with n tokens, or knows that Redis has none.
// Otherwise it waits for Redis, at most for Options.Budget, and until 10 ms before the deadline of
// ctx: for half of the time if less than 20 ms are left. If Redis does not answer by then, the
// policy's FailMode decides. The Reason is Canceled if ctx had ended before the wait, or is
// canceled meanwhile; then nothing is taken. A request that makes its own call to Redis sees that
// when Redis answers, or after Budget.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision) {
	l.allow(ctx, key, n, &d)
	return d
}

// allow is AllowN. It is apart so that AllowN is inlined, and d is written where the caller has it:
// a copy of it costs a tenth of a decision.
func (l *Limiter) allow(ctx context.Context, key string, n int64, d *Decision) {
	if l.isZero() {
		*d = Decision{}
		return
	}
	if l.core.Carries() { // the Decision tells of the request's limit, and not of a larger one that others carried
		*d = l.For(key).N(n).Allow(ctx)
		return
	}
	o, b, now := l.core.Take(ctx, key, n, nil)
	if l.core.Carries() { // the first of them came meanwhile
		t := l.core.Told(o, key, n, b, now)
		tell(d, &t)
		return
	}
	write(d, o, key, n, b, now, nil)
}

// mostAttempts bounds the attempts of AllowAtMost, and with them its round trips.
const mostAttempts = 4

// AllowAtMost takes as many tokens as there are, up to n, and returns how many: 0 if d is a
// refusal. Use it for work that can be done in part. If none are left, RetryAfter is the time until
// the same call gets something.
//
// If there are not n tokens it asks again, up to three times, for those that the last answer said
// are left, so it blocks for up to four Options.Budget, and each attempt counts in Stats. d is the
// last Decision that took tokens, if any did. It may get fewer than are left if others take some
// meanwhile, or if Redis does not answer.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (granted int64, d Decision) {
	n = min(n, engine.MaxTokens)
	ask := n
	for range mostAttempts {
		answer := l.AllowN(ctx, key, ask)
		if answer.Allowed || granted == 0 {
			d = answer
		}
		switch answer.Reason {
		case Granted:
			granted += ask
			ask = min(n-granted, answer.Remaining)
		case Limited, FallbackSpent:
			ask = min(ask-1, max(answer.Remaining, 1))
		case ExceedsBurst:
			ask = min(ask-1, max(answer.Burst, 1))
		default: // Remaining says nothing of what a fail mode has
			if answer.Allowed {
				granted += ask
			}
			return granted, d
		}
		if ask <= 0 {
			break
		}
	}
	return granted, d
}

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until n tokens of key are admitted, first come, first served within this process:
// tokens that come are kept for calls that wait. If other processes take those tokens, this process
// refuses other calls for the key for half of the time at most.
//
// It returns nil if the tokens were taken, and ctx.Err() if ctx ended first; then nothing was
// taken. It returns a *LimitedError at once if waiting cannot help: the key or the cost is invalid,
// the cost exceeds the burst (or, without Redis, the fallback's), Redis does not answer and the
// policy fails closed, or the tokens cannot be there before the deadline of ctx. In the last case
// errors.Is finds context.DeadlineExceeded, and ErrLimited; without Redis the Reason is
// FallbackSpent or Unavailable. A key that was refused just before Redis failed counts as limited
// for up to 5 s.
//
// The time is estimated as if this were the only process. Nobody announces tokens that others
// return, a Reset, or the end of an outage, so the first waiter asks again after 5.5 s, or 1 s
// without Redis: see docs/waiting.md.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if !l.isZero() && (ctx == nil || ctx.Err() == nil) && l.core.TakeLeased(key, n) {
		return nil
	}
	return l.For(key).N(n).Wait(ctx)
}
