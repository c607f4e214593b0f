package engine

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// share is the standing share of one key, as a source of its tokens. Without standing shares it is
// zero, and has nothing.
type share struct {
	limiter *Limiter
	limits  standing.Limits // nil if there is none, or none is used
	hash    uint64          // of the key
	id      local.ID
	policy  *local.Policy
}

// share returns the standing share of a key that has the policy p.
func (l *Limiter) share(id local.ID, p *local.Policy) share {
	if l.mode.Load()&ModeStanding == 0 {
		return share{}
	}
	return share{l, usableShares(p), l.Group.Cache.Hash(id), id, p}
}

// at returns a moment of the share, with the key's window if its limit has one.
func (s share) at(now time.Duration) standing.At {
	at := standing.At{Now: now}
	if s.limiter.Kind.Algorithm.Has(lua.Phased) {
		t := s.shares().Times(now)
		begin := s.policy.WindowBegin(s.limiter.phase(s.id.Key), t.From())
		if w := t.Window(begin, s.policy.Call.Period); s.limiter.Standing.Parts.Load().Used(w) {
			at.Window = w
		}
	}
	return at
}

// share returns the standing share of b's key.
func (b *Bucket) share() share {
	p := b.Policy()
	return Owner(p).Limiter.share(b.ID(), p)
}

// take takes n tokens, and returns how many are left: see [standing.Shares.Take].
//
// A share may admit one request before anybody knows its cost. So it admits none whose cost, if it
// turns out as high as that of other requests of late, the share could not bear: Redis decides
// about these, as without shares.
func (s share) take(now time.Duration, n int64, u *standing.Use) (left int64, ok bool) {
	if s.limits == nil || !s.lends(n) {
		return 0, false
	}
	if left, ok = s.shares().Take(s.at(now), s.hash, s.limits, n, u); ok {
		s.limiter.Standing.count(s.hash, n)
		s.limiter.Standing.fade()
	}
	return left, ok
}

// lends reports whether the share admits requests of n tokens at all: see take.
func (s share) lends(n int64) bool {
	later := s.limiter.Standing.later.Load()
	return later == 0 || n <= s.shares().Bearable(s.limits)-later
}

// level returns how many tokens take finds.
func (s share) level(now time.Duration) int64 {
	if s.limits == nil {
		return 0
	}
	level := s.shares().Level(s.at(now), s.hash, s.limits)
	if later := s.limiter.Standing.later.Load(); later > 0 {
		level = min(level, s.shares().Bearable(s.limits)-later)
	}
	return level
}

// holds reports whether take would find n tokens.
func (s share) holds(now time.Duration, n int64) bool { return s.limits != nil && s.level(now) >= n }

// putBack puts n tokens of what u says was taken back. It reports false, and does nothing, if the
// share was used since. With their window tokens are over.
func (s share) putBack(now time.Duration, u standing.Use, n int64) bool {
	ok := u.Over(s.shares().Times(now)) || s.shares().Return(s.hash, u, n)
	if ok {
		s.limiter.Standing.count(s.hash, -n)
	}
	return ok
}

// charge takes up to n tokens that a request turned out to cost more, and returns how many. The
// share may go below zero.
func (s share) charge(now time.Duration, n int64) int64 {
	if s.limiter == nil {
		return 0
	}
	s.limiter.Standing.costLater(n)
	if s.limits == nil {
		return 0
	}
	charged := s.shares().Charge(s.at(now), s.hash, s.limits, n)
	s.limiter.Charged.Add(charged)
	return charged
}

// refund gives up to n tokens to the share, or fills it with n = local.Fill, and returns how many
// fit.
func (s share) refund(now time.Duration, n int64) int64 {
	if s.limits == nil {
		return 0
	}
	return s.shares().Refund(s.at(now), s.hash, s.limits, n)
}

// gains returns how many tokens come to the share between two times.
func (s share) gains(from, until time.Duration) int64 {
	if s.limits == nil || until <= from {
		return 0
	}
	return s.shares().By(s.at(from), until, s.hash, s.limits)
}

// tell adds to an outcome over n tokens what the share has: its tokens, and that it may have n
// sooner. A refusal leaves what one of both has, because no request takes tokens of both.
func (s share) tell(o local.Outcome, now time.Duration, n int64) local.Outcome {
	if s.limits == nil {
		return o
	}
	switch o.Reason {
	case local.Limited, local.FallbackSpent:
		if o.Retry > 0 && s.lends(n) {
			o.Retry = max(min(o.Retry, s.shares().Wait(s.at(now), s.hash, s.limits, n)), time.Microsecond)
		}
		o.Left = max(o.Left, s.level(now), 0)
	case local.Granted, local.Fallback:
		o.Left = max(o.Left, 0) + s.shares().Level(s.at(now), s.hash, s.limits)
	}
	return o
}

// ShareFull returns the time until the standing share of a key is full that has the policy p.
func (l *Limiter) ShareFull(p *local.Policy, key string, now time.Duration) time.Duration {
	return l.share(l.ID(key), p).full(now)
}

// full returns the time until the share is full.
func (s share) full(now time.Duration) time.Duration {
	if s.limits == nil {
		return 0
	}
	return s.shares().Full(s.at(now), s.hash, s.limits)
}

// shares are those of the process.
func (s share) shares() *standing.Shares { return &s.limiter.Group.Shares }

// Standing is what a Limiter knows of its standing shares.
type Standing struct {
	// Agreed says that all processes with this policy split its limits, as far as nodes have
	// counted them. Otherwise no share is used: a process that does not split them uses the whole
	// limit.
	Agreed atomic.Bool

	later atomic.Int64 // the largest cost of late that was known only after its request, in tokens: see [share.take]

	// Parts says how windows are split. It is set before the settings are.
	Parts atomic.Pointer[standing.Parts]

	admitted [standingCounters]paddedCount
}

// standingCounters is the number of counters of one policy, so that cores rarely write to the same
// one.
const standingCounters = 8

type paddedCount struct {
	n atomic.Int64
	_ [56]byte
}

// fade lets what is remembered of a later cost fade by an eighth: a request was admitted, which may
// cost less. One that was refused says nothing of costs.
func (u *Standing) fade() {
	if later := u.later.Load(); later > 0 {
		u.later.CompareAndSwap(later, later-(later+7)/8)
	}
}

// costLater remembers that a request turned out to cost n more.
func (u *Standing) costLater(n int64) {
	for later := u.later.Load(); n > later && !u.later.CompareAndSwap(later, n); {
		later = u.later.Load()
	}
}

// count counts n tokens that a share admitted, or with a negative n got back.
func (u *Standing) count(hash uint64, n int64) { u.admitted[hash%standingCounters].n.Add(n) }

// Total returns all tokens that shares have admitted.
func (u *Standing) Total() (n int64) {
	for i := range u.admitted {
		n += u.admitted[i].n.Load()
	}
	return n
}

// usableShares is SharesOf while all processes with the policy split its limits, and otherwise nil.
func usableShares(p *local.Policy) standing.Limits {
	shares := SharesOf(p)
	if shares == nil || !Owner(p).Limiter.Standing.Agreed.Load() {
		return nil
	}
	return shares
}
