package policyfile

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Route says which limits hold for HTTP requests. Of several routes the most specific one counts,
// as in [http.ServeMux]. It meets a request however the client spells the URL: see
// [File.Middleware].
type Route struct {
	Match  string  // a pattern of [http.ServeMux], such as /api/ or POST /login
	Limits []Limit // empty: the requests are not limited

	// ExemptPreflights lets the requests pass by which browsers ask whether they may send others:
	// see [httplimit.Preflight].
	ExemptPreflights bool

	Exceptions // by the address of the client
}

// httpWords are those for the keys of requests and for where a plan's name is. A service behind a
// proxy that knows the user has the plan in a header.
var httpWords = words{
	keys: map[string]finder{
		"ip":     {address: true, key: func(Key) httplimit.Key { return httplimit.RemoteIP() }},
		"route":  {key: func(Key) httplimit.Key { return httplimit.Route() }},
		"method": {key: func(Key) httplimit.Key { return httplimit.Method() }},

		"header": {needs: aName, key: func(k Key) httplimit.Key { return httplimit.Header(k.Name) }},
		"path":   {needs: aName, key: func(k Key) httplimit.Key { return httplimit.PathValue(k.Name) }},

		// These are secrets.
		"credential": {needs: aName, hash: true, key: func(k Key) httplimit.Key { return httplimit.Credential(k.Name) }},
		"cookie":     {needs: aName, hash: true, key: func(k Key) httplimit.Key { return httplimit.Cookie(k.Name).Hashed() }},
		"query":      {needs: aName, hash: true, key: func(k Key) httplimit.Key { return httplimit.Query(k.Name).Hashed() }},

		"forwarded-for": {
			needs: theProxies, address: true,
			key: func(k Key) httplimit.Key { return httplimit.ForwardedFor(k.Proxies...) },
		},
		"forwarded": {
			needs: theProxies, address: true,
			key: func(k Key) httplimit.Key { return httplimit.Forwarded(k.Proxies...) },
		},
		"header-ip": {
			needs: nameAndProxies, address: true,
			key: func(k Key) httplimit.Key { return httplimit.HeaderIP(k.Name, k.Proxies...) },
		},
		"hops": {needs: aNumber, address: true, key: func(k Key) httplimit.Key { return httplimit.TrustedHops(k.Hops) }},
	},
	plans: map[string]finder{"header": {needs: aName}},
}

// httpPlan returns what finds the name of a request's plan.
func httpPlan(k Key) func(*http.Request) string {
	if k.Kind != "header" {
		return nil
	}
	name := http.CanonicalHeaderKey(k.Name)
	return func(r *http.Request) string { return canonical.First(r.Header[name]) }
}

// httpKey returns the key of a limit.
func httpKey(parts []Key) httplimit.Key {
	var all []httplimit.Key
	for _, p := range parts {
		all = append(all, httpPart(p))
	}
	if len(all) == 1 {
		return all[0]
	}
	return httplimit.JoinKeys(all...)
}

func httpPart(k Key) httplimit.Key {
	key := httplimit.RemoteIP()
	if f, ok := httpWords.keys[k.Kind]; ok {
		key = f.key(k)
	}
	if k.IPv4 != 0 || k.IPv6 != 0 {
		key = key.Prefix(k.IPv4, k.IPv6)
	}
	return key
}

// rules of fields that are missing.
const (
	needsMatch  = "must say which requests or calls are limited"
	needsLimits = "must be a list: [] if nothing is limited"
)

// route reads a route. match is where its match is, if that can be matched.
func (r *reader) route(path string, n *yaml.Node) (route Route, match *yaml.Node) {
	var wildcards []string
	exceptions, end := r.exceptions(&route.Exceptions, httpWords, func(k Key) error { return checkKey(httpPart(k)) })
	r.mapping(path, n, append([]field{ // the limits after the wildcards that they name, and before their plan
		{"match", func(path string, n *yaml.Node) {
			text, ok := parsed(r, path, n, func(text string) (string, error) {
				p, err := parsePattern(text)
				wildcards = p.names()
				return text, err
			})
			if route.Match = text; ok {
				match = n
			}
		}},
		{"preflights", func(path string, n *yaml.Node) { route.ExemptPreflights, _ = parsed(r, path, n, word(preflights)) }},
		{"limits", func(path string, n *yaml.Node) {
			route.Limits = r.limitsOf(path, n, httpWords, func(k Key) error {
				if k.Kind == "path" && match != nil && !slices.Contains(wildcards, k.Name) {
					return notAWildcard(k.Name, wildcards)
				}
				return checkKey(httpPart(k))
			})
		}},
		r.planOfAll(httpWords, func(k Key) error { return checkKey(httpPart(k)) }, &route.Limits),
	}, exceptions...), need{"match", needsMatch}, need{"limits", needsLimits})
	end(path, route.Limits)
	return route, match
}

func notAWildcard(name string, wildcards []string) error {
	is := fmt.Sprintf("is %s: %s must be a wildcard of match", strictyaml.Quote("path "+name), strictyaml.Quote(name))
	if len(wildcards) == 0 {
		return errors.New(is + ", which has none")
	}
	return fmt.Errorf("%s, which has %s", is, strings.Join(wildcards, ", "))
}

// checkKey returns what httplimit.New would say of a key.
func checkKey(key httplimit.Key) error {
	_, err := httplimit.New([]httplimit.Rule{{Key: key, Missing: httplimit.Refuse}}, nil) // there is no Limiter
	for _, e := range split(err) {
		if text, ok := strings.CutPrefix(e.Error(), "httplimit: rules[0].Key "); ok {
			return errors.New(text)
		}
	}
	return nil
}

// patterns reports routes that cannot be matched together. at are the places of what can be matched
// by itself.
func (r *reader) patterns(at []*yaml.Node, routes []Route) {
	var texts []string
	var places []int
	for i, route := range routes {
		if at[i] != nil {
			texts, places = append(texts, route.Match), append(places, i)
		}
	}
	newTable(texts, func(i int, err error) { r.Bad(at[places[i]], "http[%d].match %v", places[i], err) })
}

// Middleware returns net/http middleware that limits requests by the file's routes. The Group must
// have the file's policies, see [tiered.Group.SetPolicies] and [atonce.SetPolicies]. A request that
// no route matches is not limited. Around a nil Handler the middleware answers 404.
//
// A request is limited as each route that a server behind could serve it as, however the client
// spells its URL: see docs/configuration.md. Of two such routes with the same policy and key it
// counts once, unless Options.Settle is set. If it meets several, the limits of one are asked after
// those of the other. What the first has taken is spent if the next refuses. A request is answered
// with 414 if its path is longer than 4 kB, or has more than 100 parts, and can be read in several
// ways.
func (f *File) Middleware(g *tiered.Group, o *httplimit.Options) (func(http.Handler) http.Handler, error) {
	if f == nil {
		return nil, errors.New("policyfile: the File is nil: must be made by Load or Parse")
	}
	var all []error
	bad := func(format string, i int, err error) {
		if err != nil {
			all = append(all, fmt.Errorf("policyfile: http[%d]"+format, i, err))
		}
	}
	var matches []string
	for _, route := range f.HTTP {
		matches = append(matches, route.Match)
	}
	l := &limits{table: newTable(matches, func(i int, err error) { bad(".match %w", i, err) })}
	if o != nil {
		l.settle = o.Settle
	}
	for i, route := range f.HTTP {
		built, err := build(route, nil, g, o)
		bad(": %w", i, err)
		l.routes = append(l.routes, built)
	}
	for i, route := range f.HTTP {
		bad(": %w", i, l.except(i, route, g, o))
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	return l.middleware, nil
}
