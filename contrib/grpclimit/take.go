package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/inside"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// limit has the rules of a [Server] or a [Client].
type limit struct {
	rules   []Rule
	client  bool
	settles bool // handlers may correct the cost
	skip    func(context.Context, Call) bool
	logger  *slog.Logger
	faulted atomic.Bool // a user's function has panicked
}

// fewRules is the number of rules for which a call allocates no list.
const fewRules = 4

// part says which rules apply.
type part uint8

const (
	wholeCall part = iota // all rules: a unary call
	opening               // the rules that count streams
	message               // the rules that count messages of streams
)

// countsMessages reports whether a rule counts messages.
func (l *limit) countsMessages() bool {
	for i := range l.rules {
		if l.rules[i].Messages {
			return true
		}
	}
	return false
}

// skipped reports whether a call passes all rules.
func (l *limit) skipped(r request) (skip bool, refused *Error) {
	if l.skip == nil {
		return false, nil
	}
	defer l.caught(r, "Options.Skip", nil, &refused)
	return l.skip(r.ctx, r.call), nil
}

// use is the part of a call that one rule counts.
type use struct {
	rule    int
	limiter *tiered.Limiter
	key     string
	cost    int64
	limit   tiered.Limit // that the call carries; zero is none
	planned bool         // the call goes by its plan
	plan    string
}

// of returns the use of n tokens.
func (u *use) of(n int64) tiered.Use {
	if u.planned {
		return u.limiter.For(u.key).N(n).WithPlan(u.plan)
	}
	return u.limiter.For(u.key).N(n).WithLimit(u.limit)
}

// carries reports whether the call says by which limit it goes.
func (u *use) carries() bool { return u.planned || u.limit != (tiered.Limit{}) }

// uses appends a use for each rule that applies, and returns those apart that cost nothing.
func (l *limit) uses(r request, which part, to []use) (uses, free []use, refused *Error) {
	i, past := 0, 0 // the rules before past are left out
	defer l.caught(r, "rules[%d]", &i, &refused)
	for ; i < len(l.rules); i++ {
		rule := &l.rules[i]
		if i < past || which != wholeCall && rule.Messages != (which == message) {
			continue
		}
		skip := rule.Skip != nil && rule.Skip(r.ctx, r.call)
		if skip && rule.Missing != Next {
			continue
		}
		key, err := rule.Key.find(r)
		if rule.Missing == Next {
			if key == "" && err == nil {
				continue
			}
			past = afterNext(l.rules, i)
			if skip {
				continue
			}
		}
		switch {
		case err != nil:
			return nil, nil, rule.keyless(r, err)
		case key != "":
		case rule.Missing == Exempt:
			continue
		case rule.Missing == Together:
			key = sharedKey
		default:
			return nil, nil, rule.keyless(r, nil)
		}
		u := use{rule: i, limiter: rule.Limiter, key: key, cost: 1}
		if rule.Limit != nil {
			u.limit = rule.Limit(r.ctx, r.call)
		}
		if rule.Plan != nil {
			u.planned, u.plan = true, rule.Plan(r.ctx, r.call)
		}
		if rule.Cost != nil {
			if u.cost = rule.Cost(r.ctx, r.call); u.cost == 0 {
				if (l.settles || rule.Actual != nil) && uint(len(key)-1) >= inside.MaxKeyLength { // it could not be charged
					return nil, nil, rule.keyless(r, nil)
				}
				free = append(free, u)
				continue
			}
		}
		to = append(to, u)
	}
	return to, free, nil
}

// keyless refuses a call that has no key for the rule. err is why, if its function says so.
func (rule *Rule) keyless(r request, err error) *Error {
	return newError(r, tiered.Decision{Reason: tiered.InvalidKey, Policy: rule.Limiter.Policy().Name}, err)
}

// tightest returns what this process knows of the tightest limit of a call that costs nothing: Redis is not asked. If that
// is nothing, the Reason is Unknown.
func (l *limit) tightest(ctx context.Context, free []use) (least tiered.Decision) {
	for i := range free {
		d := free[i].of(0).Peek(ctx) // asks nobody
		if d.Reason != tiered.Unknown && counted(&d) && !l.shadowed(&d) && (least.Reason == tiered.Unknown || d.Remaining < least.Remaining) {
			least = d
		}
	}
	return least
}

// caught refuses a call if a user's function has panicked. It must be deferred itself, because it calls recover. i is
// the index of the rule, or nil.
func (l *limit) caught(r request, field string, i *int, refused **Error) {
	v := recover()
	if v == nil {
		return
	}
	if i != nil {
		field = fmt.Sprintf(field, *i)
	}
	l.report(field, v)
	*refused = panicked(r)
}

// recovered reports a panic of a user's function and goes on. It must be deferred itself.
func (l *limit) recovered(field string) {
	if v := recover(); v != nil {
		l.report(field, v)
	}
}

// report logs the first panic of a user's function. What was panicked with may contain a key, so only its type is
// logged, and the text of a runtime error, which has only numbers and types.
func (l *limit) report(field string, v any) {
	if l.faulted.Swap(true) {
		return
	}
	what := fmt.Sprintf("%T", v)
	if err, ok := v.(runtime.Error); ok {
		what = err.Error()
	}
	logger := l.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Error("grpclimit: a function panicked; further panics are not logged", "field", field, "panic", what,
		"stack", string(debug.Stack()))
}

// take takes the tokens of all uses, or of none.
func take(r request, uses []use, wait bool) (tiered.Reservation, *Error) {
	ctx := r.ctx
	if ctx.Err() != nil { // nobody reads the answer, so nothing is taken
		return tiered.Reservation{}, canceled(r, uses)
	}
	if wait {
		return tiered.Reservation{}, waited(r, uses, all(uses).Wait(ctx))
	}
	var t tiered.Reservation
	if u := &uses[0]; len(uses) == 1 && !u.carries() {
		t = u.limiter.ReserveN(ctx, u.key, u.cost)
	} else {
		t = all(uses).Reserve(ctx)
	}
	switch {
	case !t.Allowed:
		return tiered.Reservation{}, newError(r, t.Decision, t.Err())
	case ctx.Err() != nil:
		t.Cancel()
		return tiered.Reservation{}, canceled(r, uses)
	}
	return t, nil
}

func all(uses []use) tiered.Use {
	list := make([]tiered.Use, len(uses))
	for i := range uses {
		list[i] = uses[i].of(uses[i].cost)
	}
	return tiered.All(list...)
}

// waited returns the refusal that the error of a wait means.
func waited(r request, uses []use, err error) *Error {
	var limited *tiered.LimitedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &limited):
		return newError(r, limited.Decision, err)
	}
	return canceled(r, uses)
}

// canceled returns the refusal of a call whose context has ended.
func canceled(r request, uses []use) *Error {
	err := r.ctx.Err()
	return newError(r, tiered.Decision{
		Reason: tiered.Canceled, Expired: errors.Is(err, context.DeadlineExceeded),
		Policy: uses[0].limiter.Policy().Name, Key: uses[0].key, Cost: uses[0].cost,
	}, err)
}
