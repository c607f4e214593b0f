package tiered

import (
	"errors"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// How decisions and waits are counted. Stats reads what was counted.

// kindOf are the kinds as which requests of each Reason count.
var kindOf = [...]report.Kind{
	Granted: report.Granted, Fallback: report.Fallback, Open: report.Open, Shadowed: report.Shadowed, Limited: report.Limited,
	FallbackSpent: report.FallbackSpent, Unavailable: report.Unavailable, ExceedsBurst: report.ExceedsBurst,
	InvalidKey: report.Invalid, InvalidCost: report.Invalid, Canceled: report.Canceled,
}

// kind returns the kind of an outcome.
func (o outcome) kind() report.Kind {
	switch {
	case o.reason == Granted && o.policy.Rule == local.Unlimited:
		return report.Unlimited
	case o.reason == ExceedsBurst && o.policy.Rule == local.Blocked && o.tier == Local: // not one that no limit would admit
		return report.Blocked
	}
	return kindOf[o.reason]
}

// countRequest counts a request of n tokens. It must be called where its tokens are counted.
func (l *Limiter) countRequest(o outcome, key string, n int64) {
	if n == 1 && o.reason <= Unavailable && o.tier != Remote {
		return
	}
	l.requests.Add(key, o.kind(), n, 1)
	if k, ok := o.byRedis(); ok {
		l.requests.Add(key, k, n, 1)
	}
}

// byRedis returns the kind as which an outcome by Redis counts besides.
func (o outcome) byRedis() (report.Kind, bool) {
	if o.tier == Remote && o.reason == Limited {
		return report.LimitedByRedis, true
	}
	return report.GrantedByRedis, o.tier == Remote && o.reason == Granted
}

// refusedOf returns what a key was refused, by the figures of its bucket.
func refusedOf(key string, s local.Stats) report.RefusedKey {
	return report.RefusedKey{
		Key: key, Limited: s.Refused - s.FallbackSpent, FallbackSpent: s.FallbackSpent, Unavailable: s.Failed,
		Blocked: s.Blocked,
	}
}

// beginWait counts that c has to wait, once.
func (c *queuedCaller) beginWait() {
	if c.since == 0 {
		c.since = max(c.limiter.group.now(), 1)
		c.limiter.waits.Begin()
	}
}

// countEnd counts and reports the end of a wait, and returns err. A caller that was admitted or refused at once, as by
// Allow, did not wait. A caller that left because it could not be served in time gave up.
func (c *queuedCaller) countEnd(err error) error {
	var e *LimitedError
	if c.since == 0 && (err == nil || errors.As(err, &e) && !e.late) {
		return err
	}
	l := c.limiter
	end := WaitEvent{Policy: l.name, Key: c.key, Tokens: c.cost, Err: err}
	if c.since > 0 {
		end.Time = l.group.now() - c.since
	}
	end.Waiting = l.waits.End(end.Time, c.since > 0, err == nil)
	l.group.trace.wait(end)
	return err
}
