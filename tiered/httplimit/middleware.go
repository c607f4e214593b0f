package httplimit

import (
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// New returns a middleware that lets a request through if all rules admit it, and answers it
// otherwise. The middleware may be used concurrently, and for any number of handlers. A request
// waits for at most the shortest Budget of the rules' Groups. Around a nil Handler it answers 404,
// as an empty [http.ServeMux] does.
//
// The error names each field that is not valid.
func New(rules []Rule, o *Options) (func(http.Handler) http.Handler, error) {
	options, counted, err := fill(rules, o)
	if err != nil {
		return nil, err
	}
	l := newLimit(counted, options)
	return func(next http.Handler) http.Handler {
		if next == nil {
			next = http.NotFoundHandler()
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
	}, nil
}

// ByIP returns a middleware that counts each request for the address of its connection: New with
// [RemoteIP]. A request without an address gets 400. Behind a proxy all clients have one address:
// use New with [ForwardedFor] there.
func ByIP(l *tiered.Limiter) (func(http.Handler) http.Handler, error) {
	return New([]Rule{{Limiter: l, Key: RemoteIP(), Missing: Refuse}}, nil)
}

// ByHeader returns a middleware that counts each request for the value of a header field: New with
// [Header]. A request without the field gets 400. A client can send any value, so name a field that
// your proxy sets or that was authenticated before.
func ByHeader(l *tiered.Limiter, name string) (func(http.Handler) http.Handler, error) {
	return New([]Rule{{Limiter: l, Key: Header(name), Missing: Refuse}}, nil)
}

// limit is a middleware.
type limit struct {
	rules  []rules.Rule[*http.Request]
	enters bool // requests need places
	Options
	names fieldNames
}

func newLimit(all []rules.Rule[*http.Request], o Options) *limit {
	return &limit{rules: all, enters: rules.NeedPlaces(all), Options: o, names: o.Headers.names()}
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
	var room [fewRules]rules.Use
	at := 0
	in := rules.NewEntries(l.enters)
	uses, free, keyless, err := rules.Collect(l.rules, r, room[:0], in, &at)
	if keyless != nil {
		l.refuse(w, r, Refusal{Decision: keyless.Keyless(), KeyError: err})
		return
	}
	if d := in.Take(r.Context()); !d.Allowed {
		l.headers(w.Header(), nil, &d, nil)
		l.refuse(w, r, Refusal{Decision: d, AtOnce: d.Reason == tiered.Limited})
		return
	}
	defer in.Release()
	if ctx := in.Within(r.Context()); ctx != r.Context() {
		r = r.WithContext(ctx)
	}
	var t tiered.Reservation
	if len(uses) == 0 {
		if least := rules.Tightest(r.Context(), free); least.Reason != tiered.Unknown {
			least.Allowed = true // the request passes
			l.headers(w.Header(), free, &least, nil)
		}
	} else {
		var each []tiered.Decision
		t, each = rules.Take(r.Context(), uses)
		l.headers(w.Header(), uses, &t.Decision, each)
		if !t.Allowed {
			l.refuse(w, r, Refusal{Decision: t.Decision, unnamed: rules.Hides(uses, &t.Decision)})
			return
		}
	}
	var s *rules.Settlement[*http.Request]
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
	default:
		s.Cancel()
	}
}

// withSettlement returns r with what Settle needs.
func (l *limit) withSettlement(
	r *http.Request, t tiered.Reservation, uses, free []rules.Use,
) (*http.Request, *rules.Settlement[*http.Request]) {
	s, ctx := rules.NewSettlement(r.Context(), l.rules, t, uses, free)
	return r.WithContext(ctx), s
}
