package policyfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Route says which limits hold for HTTP requests. Of several routes the most specific one counts, as in
// [http.ServeMux]. It meets a request however the client spells the URL: see [File.Middleware].
type Route struct {
	Match  string // a pattern of [http.ServeMux], such as /api/ or POST /login
	Limits []Limit

	line int
}

// httpKeys are the words for keys of requests.
var httpKeys = map[string]argument{
	"ip": noArgument, "route": noArgument, "method": noArgument, "header": aName, "credential": aName, "cookie": aName, "path": aName,
	"forwarded-for": theProxies, "forwarded": theProxies, "header-ip": nameAndProxies, "hops": aNumber,
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
	switch k.Kind {
	case "route":
		return httplimit.Route()
	case "method":
		return httplimit.Method()
	case "header":
		return httplimit.Header(k.Name)
	case "credential":
		return httplimit.Credential(k.Name)
	case "cookie": // a session is a secret
		return httplimit.Cookie(k.Name).Hashed()
	case "path":
		return httplimit.PathValue(k.Name)
	case "forwarded-for":
		return httplimit.ForwardedFor(k.Proxies...)
	case "forwarded":
		return httplimit.Forwarded(k.Proxies...)
	case "header-ip":
		return httplimit.HeaderIP(k.Name, k.Proxies...)
	case "hops":
		return httplimit.TrustedHops(k.Hops)
	}
	return httplimit.RemoteIP()
}

// route reads a route.
func (r *reader) route(path string, n *yaml.Node, policies []tiered.Policy) Route {
	route := Route{line: n.Line}
	r.mapping(path, n, []field{
		{"match", func(path string, n *yaml.Node) {
			route.Match, _ = parsed(r, path, n, func(text string) (string, error) {
				_, err := parsePattern(text)
				return text, err
			})
		}},
		{"limits", func(path string, n *yaml.Node) {
			route.Limits = r.limitsOf(path, n, policies, httpKeys)
		}},
	})
	if n.Kind == yaml.MappingNode && (route.Match == "" || len(route.Limits) == 0) {
		r.Bad(n, "%s: must have match and limits", path)
	}
	return route
}

// patterns reports routes that cannot be matched together.
func (r *reader) patterns(n *yaml.Node, routes []Route) {
	newTable(matches(routes), func(i int, err error) {
		at := *n
		at.Line, at.Column = routes[i].line, 1
		r.Bad(&at, "http[%d].match %v", i, err)
	})
}

func matches(routes []Route) (all []string) {
	for _, route := range routes {
		all = append(all, route.Match)
	}
	return all
}

// try builds the middleware for a Group that is not used, so that a file whose routes cannot be built is a mistake of
// the file, and not of the reload.
func (r *reader) try(n *yaml.Node, f *File) {
	if r.Mistakes() > 0 {
		return
	}
	g, err := tiered.NewGroup(remote.NewMemory(), &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		defer func() { _ = g.Close(context.Background()) }()
		if err = g.SetPolicies(f.Policies); err == nil {
			_, err = f.Middleware(g, nil)
		}
	}
	if err != nil {
		for _, e := range split(err) {
			r.Bad(n, "%s", plain(e))
		}
	}
}

// Middleware returns net/http middleware that limits requests by the file's routes. The Group must have the file's
// policies. A request that no route matches is not limited. Around a nil Handler the middleware answers 404.
//
// A request is limited as each route that a server behind could serve it as, however the client spells its URL: see
// docs/configuration.md. Of two such routes with the same policy and key it counts once, unless Options.Settle is set. If it
// meets several, the limits of one are asked after those of the other. What the first has taken is spent if the next refuses. A request is answered with 414 if its path is longer than 4 kB, or has more
// than 100 parts, and can be read in several ways.
func (f *File) Middleware(g *tiered.Group, o *httplimit.Options) (func(http.Handler) http.Handler, error) {
	if f == nil {
		return nil, errors.New("policyfile: the File is nil: must be made by Load or Parse")
	}
	var all []error
	l := &limits{table: newTable(matches(f.HTTP), func(i int, err error) {
		all = append(all, fmt.Errorf("policyfile: http[%d].match %w", i, err))
	})}
	if o != nil {
		l.settle = o.Settle
	}
	for i, route := range f.HTTP {
		built, err := build(route, g, o)
		if err != nil {
			all = append(all, fmt.Errorf("policyfile: http[%d]: %w", i, err))
		}
		l.routes = append(l.routes, built)
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	return l.middleware, nil
}
