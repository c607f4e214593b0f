package tiered

import (
	"log/slog"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
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
	if err := p.checkLimit(limit); err != nil {
		l.perKeyFault("returned a limit that the policy cannot have: " + err.Error())
		return p.Limit
	}
	return limit
}

// perKeyFault counts a failure of PerKey, and logs the first one.
func (l *Limiter) perKeyFault(why string) {
	if l.core.CountKeyFault() {
		l.group.journal.Line(slog.LevelError, "PerKey gave no limit for a key: the policy's own decides", "policy",
			l.core.Name, "why", why)
	}
}
