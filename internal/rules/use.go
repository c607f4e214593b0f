package rules

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Use is the part of a request that one rule counts.
type Use struct {
	Rule    int // its Number
	Limiter *Limiter
	Key     string
	Cost    int64

	limit  tiered.Limit // that the request carries; zero is none
	plan   string       // "" is none
	hidden bool         // clients are not told of its limit
}

// Policy returns the policy of the use. Nobody may write to it.
func (u *Use) Policy() *tiered.Policy { return u.Limiter.Policy() }

// Tells reports whether clients are told of the limit: not if its rule is hidden, and not of one
// that is only being tried, because they need not keep to it.
func (u *Use) Tells() bool { return !u.hidden && !u.Policy().Shadow }

// of returns the use of n tokens.
func (u *Use) of(n int64) tiered.Use {
	return u.Limiter.For(u.Key).N(n).WithPlan(u.plan).WithLimit(u.limit)
}

// Carries reports whether the request says by which limit of the policy p of the Limiter it goes.
func (u *Use) Carries(p *tiered.Policy) bool {
	return u.plan != "" && len(p.Plans) > 0 || u.limit != (tiered.Limit{})
}

// Collect appends a use for each rule that applies to a request, and returns those apart that cost
// nothing. in gets the places that it needs, unless it is nil. keyless is the rule for which the
// request has no key, so that it is refused, and err what its function says of that. at is the
// number of the rule in whose functions Collect is, for who survives their panic.
func Collect[R any](all []Rule[R], request R, uses []Use, in *Entries, at *int) (_, free []Use, keyless *Rule[R], err error) {
	past := 0                  // the rules before it are left out
	shared, known := "", false // the plan of rules with OnePlan
	for i := range all {
		rule := &all[i]
		if i < past {
			continue
		}
		*at = rule.Number
		skip := rule.Skip != nil && rule.Skip(request)
		if skip && rule.Missing != Next {
			continue
		}
		key, err := rule.Key.find(request)
		if rule.Missing == Next {
			if key == "" && err == nil {
				continue
			}
			past = afterNext(all, i)
			if skip {
				continue
			}
		}
		switch {
		case err != nil:
			return nil, nil, rule, err
		case key != "":
		case rule.Missing == Exempt:
			continue
		case rule.Missing == Together:
			key = sharedKey
		default:
			return nil, nil, rule, nil
		}
		u := Use{Rule: rule.Number, Limiter: rule.Limiter, Key: key, Cost: 1, hidden: rule.Hidden}
		if rule.Limit != nil {
			u.limit = rule.Limit(request)
		}
		switch {
		case rule.OnePlan && known:
			u.plan = shared
		case rule.Plan != nil:
			u.plan = rule.Plan(request)
			if rule.OnePlan {
				shared, known = u.plan, true
			}
		}
		if rule.AtOnce != nil && in != nil {
			in.wanted = append(in.wanted, entry{rule.AtOnce, key, u.plan})
		}
		if rule.Limiter == nil {
			continue
		}
		if rule.Cost != nil {
			if u.Cost = rule.Cost(request); u.Cost == 0 {
				if rule.Settles && uint(len(key)-1) >= defaults.MaxKeyLength { // what it costs could not be charged
					return nil, nil, rule, nil
				}
				free = append(free, u)
				continue
			}
		}
		uses = append(uses, u)
	}
	return uses, free, nil, nil
}

// Take reserves the tokens of all uses, or of none. If ctx has ended, nobody reads the answer, so
// nothing is taken. each has the Decisions of the uses if clients are not told of all of them, for
// [Told].
func Take(ctx context.Context, uses []Use) (t tiered.Reservation, each []tiered.Decision) {
	if ctx.Err() != nil {
		t.Decision = Canceled(ctx, uses)
		return t, nil
	}
	if u := &uses[0]; len(uses) == 1 && u.plan == "" && u.limit == (tiered.Limit{}) { // a shorter way
		t = u.Limiter.ReserveN(ctx, u.Key, u.Cost)
	} else {
		if len(uses) > 1 && slices.ContainsFunc(uses, func(u Use) bool { return !u.Tells() }) {
			each = make([]tiered.Decision, len(uses))
		}
		t = All(uses).ReserveEach(ctx, each)
	}
	if t.Allowed && ctx.Err() != nil {
		t.Cancel()
		t.Decision = Canceled(ctx, uses)
	}
	return t, each
}

// Told returns the Decision that clients are told of: d, the one on the request, or else that of
// the tightest use which tells of its limit. each is what [Take] returned, or nil. It returns nil
// if there is nothing to tell.
func Told(uses []Use, d *tiered.Decision, each []tiered.Decision) *tiered.Decision {
	if !Hides(uses, d) {
		if Counted(d) {
			return d
		}
		return nil
	}
	var least *tiered.Decision
	for i := range each {
		if e := &each[i]; uses[i].Tells() && Counted(e) && (least == nil || room(e) < room(least)) {
			least = e
		}
	}
	return least
}

// Hides reports whether a policy of which clients are not told has made the decision d.
func Hides(uses []Use, d *tiered.Decision) bool {
	return slices.ContainsFunc(uses, func(u Use) bool { return u.Policy().Name == d.Policy && !u.Tells() })
}

// room is for how many further requests of this kind a key has tokens.
func room(d *tiered.Decision) int64 { return d.Remaining / max(d.Cost, 1) }

// All joins uses to one.
func All(uses []Use) tiered.Use {
	all := make([]tiered.Use, len(uses))
	for i := range uses {
		all[i] = uses[i].of(uses[i].Cost)
	}
	return tiered.All(all...)
}

// Canceled is the Decision on a request whose context has ended.
func Canceled(ctx context.Context, uses []Use) tiered.Decision {
	return tiered.Decision{
		Reason: tiered.Canceled, Expired: errors.Is(ctx.Err(), context.DeadlineExceeded),
		Policy: uses[0].Policy().Name, Key: uses[0].Key, Cost: uses[0].Cost,
	}
}

// Tightest returns what this process knows of the tightest limit of a request that costs nothing:
// Redis is not asked. If that is nothing, the Reason is Unknown.
func Tightest(ctx context.Context, free []Use) (least tiered.Decision) {
	for i := range free {
		d := free[i].of(0).Peek(ctx) // asks nobody
		if Counted(&d) && free[i].Tells() && (least.Reason == tiered.Unknown || d.Remaining < least.Remaining) {
			least = d
		}
	}
	return least
}

// Counted reports whether a Decision knows what is left of a limit.
func Counted(d *tiered.Decision) bool {
	switch d.Reason {
	case tiered.Unknown, tiered.Unavailable, tiered.InvalidKey, tiered.Canceled, tiered.Shadowed:
		return false
	}
	return d.Burst > 0 && d.Burst != math.MaxInt64 // otherwise the key is blocked, or unlimited
}

// LimitName returns the name of a policy's limit, numbered from 1. The first limit has the policy's
// name. Others append their number after a #, which no policy's name contains.
func LimitName(policy string, which int) string {
	if which < 2 {
		return policy
	}
	return policy + "#" + strconv.Itoa(which)
}

// Saturated returns a+b, or the longest duration if the sum overflows. Both are ≥ 0.
func Saturated(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
