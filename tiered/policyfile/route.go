package policyfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Route says which limits hold for HTTP requests. Of several routes the most specific one counts, as in
// [http.ServeMux].
type Route struct {
	Match  string // a pattern of [http.ServeMux], such as /api/ or POST /login
	Limits []RouteLimit

	line int
}

// RouteLimit is one policy by which a request is counted.
type RouteLimit struct {
	Policy  string
	Key     httplimit.Key
	Missing httplimit.Missing
	Cost    int64
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
			r.list(path, n, func(path string, n *yaml.Node) {
				route.Limits = append(route.Limits, r.routeLimit(path, n, policies))
			})
		}},
	})
	if n.Kind == yaml.MappingNode && (route.Match == "" || len(route.Limits) == 0) {
		r.bad(n, "%s: must have match and limits", path)
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
			r.bad(&at, "http[%d].match is %s: %v", i, quote(route.Match), err)
		}
	}
}

// try builds the middleware for a Group that is not used, so that a file whose routes cannot be built is a mistake of
// the file, and not of the reload.
func (r *reader) try(n *yaml.Node, f *File) {
	if len(r.errs) > 0 {
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
			r.bad(n, "%s", plain(e))
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

// routeLimit reads one limit of a route.
func (r *reader) routeLimit(path string, n *yaml.Node, policies []tiered.Policy) RouteLimit {
	l := RouteLimit{Missing: httplimit.Refuse, Cost: 1}
	hasKey := false
	r.mapping(path, n, []field{
		{"policy", func(path string, n *yaml.Node) {
			l.Policy, _ = r.text(path, n)
			if !slices.ContainsFunc(policies, func(p tiered.Policy) bool { return p.Name == l.Policy }) {
				r.bad(n, "%s is %s: must be the name of a policy in this file", path, quote(l.Policy))
			}
		}},
		{"key", func(path string, n *yaml.Node) {
			hasKey = true
			if n.Kind != yaml.SequenceNode {
				l.Key, _ = parsed(r, path, n, parseKey)
				return
			}
			var all []httplimit.Key
			r.list(path, n, func(path string, n *yaml.Node) {
				if k, ok := parsed(r, path, n, parseKey); ok {
					all = append(all, k)
				}
			})
			l.Key = httplimit.JoinKeys(all...)
		}},
		{"missing", func(path string, n *yaml.Node) {
			l.Missing, _ = parsed(r, path, n, word(map[string]httplimit.Missing{
				"refuse": httplimit.Refuse, "exempt": httplimit.Exempt, "together": httplimit.Together,
			}))
		}},
		{"cost", func(path string, n *yaml.Node) {
			if l.Cost, _ = parsed(r, path, n, whole); l.Cost < 0 {
				r.bad(n, "%s is %d: must be at least 0", path, l.Cost)
			}
		}},
	})
	if n.Kind == yaml.MappingNode && (l.Policy == "" || !hasKey) {
		r.bad(n, "%s: must have policy and key", path)
	}
	return l
}

// parseKey reads what a request counts for: a word, and what it needs.
func parseKey(text string) (httplimit.Key, error) {
	const must = "must be ip, route, method, header NAME, credential NAME, cookie NAME, path NAME, forwarded-for PROXIES, " +
		"forwarded PROXIES, header-ip NAME PROXIES or hops N"
	words := strings.Fields(text)
	wrong := fmt.Errorf("is %s: %s", quote(text), must)
	if len(words) == 0 {
		return httplimit.Key{}, wrong
	}
	args := words[1:]
	named := func(make func(string) httplimit.Key) (httplimit.Key, error) {
		if len(args) != 1 {
			return httplimit.Key{}, wrong
		}
		return make(args[0]), nil
	}
	switch words[0] {
	case "header":
		return named(httplimit.Header)
	case "credential":
		return named(httplimit.Credential)
	case "cookie": // a session is a secret
		return named(func(name string) httplimit.Key { return httplimit.Cookie(name).Hashed() })
	case "path":
		return named(httplimit.PathValue)
	case "forwarded-for", "forwarded", "header-ip":
		return parseProxies(words[0], args, wrong)
	case "hops":
		return parseHops(args)
	}
	if len(args) > 0 {
		return httplimit.Key{}, wrong
	}
	switch words[0] {
	case "ip":
		return httplimit.RemoteIP(), nil
	case "route":
		return httplimit.Route(), nil
	case "method":
		return httplimit.Method(), nil
	}
	return httplimit.Key{}, wrong
}

// parseProxies reads a key that trusts proxies.
func parseProxies(kind string, args []string, wrong error) (httplimit.Key, error) {
	name := ""
	if kind == "header-ip" {
		if len(args) == 0 {
			return httplimit.Key{}, wrong
		}
		name, args = args[0], args[1:]
	}
	if len(args) == 0 {
		return httplimit.Key{}, wrong
	}
	var proxies []netip.Prefix
	for _, text := range args {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return httplimit.Key{}, fmt.Errorf("the proxy %s: must be a prefix such as 10.0.0.0/8", quote(text))
		}
		proxies = append(proxies, prefix)
	}
	switch kind {
	case "forwarded-for":
		return httplimit.ForwardedFor(proxies...), nil
	case "forwarded":
		return httplimit.Forwarded(proxies...), nil
	}
	return httplimit.HeaderIP(name, proxies...), nil
}

func parseHops(args []string) (httplimit.Key, error) {
	if len(args) == 1 {
		if n, err := strconv.Atoi(args[0]); err == nil && n >= 1 && n <= 32 {
			return httplimit.TrustedHops(n), nil
		}
	}
	return httplimit.Key{}, fmt.Errorf("hops %s: must be a number from 1 to 32", quote(strings.Join(args, " ")))
}

// Middleware returns net/http middleware that limits requests by the file's routes. The Group must have the file's
// policies. A request that no route matches is not limited.
func (f *File) Middleware(g *tiered.Group, o *httplimit.Options) (func(http.Handler) http.Handler, error) {
	type limited struct {
		match string
		limit func(http.Handler) http.Handler
	}
	var all []limited
	for i, route := range f.HTTP {
		var rules []httplimit.Rule
		for _, l := range route.Limits {
			limiter, ok := g.Limiter(l.Policy)
			if !ok {
				return nil, fmt.Errorf("policyfile: http[%d]: the Group has no policy %s", i, quote(l.Policy))
			}
			rule := httplimit.Rule{Limiter: limiter, Key: l.Key, Missing: l.Missing}
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
