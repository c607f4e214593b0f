package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/internal/inside"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// New returns a middleware that lets a request through if all rules admit it, and answers it otherwise. The middleware
// may be used concurrently, and for any number of handlers. A request waits for at most the shortest Budget of the
// rules' Groups. Around a nil Handler it answers 404, as an empty [http.ServeMux] does.
//
// The error names each field that is not valid.
func New(rules []Rule, o *Options) (func(http.Handler) http.Handler, error) {
	options, err := fill(rules, o)
	if err != nil {
		return nil, err
	}
	l := &limit{rules: append([]Rule(nil), rules...), Options: options, names: options.Headers.names()}
	return func(next http.Handler) http.Handler {
		if next == nil {
			next = http.NotFoundHandler()
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
	}, nil
}

// ByIP returns a middleware that counts each request for the address of its connection: New with [RemoteIP]. A request
// without an address gets 400. Behind a proxy all clients have one address: use New with [ForwardedFor] there.
func ByIP(l *tiered.Limiter) (func(http.Handler) http.Handler, error) {
	return New([]Rule{{Limiter: l, Key: RemoteIP(), Missing: Refuse}}, nil)
}

// ByHeader returns a middleware that counts each request for the value of a header field: New with [Header]. A request
// without the field gets 400. A client can send any value, so name a field that your proxy sets or that was
// authenticated before.
func ByHeader(l *tiered.Limiter, name string) (func(http.Handler) http.Handler, error) {
	return New([]Rule{{Limiter: l, Key: Header(name), Missing: Refuse}}, nil)
}

// limit is a middleware.
type limit struct {
	rules []Rule
	Options
	names fieldNames
}

// fewRules is the number of rules for which a request allocates no list.
const fewRules = 4

func (l *limit) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.Skip != nil && l.Skip(r) {
		if l.Settle {
			r, _ = l.withSettlement(r, tiered.Reservation{}, nil, nil)
		}
		next.ServeHTTP(w, r)
		return
	}
	var room [fewRules]use
	uses, free, wrong := l.uses(r, room[:0])
	if wrong.Reason != tiered.Unknown {
		l.refuse(w, r, wrong)
		return
	}
	var t tiered.Reservation
	if len(uses) == 0 {
		l.tell(r.Context(), w.Header(), free)
	} else {
		ctx := r.Context()
		if ctx.Err() != nil { // nobody reads the answer, so nothing is taken
			l.refuse(w, r, Refusal{Decision: canceled(ctx, uses)})
			return
		}
		t = take(ctx, uses)
		if t.Allowed && ctx.Err() != nil {
			t.Cancel()
			t.Decision = canceled(ctx, uses)
		}
		l.headers(w.Header(), uses, &t.Decision)
		if !t.Allowed {
			l.refuse(w, r, Refusal{Decision: t.Decision})
			return
		}
	}
	var s *settlement
	if l.Settle {
		r, s = l.withSettlement(r, t, uses, free)
	}
	if l.Counts == nil || len(uses) == 0 && (s == nil || len(free) == 0) {
		next.ServeHTTP(w, r)
		return
	}
	seen := &statusRecorder{ResponseWriter: w}
	next.ServeHTTP(seen.writer(), r)
	switch counts := l.Counts(seen.final()); {
	case counts:
	case s == nil:
		t.Cancel()
	case s.end():
		t.Cancel()
	}
}

// use is the part of a request that one rule counts.
type use struct {
	rule    int
	limiter *tiered.Limiter
	key     string
	cost    int64
	limit   tiered.Limit // that the request carries; zero is none
	planned bool         // the request goes by its plan
	plan    string
}

// of returns the use of n tokens.
func (u *use) of(n int64) tiered.Use {
	if u.planned {
		return u.limiter.For(u.key).N(n).WithPlan(u.plan)
	}
	return u.limiter.For(u.key).N(n).WithLimit(u.limit)
}

// carries reports whether the request says by which limit it goes.
func (u *use) carries() bool { return u.planned || u.limit != (tiered.Limit{}) }

// uses appends a use for each rule that applies to the request, and returns those apart that cost nothing. A Refusal with a
// Reason refuses the request at once.
func (l *limit) uses(r *http.Request, uses []use) (_, free []use, wrong Refusal) {
	past := 0 // the rules before it are left out
	for i := range l.rules {
		rule := &l.rules[i]
		if i < past {
			continue
		}
		skip := rule.Skip != nil && rule.Skip(r)
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
			return nil, nil, rule.keyless(err)
		case key != "":
		case rule.Missing == Exempt:
			continue
		case rule.Missing == Together:
			key = sharedKey
		default:
			return nil, nil, rule.keyless(nil)
		}
		u := use{rule: i, limiter: rule.Limiter, key: key, cost: 1}
		if rule.Limit != nil {
			u.limit = rule.Limit(r)
		}
		if rule.Plan != nil {
			u.planned, u.plan = true, rule.Plan(r)
		}
		if rule.Cost != nil {
			if u.cost = rule.Cost(r); u.cost == 0 {
				if l.Settle && uint(len(key)-1) >= inside.MaxKeyLength { // what it costs could not be charged
					return nil, nil, rule.keyless(nil)
				}
				free = append(free, u)
				continue
			}
		}
		uses = append(uses, u)
	}
	return uses, free, Refusal{}
}

// keyless refuses a request that has no key for the rule. err is why, if its function says so.
func (r *Rule) keyless(err error) Refusal {
	return Refusal{Decision: tiered.Decision{Reason: tiered.InvalidKey, Policy: r.Limiter.Policy().Name}, KeyError: err}
}

// tell states the tightest limit of a request that costs nothing, as far as this process knows it: Redis is not asked.
func (l *limit) tell(ctx context.Context, h http.Header, free []use) {
	var least tiered.Decision
	for i := range free {
		d := free[i].of(0).Peek(ctx) // asks nobody
		if d.Reason != tiered.Unknown && counted(&d) && !shadowed(free, &d) && (!least.Allowed || d.Remaining < least.Remaining) {
			least = d
			least.Allowed = true // the request passes
		}
	}
	if least.Allowed {
		l.headers(h, free, &least)
	}
}

// canceled returns the Decision for a request whose client has gone.
func canceled(ctx context.Context, uses []use) tiered.Decision {
	return tiered.Decision{
		Reason: tiered.Canceled, Expired: errors.Is(ctx.Err(), context.DeadlineExceeded),
		Policy: uses[0].limiter.Policy().Name, Key: uses[0].key, Cost: uses[0].cost,
	}
}

// take reserves the tokens of all uses, or of none. A single use takes a shorter way.
func take(ctx context.Context, uses []use) tiered.Reservation {
	if len(uses) == 1 && !uses[0].carries() {
		u := &uses[0]
		return u.limiter.ReserveN(ctx, u.key, u.cost)
	}
	all := make([]tiered.Use, len(uses))
	for i := range uses {
		all[i] = uses[i].of(uses[i].cost)
	}
	return tiered.All(all...).Reserve(ctx)
}
