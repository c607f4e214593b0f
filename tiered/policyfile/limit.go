package policyfile

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// limits are those of all routes of a file.
type limits struct {
	table  *table
	routes []built // by the numbers of the table, and then what holds for ranges of addresses instead
	settle bool    // as in httplimit.Options: the handler gets a copy of the request
}

// built is a route with its limits.
type built struct {
	limits []Limit
	named  bool // a key is of the pattern or of its wildcards, which the request must have
	exempt bool // preflights pass

	address httplimit.Key                          // of a client, if there are exceptions
	find    func(netip.Addr) (r Range, found bool) // the exception of an address; nil if there are none
	instead map[string]int                         // the number of what holds for a range, by its policy

	// once limits a request that meets this route only. turn limits a meeting of a request: see
	// visit.
	once, turn func(http.Handler) http.Handler
}

// build makes the limits of a route. It skips the others: they are there for handlers that settle
// them by their names.
func build(route Route, others []Limit, g *tiered.Group, o *httplimit.Options) (b built, err error) {
	b.limits, b.exempt = route.Limits, route.ExemptPreflights
	if o == nil || !o.Settle {
		others = nil
	}
	if len(b.limits)+len(others) == 0 {
		b.once = func(next http.Handler) http.Handler { return next }
		b.turn = b.once
		return b, nil
	}
	var rules []httplimit.Rule
	for i, l := range slices.Concat(b.limits, others) {
		if i >= len(b.limits) && (l.Policy == "" || slices.ContainsFunc(rules, func(o httplimit.Rule) bool { return o.Limiter.Policy().Name == l.Policy })) {
			continue
		}
		b.named = b.named || slices.ContainsFunc(l.Key, func(k Key) bool { return k.Kind == "path" || k.Kind == "route" })
		rule := httplimit.Rule{Key: httpKey(l.Key), Missing: l.Missing, Hidden: l.Hidden}
		if rule.Limiter, rule.AtOnce, err = l.Limiters(g); err != nil {
			return b, err
		}
		if l.Plan.Kind != "" {
			if rule.Plan = httpPlan(l.Plan); rule.Plan == nil {
				return b, fmt.Errorf("Limit.Plan of policy %s is %s: must be header NAME", strictyaml.Quote(cmp.Or(l.Policy, l.AtOnce)),
					strictyaml.Quote(l.Plan.String()))
			}
		}
		if cost := l.Cost; cost != 1 && rule.Limiter != nil {
			rule.Cost = func(*http.Request) int64 { return cost }
		}
		if b.exempt {
			rule.Skip = httplimit.Preflight
		}
		if i >= len(b.limits) {
			rule.AtOnce = nil
			rule.Skip, rule.Missing = func(*http.Request) bool { return true }, httplimit.Exempt
		}
		rules = append(rules, rule)
	}
	if o != nil && o.Plan != nil && !slices.ContainsFunc(rules, func(r httplimit.Rule) bool {
		return r.Plan == nil && (len(r.Limiter.Policy().Plans) > 0 || len(r.AtOnce.Policy().Plans) > 0)
	}) {
		other := *o // for other routes
		o, other.Plan = &other, nil
	}
	if b.once, err = httplimit.New(rules, o); err != nil {
		return b, err
	}
	for i := range b.limits {
		if rules[i].Limiter == nil {
			continue // nobody gets two places of a key: see rules.Entries
		}
		skip, enters := rules[i].Skip, rules[i].AtOnce != nil
		rules[i].Skip = func(r *http.Request) bool { return visitOf(r).counted[i] && !enters || skip != nil && skip(r) }
		cost := b.limits[i].Cost
		rules[i].Cost = func(r *http.Request) int64 { // it is asked of a request that has the key
			if visitOf(r).counted[i] {
				return 0
			}
			visitOf(r).counts(i, cost)
			return cost
		}
	}
	b.turn, err = httplimit.New(rules, o)
	return b, err
}

// Limiters returns what a Group has for the limit: either may be nil.
func (l Limit) Limiters(g *tiered.Group) (rate *tiered.Limiter, places *atonce.Limiter, err error) {
	if l.AtOnce != "" {
		if places = atonce.Of(g, l.AtOnce); places == nil {
			return nil, nil, fmt.Errorf("the Group has no policy %s of what runs at the same time", strictyaml.Quote(l.AtOnce))
		}
	}
	if l.Policy == "" && places != nil {
		return nil, places, nil
	}
	rate, ok := g.Limiter(l.Policy)
	if !ok {
		return nil, nil, fmt.Errorf("the Group has no policy %s", strictyaml.Quote(l.Policy))
	}
	if l.Cost != 0 {
		if err := rate.Policy().CheckCost(l.Cost); err != nil {
			return nil, nil, fmt.Errorf("Limit.Cost of policy %s: %s", strictyaml.Quote(l.Policy), plain(err))
		}
	}
	return rate, places, nil
}

// except makes what holds for ranges of addresses instead of a route's limits.
func (l *limits) except(route int, of Route, g *tiered.Group, o *httplimit.Options) error {
	if len(of.Ranges) == 0 {
		return nil
	}
	b := &l.routes[route]
	b.address, b.instead = httpPart(of.Address), map[string]int{}
	if !httpWords.keys[of.Address.Kind].address {
		return fmt.Errorf("Exceptions.Address is %s: must be an address of a client, such as ip", strictyaml.Quote(of.Address.String()))
	}
	for _, r := range of.Ranges {
		if _, ok := b.instead[r.Policy]; ok {
			continue
		}
		instead, err := build(Route{Limits: of.LimitsOf(r)}, of.Limits, g, o)
		if err != nil {
			return fmt.Errorf("range %s: %w", rangeText(r.Addresses), err)
		}
		b.instead[r.Policy] = len(l.routes)
		l.routes = append(l.routes, instead)
		b = &l.routes[route]
	}
	b.find = of.Find()
	return nil
}

// of returns the number of what limits a request that meets a route.
func (l *limits) of(route int, r *http.Request) int {
	b := &l.routes[route]
	if b.find == nil {
		return route
	}
	a, _ := b.address.Address(r) // of a client without one, that of no range
	if found, ok := b.find(a); ok {
		return b.instead[found.Policy]
	}
	return route
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
	for _, b := range l.routes {
		once = append(once, b.once(next))
		turn = append(turn, b.turn(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { visitOf(r).admitted(w, r) })))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		only, ok := l.table.find(r)
		switch {
		case ok && only.route < 0:
			next.ServeHTTP(w, r)
			return
		case ok && !l.routes[only.route].named:
			once[l.of(only.route, r)].ServeHTTP(w, r)
			return
		case !ok && isTooLong(r.URL):
			http.Error(w, http.StatusText(http.StatusRequestURITooLong), http.StatusRequestURITooLong)
			return
		}
		met := []meeting{only}
		if !ok {
			met = l.table.meetings(r)
		}
		v := &visit{limits: l, turn: turn, last: next, request: r, met: met}
		v.next(r.Context(), w)
	})
}

// visit is a request on its way through the limits of all routes that it meets.
type visit struct {
	limits  *limits
	turn    []http.Handler
	last    http.Handler
	request *http.Request

	met     []meeting
	asked   int              // of met
	uses    map[string]int64 // the most tokens that were asked of a policy for a key
	of      []string         // the names of the uses of the route that is asked
	counted []bool           // which of them another route has counted
}

func visitOf(r *http.Request) *visit { return r.Context().Value(canonical.Request{}).(*visit) }

// next asks the next route, or the handler if all have admitted the request.
func (v *visit) next(ctx context.Context, w http.ResponseWriter) {
	if v.asked == len(v.met) {
		r := v.request
		if v.asked > 0 && v.limits.settle {
			r = r.WithContext(ctx)
		}
		v.last.ServeHTTP(w, r)
		return
	}
	m := v.met[v.asked]
	v.asked++
	of := v.limits.of(m.route, v.request)
	p, route := &v.limits.table.patterns[m.route], v.limits.routes[of]
	v.of, v.counted = nil, make([]bool, len(route.limits))
	for i, l := range route.limits {
		if len(v.met) == 1 || v.limits.settle { // what is settled must have been taken by its own route
			break
		}
		if route.exempt && httplimit.Preflight(v.request) { // it does not count here, so it counts for the others
			break
		}
		use := use(p, m, l)
		most, ok := v.uses[use]
		v.of, v.counted[i] = append(v.of, use), ok && most >= l.Cost
	}
	r := v.copy(ctx)
	r.Pattern = p.String()
	for i, name := range p.names() {
		r.SetPathValue(name, m.values[i])
	}
	v.turn[of].ServeHTTP(w, r)
}

// counts notes that a limit of the route that is asked counts the request: by its key, or with
// those that have none.
func (v *visit) counts(limit int, cost int64) {
	if limit >= len(v.of) {
		return
	}
	if v.uses == nil {
		v.uses = map[string]int64{}
	}
	v.uses[v.of[limit]] = cost
}

// copy returns the request for the limits of a route. It shares all but the pattern and the values
// of wildcards, which may be those of a mux around the middleware.
func (v *visit) copy(ctx context.Context) *http.Request {
	r := v.request
	c := &http.Request{
		Method: r.Method, URL: r.URL, Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor, Header: r.Header,
		Body: r.Body, GetBody: r.GetBody, ContentLength: r.ContentLength, TransferEncoding: r.TransferEncoding, Close: r.Close,
		Host: r.Host, Form: r.Form, PostForm: r.PostForm, MultipartForm: r.MultipartForm, Trailer: r.Trailer,
		RemoteAddr: r.RemoteAddr, RequestURI: r.RequestURI, TLS: r.TLS, Response: r.Response,
	}
	return c.WithContext(context.WithValue(ctx, canonical.Request{}, v))
}

// admitted goes on with a request that a route has admitted. A function of the options may have
// read its form.
func (v *visit) admitted(w http.ResponseWriter, r *http.Request) {
	v.request.Body, v.request.Form, v.request.PostForm, v.request.MultipartForm = r.Body, r.Form, r.PostForm, r.MultipartForm
	v.next(r.Context(), w)
}

// use names the policy and the key by which a limit counts a meeting: two meetings of a request
// with the same name count for the same.
func use(p *pattern, m meeting, l Limit) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %+v %+v %t", l.Policy, l.Key, l.Plan, l.Missing == httplimit.Together)
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
