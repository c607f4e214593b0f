package engine

import (
	"log/slog"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// What is counted, and told to the hook. Stats reads what was counted.

// kinds are the kinds of requests in the counts, by Reason.
var kinds = [...]report.Kind{
	local.Granted: report.Granted, local.Fallback: report.Fallback, local.Open: report.Open,
	local.Shadowed: report.Shadowed, local.Limited: report.Limited, local.FallbackSpent: report.FallbackSpent,
	local.Unavailable: report.Unavailable, local.ExceedsBurst: report.ExceedsBurst,
	local.InvalidKey: report.Invalid, local.InvalidCost: report.Invalid, local.Canceled: report.Canceled,
}

// kindOf returns the kind under which a request with an outcome is counted.
func kindOf(o local.Outcome) report.Kind {
	switch {
	case o.Reason == local.Granted && o.Policy.Rule == local.Unlimited:
		return report.Unlimited
	case o.Reason == local.ExceedsBurst && o.Policy.Rule == local.Blocked && o.Tier == local.Local: // not one that no limit would admit
		return report.Blocked
	}
	return kinds[o.Reason]
}

// redisKindOf returns the kind under which an outcome by Redis is counted too.
func redisKindOf(o local.Outcome) (report.Kind, bool) {
	if o.Tier == local.Remote && o.Reason == local.Limited {
		return report.LimitedByRedis, true
	}
	return report.GrantedByRedis, o.Tier == local.Remote && o.Reason == local.Granted
}

// countRequest counts a request of n tokens. It must be called where its tokens are counted.
func (l *Limiter) countRequest(o local.Outcome, key string, n int64) {
	if n == 1 && o.Reason <= local.Unavailable && o.Tier != local.Remote {
		return
	}
	l.Requests.Add(key, kindOf(o), n, 1)
	if k, ok := redisKindOf(o); ok {
		l.Requests.Add(key, k, n, 1)
	}
}

// tryOut is asTried for a request of n tokens. It counts the request.
func (l *Limiter) tryOut(o local.Outcome, key string, n int64) local.Outcome {
	tried := l.asTried(o)
	if tried != o {
		l.Shadowed.Add(max(n, 0))
		l.Requests.Add(key, report.Shadowed, n, 1)
	}
	return tried
}

// asTried makes a refusal an admission if the policy is only tried out. Nobody is to wait for it.
func (l *Limiter) asTried(o local.Outcome) local.Outcome {
	if l.mode.Load()&ModeShadow != 0 && !o.Allowed() {
		o.Reason, o.Retry = local.Shadowed, 0
	}
	return o
}

// observe tells the hook of a request that is counted.
func (l *Limiter) observe(t *Told) {
	if l.mode.Load()&ModeTraced != 0 {
		l.Group.Hooks.Decision(t)
	}
}

// Gone returns the figures of forgotten buckets, and of calls that brought nothing.
func (f *Figures) Gone() Gone {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Gone{f.evicted, f.refused.Top(), f.rejected, f.forgiven, f.unanswered}
}

// keepStats adds the figures of a forgotten bucket.
func (l *Limiter) keepStats(key string, s local.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evicted.Add(s)
	l.refused.Add(RefusedOf(key, s))
}

// forgive counts n tokens of debt that no call can report.
func (l *Limiter) forgive(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgiven += n
}

// countFailure counts a call that was not answered, or that the store rejected because of its
// bucket: the Redis key has another type, or is damaged. Each rejected bucket makes one line in the
// log. The line does not name the key, which may be a secret.
func (l *Limiter) countFailure(call *lua.Call, err error) {
	rejected := dispatch.IsScriptError(err)
	l.mu.Lock()
	if rejected {
		l.rejected++
	} else {
		l.unanswered += call.Want
	}
	l.mu.Unlock()
	if j := l.Group.Journal; rejected && j.FirstTime(call.Bucket) {
		j.Tally("refused "+l.Name, 1, slog.LevelError,
			"redis refuses buckets: they are not what the limiter wrote, so the fail mode decides for their keys",
			"policy", l.Name, "error", err)
	}
}

// RefusedOf returns what a key was refused, by the figures of its bucket.
func RefusedOf(key string, s local.Stats) report.RefusedKey {
	return report.RefusedKey{
		Key: key, Limited: s.Refused - s.FallbackSpent, FallbackSpent: s.FallbackSpent, Unavailable: s.Failed,
		Blocked: s.Blocked,
	}
}
