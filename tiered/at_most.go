package tiered

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// mostAttempts bounds the attempts of AllowAtMost, and with them its round trips.
const mostAttempts = 4

// AllowAtMost takes as many tokens as there are, up to n, and returns how many it took: 0 if d is a refusal. It is for
// work that can be done in part, such as sending what fits of a batch.
//
// If there are n tokens it costs as much as [Limiter.AllowN]. Otherwise it asks again, up to three times, for the
// number of tokens that the last refusal said are left. If none are left it asks for one: then RetryAfter is the time
// until the same call gets something. So it blocks for up to four Options.Budget. If others take tokens of the key
// meanwhile, it may get fewer than are left. Each attempt counts in Stats, and d is the Decision of the last one that
// took tokens, or of the last one if none did.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (granted int64, d Decision) {
	var admitted Decision
	if n > 0 {
		n = min(n, maxTokens)
	}
attempts:
	for range mostAttempts {
		if d = l.AllowN(ctx, key, n); d.Allowed {
			return granted + n, d
		}
		fewer := d.Remaining
		switch d.Reason {
		case Limited, FallbackSpent:
		case ExceedsBurst:
			fewer = d.Burst
		default:
			break attempts
		}
		n--
		// A request takes its tokens from a standing share or from Redis, so what the share has comes on top.
		if taken := l.drainShare(key, n, &admitted); taken > 0 {
			if granted, n = granted+taken, n+1-taken; d.Reason != ExceedsBurst {
				fewer -= taken // Remaining was the sum
			}
		}
		if granted == 0 {
			fewer = max(fewer, 1)
		}
		if n = min(fewer, n); n < 1 {
			break
		}
	}
	if granted > 0 { // the last attempt was refused, and those before it were not
		d = admitted
	}
	return granted, d
}

// drainShare takes up to n tokens from the standing share of a key, and writes the Decision if it took any.
func (l *Limiter) drainShare(key string, n int64, d *Decision) (taken int64) {
	if l.mode.Load()&modeStanding == 0 {
		return 0
	}
	id, now := l.id(key), l.group.now()
	p := l.policyFor(id, key)
	if taken = l.share(id, p).drain(now, n); taken > 0 {
		l.requests.Add(key, report.Granted, taken, 1)
		l.tell(d, outcome{p, how{Granted, Local, false}, 0, 0}, key, taken, nil, now)
	}
	return taken
}
