package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// limit has the rules of a [Server] or a [Client].
type limit struct {
	list    []Rule
	rules   [message + 1][]rules.Rule[request] // of each part
	enters  bool                               // calls need places
	skip    func(context.Context, Call) bool
	logger  *slog.Logger
	faulted atomic.Bool // a user's function has panicked
}

// part says which rules apply.
type part uint8

const (
	wholeCall part = iota // all rules: a unary call
	opening               // the rules that count streams
	message               // the rules that count messages of streams
)

// fewRules is the number of rules for which a call allocates no list.
const fewRules = 4

// set sets the rules. The user may change list later.
func (l *limit) set(list []Rule, all []rules.Rule[request]) {
	l.list = slices.Clone(list)
	l.rules[wholeCall], l.enters = all, rules.NeedPlaces(all)
	for i, r := range all {
		which := opening
		if list[i].Messages {
			which = message
		}
		l.rules[which] = append(l.rules[which], r)
	}
}

// skipped reports whether a call passes all rules.
func (l *limit) skipped(r request) (skip bool, refused *Error) {
	if l.skip == nil {
		return false, nil
	}
	defer l.caught(r, "Options.Skip", nil, &refused)
	return l.skip(r.ctx, r.call), nil
}

// uses appends a use for each rule that applies, and returns those apart that cost nothing. in gets
// the places that the call needs.
func (l *limit) uses(r request, which part, to []rules.Use, in *rules.Entries) (uses, free []rules.Use, refused *Error) {
	at := 0
	defer l.caught(r, "rules[%d]", &at, &refused)
	uses, free, keyless, err := rules.Collect(l.rules[which], r, to, in, &at)
	if keyless != nil {
		refused = newError(r, keyless.Keyless(), err)
	}
	return uses, free, refused
}

// caught refuses a call if a user's function has panicked. It must be deferred itself, because it
// calls recover. i is the index of the rule, or nil.
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

// report logs the first panic of a user's function. What was panicked with may contain a key, so
// only its type is logged, and the text of a runtime error, which has only numbers and types.
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

// enter takes the places that a call needs, or none of them.
func enter(r request, in *rules.Entries) *Error {
	d := in.Take(r.ctx)
	switch {
	case d.Allowed:
		return nil
	case d.Reason == tiered.Canceled:
		return newError(r, d, r.ctx.Err())
	}
	e := newError(r, d, nil)
	e.atOnce = d.Reason == tiered.Limited
	e.describe("")
	return e
}

// admission is what a call or a message has taken, and what it might have.
type admission struct {
	tiered.Reservation
	uses, free []rules.Use       // those that took something, and those that cost nothing
	each       []tiered.Decision // of uses, if rules.Told needs them
}

// told returns what clients are told of, nil if that is nothing.
func (a *admission) told(d *tiered.Decision) *tiered.Decision { return rules.Told(a.uses, d, a.each) }

// take takes the tokens of all uses, or of none.
func (a *admission) take(r request, wait bool) (refused *Error) {
	if wait && r.ctx.Err() == nil {
		refused = waited(r, a.uses, rules.All(a.uses).Wait(r.ctx))
	} else if a.Reservation, a.each = rules.Take(r.ctx, a.uses); !a.Allowed {
		refused = newError(r, a.Decision, a.Err())
	}
	if refused != nil && rules.Hides(a.uses, &refused.Decision) {
		refused.hidden, refused.told = true, tiered.Decision{}
		if told := a.told(&refused.Decision); told != nil {
			refused.told = *told
		}
		refused.describe("")
	}
	return refused
}

// waited returns the refusal that the error of a wait means.
func waited(r request, uses []rules.Use, err error) *Error {
	var limited *tiered.LimitedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &limited):
		return newError(r, limited.Decision, err)
	}
	return newError(r, rules.Canceled(r.ctx, uses), r.ctx.Err())
}
