package tiered

import (
	"errors"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// A nil or zero Limiter or Group is a mistake: usually the error of New or NewGroup was ignored. Its methods must not
// panic, because they would do so at the first request. They refuse.

var (
	errZeroLimiter = errors.New("tiered: the Limiter is nil or zero: must be made by New or Group.NewLimiter")
	errZeroGroup   = errors.New("tiered: the Group is nil or zero: must be made by NewGroup")
)

// isZero reports whether l is nil or was not made by New or Group.NewLimiter.
func (l *Limiter) isZero() bool { return l == nil || l.group == nil }

// valid returns Granted, or the reason why no limit would admit the request. For a nil or zero Limiter it returns Unknown.
func (l *Limiter) valid(key string, n int64) Reason {
	if l.isZero() {
		return Unknown
	}
	return Reason(engine.Valid(key, n))
}

// refusal returns the Decision on a request for n tokens that is not valid, and counts it.
func (l *Limiter) refusal(key string, n int64, r Reason) (d Decision) {
	if l.isZero() {
		return d
	}
	t := l.core.Refuse(key, n, engine.Reason(r))
	tell(&d, &t)
	return d
}

// isZero reports whether g is nil or was not made by NewGroup.
func (g *Group) isZero() bool { return g == nil || g.core == nil }
