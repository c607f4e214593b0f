package tiered

import (
	"fmt"
	"log/slog"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// WithLimit returns u with a limit that the request carries, instead of the policy's own or that of [Policy].PerKey.
// Use it if the limit is learned with the request, as from a token, and [Use.WithPlan] if only the name of a plan is:
//
//	d := perUser.For(user).WithLimit(token.Limit).Allow(ctx)
//
// The key keeps the limit until a request carries another one, the policy changes, or the process removes the key. If
// requests for one key carry different limits, in one process or in several, the key can use the largest burst and the
// largest rate of them, each by itself, until no request has carried it for ten seconds. A request may cost no more
// than the burst that it carries, and its Decision has that Burst. To take a limit back, carry Policy.Limit, or with
// PerKey call [Limiter.Refresh] in each process. [Unlimited] and [Blocked] are limits too; the zero Limit means that
// the request carries none.
//
// With Also or Standing every carried limit is invalid, and [Policy.CheckCarriedLimit] says so. An invalid limit is
// ignored, because a request must not fail for it: it is counted in PolicyStats.Faults, and the first one is logged as
// an error that names field, value and rule.
func (u Use) WithLimit(limit Limit) Use {
	u.own()
	for i := range u.n {
		p := u.at(i)
		if p.limit = nil; p.limiter != nil && limit != (Limit{}) {
			p.limit = p.limiter.carriedLimit(p.limiter.core.Settings(), limit)
		}
	}
	return u
}

// carriedLimit resolves a limit that a request carries. It returns nil if the policy cannot have it.
func (l *Limiter) carriedLimit(s *engine.Settings, limit Limit) *engine.Resolved {
	carried, err := l.core.Carry(s, engine.Limit(limit))
	if err != nil && l.core.CountKeyFault() {
		l.group.journal.Line(slog.LevelError, "a request carried a limit that the policy cannot have: it is ignored",
			"policy", l.core.Name, "why", err.Error())
	}
	return carried
}

// CheckCarriedLimit returns why no request of a valid policy may carry the limit, or nil. [Unlimited] asks whether they
// may carry any.
func (p Policy) CheckCarriedLimit(limit Limit) error {
	if len(p.Also) > 0 {
		return fmt.Errorf("tiered: Policy.Also has %d limits: must be empty if requests carry limits", len(p.Also))
	}
	if p.Standing != StandingOff {
		return fmt.Errorf("tiered: Policy.Standing is %v: must be off if requests carry limits", p.Standing)
	}
	return p.CheckLimit(limit)
}
