package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// chargeShare charges the standing share of a key up to n tokens that a request turned out to cost more, and returns how
// many it charged. The share may go below zero.
func (l *Limiter) chargeShare(now time.Duration, key string, p *local.Policy, n int64) int64 {
	if l.mode.Load()&modeStanding == 0 {
		return 0
	}
	for later := l.standing.later.Load(); n > later && !l.standing.later.CompareAndSwap(later, n); {
		later = l.standing.later.Load()
	}
	shares := usableShares(p)
	if shares == nil {
		return 0
	}
	charged := l.group.shares.Charge(now, l.group.cache.Hash(l.id(key)), shares, n)
	l.charged.Add(charged)
	return charged
}

// refundShare gives up to n tokens back to the standing share of a key, or fills it with n = local.Fill, and returns how
// many fit.
func (l *Limiter) refundShare(key string, n int64) int64 {
	if l.mode.Load()&modeStanding == 0 {
		return 0
	}
	id := l.id(key)
	shares := usableShares(l.policyFor(id, key))
	if shares == nil {
		return 0
	}
	return l.group.shares.Refund(l.group.now(), l.group.cache.Hash(id), shares, n)
}
