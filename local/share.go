package local

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// share is what this process may admit of a key when it is alone: the limit divided by the processes of the fleet. It is
// debited with all that the process admits, in every state, so an outage begins with what is left of its fair part, and
// no outage refills it.
//
// It lives under the bucket's mutex, and its clock never goes back: called with an earlier now, an x/time/rate limiter
// rewinds and mints tokens (golang/go#65508, golang/go#71360).
type share struct {
	limiter *rate.Limiter
	last    time.Duration
	fleet   int64
}

// base is what now is added to, because x/time/rate wants a time.Time: any fixed instant will do.
var base = time.Unix(0, 0)

// tell sets the size of the fleet, ≥ 1. A new share is full: nothing of its fair part was used.
func (s *share) tell(p *Policy, now time.Duration, fleet int64) {
	fleet = max(fleet, 1)
	if s.fleet == fleet {
		return
	}
	perSecond := rate.Limit(float64(p.Tokens) / p.Per.Seconds() / float64(fleet))
	// At least 1: a share of less than one token would never admit.
	burst := int(min(max(p.Cap/fleet, 1), math.MaxInt))
	if s.limiter == nil {
		s.limiter = rate.NewLimiter(perSecond, burst)
	} else {
		at := s.time(now)
		s.limiter.SetLimitAt(at, perSecond)
		s.limiter.SetBurstAt(at, burst)
	}
	s.fleet = fleet
}

// debit charges n tokens that were admitted, as far as the share has whole tokens.
func (s *share) debit(now time.Duration, n int64) {
	if s.limiter == nil || n <= 0 {
		return
	}
	at := s.time(now)
	if k := min(n, int64(s.limiter.TokensAt(at))); k > 0 {
		s.limiter.AllowN(at, int(k))
	}
}

// take takes n tokens if the share has them; else it reports when it may, or never when n exceeds the share's burst.
func (s *share) take(now time.Duration, n int64) (ok bool, retry time.Duration) {
	if n > int64(s.limiter.Burst()) {
		return false, never
	}
	at := s.time(now)
	if s.limiter.AllowN(at, int(n)) {
		return true, 0
	}
	missing := float64(n) - s.limiter.TokensAt(at)
	wait := math.Ceil(missing / float64(s.limiter.Limit()) * float64(time.Second))
	if wait >= never { // 292 years are beyond a time.Duration
		return false, never
	}
	return false, max(time.Duration(wait), time.Microsecond)
}

// missing reports the tokens that refill has not brought back yet, rounded up: what is certainly still owed of what was
// admitted alone.
func (s *share) missing(now time.Duration) int64 {
	if s.limiter == nil {
		return 0
	}
	return max(int64(math.Ceil(float64(s.limiter.Burst())-s.tokens(now))), 0)
}

// tokens reports what the share would admit now.
func (s *share) tokens(now time.Duration) float64 {
	if s.limiter == nil {
		return 0
	}
	return s.limiter.TokensAt(s.time(now))
}

// left reports the whole tokens that the share would admit now. At more than a token per ns a share may be below zero:
// x/time/rate takes a wait of under 1 ns for none.
func (s *share) left(now time.Duration) int64 { return int64(max(s.tokens(now), 0)) }

func (s *share) time(now time.Duration) time.Time {
	s.last = max(s.last, now)
	return base.Add(s.last)
}
