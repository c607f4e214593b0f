package tiered

import (
	"context"
)

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until n tokens of key are admitted, first come, first served within this process: the tokens that come
// are kept for those who wait. If other processes take them all the same, other calls for the key are refused for half
// of the time at most.
//
// It returns nil if the tokens were taken, and ctx.Err() if ctx ended first; then nothing was taken. It returns a
// *LimitedError at once if waiting cannot help: the key or the cost is invalid, the cost exceeds the burst (or, without
// Redis, the fallback's), Redis does not answer and the policy fails closed, or the tokens cannot be there before the
// deadline of ctx. In the last case errors.Is finds context.DeadlineExceeded, and ErrLimited; without Redis the Reason
// is FallbackSpent or Unavailable. A key that was refused just before Redis failed is taken for limited for up to
// 5 s.
//
// The time is estimated as if this were the only process. Nobody announces tokens that others return, a Reset, or the
// end of an outage, so the first waiter asks again after 5.5 s, or 1 s without Redis: see docs/waiting.md.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if !l.isZero() && (ctx == nil || ctx.Err() == nil) && l.core.TakeLeased(key, n) {
		return nil
	}
	return l.For(key).N(n).Wait(ctx)
}
