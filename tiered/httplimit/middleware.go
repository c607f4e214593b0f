package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// New returns a middleware that lets a request through if all rules admit it, and answers it otherwise. It is safe for
// concurrent use, for any number of handlers; it waits no longer than the Group's Budget.
//
// Errors name each field that breaks its rule, all at once.
func New(rules []Rule, o *Options) (func(http.Handler) http.Handler, error) {
	options, err := fill(rules, o)
	if err != nil {
		return nil, err
	}
	l := &limit{rules: append([]Rule(nil), rules...), Options: options}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
	}, nil
}

// limit is a middleware.
type limit struct {
	rules []Rule
	Options
}

// fewRules is how many rules need no memory of their own per request.
const fewRules = 4

func (l *limit) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.Skip != nil && l.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	var room [fewRules]use
	uses, refused := l.uses(r, room[:0])
	if refused.Reason != tiered.Unknown {
		l.refuse(w, r, refused)
		return
	}
	if len(uses) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	ctx := r.Context()
	if ctx.Err() != nil { // nobody reads the answer: nothing is taken for it
		l.refuse(w, r, canceled(ctx, uses))
		return
	}
	t := take(ctx, uses)
	if t.Allowed && ctx.Err() != nil {
		t.Cancel()
		t.Decision = canceled(ctx, uses)
	}
	if !t.Allowed {
		l.headers(w.Header(), uses, &t.Decision)
		l.refuse(w, r, t.Decision)
		return
	}
	l.headers(w.Header(), uses, &t.Decision)
	if l.Settle {
		r = r.WithContext(withTaken(ctx, t, l.rules, uses))
	}
	if l.Counts == nil {
		next.ServeHTTP(w, r)
		return
	}
	seen := &witness{ResponseWriter: w}
	next.ServeHTTP(seen.disguise(), r)
	if !l.Counts(seen.final()) {
		t.Cancel()
	}
}

// use is what a request needs of one rule.
type use struct {
	rule    int
	limiter *tiered.Limiter
	key     string
	cost    int64
}

// uses appends what a request needs of each rule that applies to it. A Decision with a Reason refuses it at once.
func (l *limit) uses(r *http.Request, uses []use) ([]use, tiered.Decision) {
	for i := range l.rules {
		rule := &l.rules[i]
		if rule.Skip != nil && rule.Skip(r) {
			continue
		}
		key, ok := rule.Key.find(r)
		if !ok {
			switch rule.Missing {
			case Exempt:
				continue
			case Refuse:
				return nil, tiered.Decision{Reason: tiered.InvalidKey, Policy: rule.Limiter.Policy().Name}
			case Together:
				key = together
			}
		}
		cost := int64(1)
		if rule.Cost != nil {
			if cost = rule.Cost(r); cost == 0 {
				continue
			}
		}
		uses = append(uses, use{i, rule.Limiter, key, cost})
	}
	return uses, tiered.Decision{}
}

// canceled is the Decision on a request that nobody waits for any more.
func canceled(ctx context.Context, uses []use) tiered.Decision {
	return tiered.Decision{
		Reason: tiered.Canceled, Expired: errors.Is(ctx.Err(), context.DeadlineExceeded),
		Policy: uses[0].limiter.Policy().Name, Key: uses[0].key,
	}
}

// take takes for all uses, or for none. One is decided without the machinery of several.
func take(ctx context.Context, uses []use) tiered.Reservation {
	if len(uses) == 1 {
		u := &uses[0]
		return u.limiter.Reserve(ctx, u.key, u.cost)
	}
	all := make([]tiered.Use, len(uses))
	for i, u := range uses {
		all[i] = u.limiter.ForN(u.key, u.cost)
	}
	return tiered.Strictest(all...).Reserve(ctx)
}
