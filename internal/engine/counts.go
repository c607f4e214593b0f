package engine

import (
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// How decisions are counted. Stats reads what was counted.

// kindOf are the kinds as which requests of each Reason count.
var kindOf = [...]report.Kind{
	Granted: report.Granted, Fallback: report.Fallback, Open: report.Open, Shadowed: report.Shadowed, Limited: report.Limited,
	FallbackSpent: report.FallbackSpent, Unavailable: report.Unavailable, ExceedsBurst: report.ExceedsBurst,
	InvalidKey: report.Invalid, InvalidCost: report.Invalid, Canceled: report.Canceled,
}

// kind returns the kind of an outcome.
func (o Outcome) kind() report.Kind {
	switch {
	case o.Reason == Granted && o.Policy.Rule == local.Unlimited:
		return report.Unlimited
	case o.Reason == ExceedsBurst && o.Policy.Rule == local.Blocked && o.Tier == Local: // not one that no limit would admit
		return report.Blocked
	}
	return kindOf[o.Reason]
}

// countRequest counts a request of n tokens. It must be called where its tokens are counted.
func (l *Limiter) countRequest(o Outcome, key string, n int64) {
	if n == 1 && o.Reason <= Unavailable && o.Tier != Remote {
		return
	}
	l.Requests.Add(key, o.kind(), n, 1)
	if k, ok := o.byRedis(); ok {
		l.Requests.Add(key, k, n, 1)
	}
}

// byRedis returns the kind as which an outcome by Redis counts besides.
func (o Outcome) byRedis() (report.Kind, bool) {
	if o.Tier == Remote && o.Reason == Limited {
		return report.LimitedByRedis, true
	}
	return report.GrantedByRedis, o.Tier == Remote && o.Reason == Granted
}

// RefusedOf returns what a key was refused, by the figures of its bucket.
func RefusedOf(key string, s local.Stats) report.RefusedKey {
	return report.RefusedKey{
		Key: key, Limited: s.Refused - s.FallbackSpent, FallbackSpent: s.FallbackSpent, Unavailable: s.Failed,
		Blocked: s.Blocked,
	}
}
