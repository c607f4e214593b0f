package policyfile

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// limits are those of all routes of a file.
type limits struct {
	table  *table
	routes []built
	settle bool // as in httplimit.Options: the handler gets a copy of the request
}

// built is a route with its limits.
type built struct {
	limits []Limit

	// once limits a request that meets this route only. turn limits one of several meetings of a request: see visit.
	once, turn func(http.Handler) http.Handler
}

// build makes the limits of a route.
func build(route Route, g *tiered.Group, o *httplimit.Options) (b built, err error) {
	b.limits = route.Limits
	var rules []httplimit.Rule
	for _, l := range route.Limits {
		limiter, ok := g.Limiter(l.Policy)
		if !ok {
			return b, fmt.Errorf("the Group has no policy %s", strictyaml.Quote(l.Policy))
		}
		rule := httplimit.Rule{Limiter: limiter, Key: httpKey(l.Key), Missing: l.Missing}
		if cost := l.Cost; cost != 1 {
			rule.Cost = func(*http.Request) int64 { return cost }
		}
		rules = append(rules, rule)
	}
	if b.once, err = httplimit.New(rules, o); err != nil {
		return b, err
	}
	for i := range rules {
		rules[i].Skip = func(r *http.Request) bool { return visitOf(r).counted[i] }
	}
	b.turn, err = httplimit.New(rules, o)
	return b, err
}

// middleware is what [File.Middleware] returns.
func (l *limits) middleware(next http.Handler) http.Handler {
	if next == nil {
		next = http.NotFoundHandler()
	}
	if len(l.routes) == 0 {
		return next
	}
	var once, turn []http.Handler
	mux := http.NewServeMux()
	for i, b := range l.routes {
		once = append(once, b.once(next))
		turn = append(turn, b.turn(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			visitOf(r).next(w, r.Context())
		})))
		mux.Handle(l.table.patterns[i].String(), once[i])
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i, ok := l.table.find(r)
		if ok && i >= 0 {
			mux.ServeHTTP(w, r) // sets the values of the pattern's wildcards
			return
		}
		if !ok && isTooLong(r.URL) {
			http.Error(w, http.StatusText(http.StatusRequestURITooLong), http.StatusRequestURITooLong)
			return
		}
		var met []meeting
		if !ok {
			met = l.table.meetings(r)
		}
		if len(met) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		v := &visit{limits: l, turn: turn, last: next, request: r, left: met}
		v.next(w, r.Context())
	})
}

// visit is a request on its way through the limits of all routes that it meets.
type visit struct {
	limits  *limits
	turn    []http.Handler
	last    http.Handler
	request *http.Request

	left    []meeting        // the routes that have not been asked
	uses    map[string]int64 // the most tokens that were asked of a policy for a key
	counted []bool           // the limits of the route that is asked for which another route has counted
}

type visitKey struct{}

func visitOf(r *http.Request) *visit { return r.Context().Value(visitKey{}).(*visit) }

// next asks the next route, or the handler if all have admitted the request.
func (v *visit) next(w http.ResponseWriter, ctx context.Context) {
	if len(v.left) == 0 {
		r := v.request
		if v.limits.settle {
			r = r.WithContext(ctx)
		}
		v.last.ServeHTTP(w, r)
		return
	}
	m := v.left[0]
	v.left = v.left[1:]
	p, all := &v.limits.table.patterns[m.route], v.limits.routes[m.route].limits
	v.counted = make([]bool, len(all))
	for i, l := range all {
		use, cost := use(p, m, l), max(l.Cost, 0)
		most, ok := v.uses[use]
		if v.counted[i] = ok && most >= cost; v.counted[i] {
			continue
		}
		if v.uses == nil {
			v.uses = map[string]int64{}
		}
		v.uses[use] = cost
	}
	r := v.request.Clone(context.WithValue(ctx, visitKey{}, v))
	r.Pattern = p.String()
	for i, name := range p.names() {
		r.SetPathValue(name, m.values[i])
	}
	v.turn[m.route].ServeHTTP(w, r)
}

// use names the policy and the key by which a limit counts a meeting: two meetings of a request with the same name count
// for the same.
func use(p *pattern, m meeting, l Limit) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %+v", l.Policy, l.Key)
	for _, k := range l.Key {
		switch k.Kind {
		case "route":
			fmt.Fprintf(&b, " %q", p)
		case "path":
			if i := slices.Index(p.names(), k.Name); i >= 0 && i < len(m.values) {
				fmt.Fprintf(&b, " %q", m.values[i])
			}
		}
	}
	return b.String()
}
