package policyfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Route says which limits hold for HTTP requests. Of several routes the most specific one counts, as in
// [http.ServeMux].
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
				return text, register(http.NewServeMux(), text, http.NotFoundHandler())
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

// patterns reports routes that the mux does not take together.
func (r *reader) patterns(n *yaml.Node, routes []Route) {
	mux := http.NewServeMux()
	for i, route := range routes {
		if err := register(mux, route.Match, http.NotFoundHandler()); err != nil {
			at := *n
			at.Line, at.Column = route.line, 1
			r.Bad(&at, "http[%d].match is %s: %v", i, strictyaml.Quote(route.Match), err)
		}
	}
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

// register registers a pattern. The mux panics if it cannot take it.
func register(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			text, _, _ := strings.Cut(fmt.Sprint(v), "\n")
			err = errors.New(strings.TrimPrefix(text, "http: "))
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// Middleware returns net/http middleware that limits requests by the file's routes. The Group must have the file's
// policies. A request that no route matches is not limited. Around a nil Handler the middleware answers 404.
func (f *File) Middleware(g *tiered.Group, o *httplimit.Options) (func(http.Handler) http.Handler, error) {
	type limited struct {
		match string
		limit func(http.Handler) http.Handler
	}
	if f == nil {
		return nil, errors.New("policyfile: the File is nil: must be made by Load or Parse")
	}
	var all []limited
	for i, route := range f.HTTP {
		var rules []httplimit.Rule
		for _, l := range route.Limits {
			limiter, ok := g.Limiter(l.Policy)
			if !ok {
				return nil, fmt.Errorf("policyfile: http[%d]: the Group has no policy %s", i, strictyaml.Quote(l.Policy))
			}
			rule := httplimit.Rule{Limiter: limiter, Key: httpKey(l.Key), Missing: l.Missing}
			if cost := l.Cost; cost != 1 {
				rule.Cost = func(*http.Request) int64 { return cost }
			}
			rules = append(rules, rule)
		}
		limit, err := httplimit.New(rules, o)
		if err != nil {
			return nil, fmt.Errorf("policyfile: http[%d]: %w", i, err)
		}
		all = append(all, limited{route.Match, limit})
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			next = http.NotFoundHandler()
		}
		mux := http.NewServeMux()
		for _, l := range all {
			mux.Handle(l.match, ours{l.limit(next)})
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h, _ := mux.Handler(r)
			if _, ok := h.(ours); !ok { // no route, or the mux would redirect
				next.ServeHTTP(w, r)
				return
			}
			mux.ServeHTTP(w, r) // sets the values of the pattern's wildcards
		})
	}, nil
}

// ours marks the handlers that limit.
type ours struct{ http.Handler }
