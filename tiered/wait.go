package tiered

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until n tokens of key are admitted, first come, first served within this process: meanwhile the tokens
// that come are kept for those who wait, and other calls for the key are refused. If other processes take the tokens all
// the same, that is so for half of the time at most.
//
// WaitN returns nil if the tokens were taken. It returns ctx.Err() if ctx ended first; then nothing was taken. It returns
// a *[LimitedError] at once if waiting cannot help: the key or the cost is invalid, the cost exceeds the burst (or, while
// Redis does not answer, the fallback's), Redis does not answer and the policy fails closed, or the tokens cannot be there
// before the deadline of ctx. In the error of the last case errors.Is finds [ErrLimited] and context.DeadlineExceeded.
//
// WaitN estimates when the tokens will be there as if this were the only process: by the level last seen in Redis, the
// refill, and what the waiters in front want. It ignores that other processes may return tokens sooner, or take them
// first. A waiter that cannot be served in time leaves at once, and delays nobody.
//
// A waiter sleeps until a reply comes or until tokens can be there. The first waiter asks for those behind it too.
// Nobody announces tokens that others return, a Reset, or the end of an outage. So the first waiter also asks after 5.5
// s, or after 1 s while Redis does not answer.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if !l.isZero() && (ctx == nil || ctx.Err() == nil) && l.core.TakeLeased(key, n) {
		return nil
	}
	return l.For(key).N(n).Wait(ctx)
}

// Wait waits until all uses are admitted together, and takes their tokens: all or nothing. It returns nil if the tokens
// were taken. It returns ctx.Err() if ctx ended first; then nothing was taken. It returns a *[LimitedError] at once if
// waiting cannot help, as [Limiter.WaitN] does.
//
// It holds no tokens while it waits. With one key it is [Limiter.WaitN]. With several it waits in the queue of the key that
// refused it, first come, first served, and in no other. So a caller that waits for one user's limit does not delay callers
// for another user of the same tenant.
func (u Uses) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	var room [1]engine.Part
	return errorOf(u.request(room[:0]).Wait(ctx))
}

// errorOf makes a *LimitedError of the engine's refusal, and returns any other error as it is.
func errorOf(err error) error {
	r, ok := err.(*engine.Refusal)
	if !ok {
		return err
	}
	e := &LimitedError{late: r.Late}
	tell(&e.Decision, &r.Told)
	return e
}
