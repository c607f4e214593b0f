package engine

import (
	"context"
	"errors"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// canceled returns the outcome of a request whose context has ended.
func canceled(ctx context.Context, p *local.Policy) local.Outcome {
	o := local.Decided(p, local.Canceled, local.Nowhere, 0, 0)
	o.Expired = errors.Is(ctx.Err(), context.DeadlineExceeded)
	return o
}

// kinds are those as which requests of each Reason count.
var kinds = [...]report.Kind{
	local.Granted: report.Granted, local.Fallback: report.Fallback, local.Open: report.Open,
	local.Shadowed: report.Shadowed, local.Limited: report.Limited, local.FallbackSpent: report.FallbackSpent,
	local.Unavailable: report.Unavailable, local.ExceedsBurst: report.ExceedsBurst,
	local.InvalidKey: report.Invalid, local.InvalidCost: report.Invalid, local.Canceled: report.Canceled,
}

// kindOf returns the kind as which a request of an outcome counts.
func kindOf(o local.Outcome) report.Kind {
	switch {
	case o.Reason == local.Granted && o.Policy.Rule == local.Unlimited:
		return report.Unlimited
	case o.Reason == local.ExceedsBurst && o.Policy.Rule == local.Blocked && o.Tier == local.Local: // not one that no limit would admit
		return report.Blocked
	}
	return kinds[o.Reason]
}

// redisKindOf returns the kind as which an outcome by Redis counts besides.
func redisKindOf(o local.Outcome) (report.Kind, bool) {
	if o.Tier == local.Remote && o.Reason == local.Limited {
		return report.LimitedByRedis, true
	}
	return report.GrantedByRedis, o.Tier == local.Remote && o.Reason == local.Granted
}
