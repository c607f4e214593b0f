package tiered

import (
	"errors"
	"log/slog"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// limitOf calls PerKey. It returns Policy.Limit if the result is invalid, or if PerKey panics.
func (l *Limiter) limitOf(p *Policy, key string) (limit Limit) {
	defer func() {
		if v := recover(); v != nil {
			l.perKeyFault("panicked: " + report.PanicOf(v))
			limit = p.Limit
		}
	}()
	limit = p.PerKey(key)
	if limit == (Limit{}) {
		return p.Limit
	}
	if err := p.CheckLimit(limit); err != nil {
		l.perKeyFault("returned a limit that the policy cannot have: " + err.Error())
		return p.Limit
	}
	return limit
}

// CheckLimit returns why PerKey of a valid policy may not return the limit for a key, or nil.
func (p Policy) CheckLimit(limit Limit) error {
	if limit.rule() != local.ByLimit {
		return nil
	}
	q := p
	q.Plans = nil                                                  // they do not matter to this limit
	q.Limit, q.PerKey = limit, func(string) Limit { return limit } // a larger Lease.Size is reduced
	if q.MaxDebt > 0 {                                             // a larger burst is the key's MaxDebt
		q.MaxDebt = min(max(q.MaxDebt, limit.burst()), engine.MaxTokens)
	}
	err := q.checkReplaces(p)
	if _, _, ok := q.split(); !ok { // Redis has the whole limit of this key
		q.Standing = StandingOff
	}
	return errors.Join(q.Validate(), err)
}

// perKeyFault counts a failure of PerKey, and logs the first one.
func (l *Limiter) perKeyFault(why string) {
	if l.core.CountKeyFault() {
		l.group.journal.Line(slog.LevelError, "PerKey gave no limit for a key: the policy's own decides", "policy",
			l.core.Name, "why", why)
	}
}
