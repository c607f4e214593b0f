package policyfile_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/spelling"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// spelled are routes, and for each a request that meets it. Of two routes that a path matches the
// earlier one counts.
var spelled = []struct{ match, method, host, path string }{
	{"api.example.com/admin/", "GET", "api.example.com", "/admin/users"},
	{"api.example.com/", "GET", "api.example.com", "/users/7"},
	{"POST /login", "POST", "x", "/login"},
	{"GET /users/{id}", "GET", "x", "/users/ann-7"},
	{"/users/{id}/files/{path...}", "PUT", "x", "/users/ann/files/a/b.txt"},
	{"/downloads/", "GET", "x", "/downloads/big.iso"},
	{"/Reports/", "GET", "x", "/Reports/2026/q1"},
	{"/posts/{$}", "GET", "x", "/posts/"},
	{"/posts/new", "GET", "x", "/posts/new"},
	{"GET /odd/a b/100%25/{x}", "GET", "x", "/odd/a%20b/100%25/é"},
	{"/tenants/{tenant}/orders", "GET", "x", "/tenants/acme/orders"},
	{"/{$}", "GET", "x", "/"},
	{"/", "GET", "x", "/else/where"},
}

// server is how something behind the middleware reads a path: into the parts that it matches with
// its routes.
type server struct {
	name  string
	lower bool // it does not tell upper and lower case apart, neither in paths nor in methods
	slash bool // it does not tell paths with and without a slash at the end apart
	parts func(u *url.URL) []string
}

func parts(p string) []string { return strings.Split(strings.TrimPrefix(p, "/"), "/") }

func cleaned(p string) []string {
	c := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return parts(c)
}

func withoutParameters(p string) string {
	all := strings.Split(p, "/")
	for i, s := range all {
		all[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(all, "/")
}

// servers are the ways of net/http handlers, of gin, echo, chi, fiber and fasthttp, of nginx, and
// of services behind a proxy in other languages.
var servers = []server{
	{name: "decoded, as gin", parts: func(u *url.URL) []string { return parts(u.Path) }},
	{name: "clean and decoded, as a file server and nginx", parts: func(u *url.URL) []string { return cleaned(u.Path) }},
	{name: "segment by segment, as chi and echo", parts: func(u *url.URL) []string {
		all := parts(u.EscapedPath())
		for i, s := range all {
			all[i], _ = url.PathUnescape(s)
		}
		return all
	}},
	{name: "segment by segment without parameters, as Spring", parts: func(u *url.URL) []string {
		all := parts(withoutParameters(u.EscapedPath()))
		for i, s := range all {
			all[i], _ = url.PathUnescape(s)
		}
		return all
	}},
	{name: "clean before it is decoded, as chi's CleanPath", parts: func(u *url.URL) []string {
		all := cleaned(u.EscapedPath())
		for i, s := range all {
			all[i], _ = url.PathUnescape(s)
		}
		return all
	}},
	{name: "//host/path, as fasthttp", parts: func(u *url.URL) []string {
		raw := u.EscapedPath()
		if strings.HasPrefix(raw, "//") {
			_, rest, _ := strings.Cut(raw[2:], "/")
			raw = "/" + rest
		}
		p, _ := url.PathUnescape(raw)
		return cleaned(p)
	}},
	{name: "any case, as fiber and Express", lower: true, slash: true, parts: func(u *url.URL) []string { return parts(u.Path) }},
	{name: "any case and clean, as IIS", lower: true, slash: true, parts: func(u *url.URL) []string {
		return cleaned(strings.ReplaceAll(u.Path, `\`, "/"))
	}},
	{name: "without parameters, as Tomcat", parts: func(u *url.URL) []string {
		p, _ := url.PathUnescape(withoutParameters(u.EscapedPath()))
		return cleaned(p)
	}},
	{name: "without parameters, decoded first", slash: true, parts: func(u *url.URL) []string {
		return cleaned(withoutParameters(u.Path))
	}},
}

// serves returns the route as which the server would serve a request, or "".
func (s server) serves(r *http.Request, matches []string) string {
	host, _, _ := strings.Cut(strings.ToLower(r.Host), ":")
	host = strings.TrimRight(host, ".")
	got, method := s.parts(r.URL), r.Method
	if s.lower {
		method = strings.ToUpper(method)
	}
	for _, match := range matches {
		want, rest, ok := strings.Cut(match, " ")
		if !ok {
			want, rest = "", match
		}
		if want != "" && want != method && (want != http.MethodGet || method != http.MethodHead) {
			continue
		}
		name, p, _ := strings.Cut(rest, "/")
		if (name == "" || name == host) && s.matches(parts(p), got) {
			return match
		}
	}
	return ""
}

func (s server) matches(want, got []string) bool {
	last := want[len(want)-1]
	switch {
	case last == "" || strings.HasSuffix(last, "...}"):
		return len(got) >= len(want) && s.all(want[:len(want)-1], got) || s.slash && s.all(want[:len(want)-1], got) && len(got) == len(want)-1
	case last == "{$}":
		want = append(slices.Clone(want[:len(want)-1]), "")
	}
	if s.slash && len(got) > 1 && got[len(got)-1] == "" && last != "{$}" {
		got = got[:len(got)-1]
	}
	return len(want) == len(got) && s.all(want, got)
}

func (s server) all(want, got []string) bool {
	for i, w := range want {
		literal, _ := url.PathUnescape(w)
		switch {
		case i >= len(got):
			return false
		case strings.HasPrefix(w, "{"):
			if i == len(got)-1 && got[i] == "" {
				return false
			}
		case literal == got[i], s.lower && strings.EqualFold(literal, got[i]):
		default:
			return false
		}
	}
	return true
}

// However a client spells a URL, its host and its method: if a server serves the request as a
// route, the route's limit counts it. One of the servers is a real ServeMux with the same routes.
// As it is usually spelled, a request counts for its own route only.
func TestHoweverAURLIsSpelledItsRouteCounts(t *testing.T) {
	var matches []string
	for _, s := range spelled {
		matches = append(matches, s.match)
	}
	each := 1000
	if testing.Short() {
		each = 150
	}
	for name, matches := range map[string][]string{"all routes": matches, "no route for the rest": matches[:len(matches)-1]} {
		t.Run(name, func(t *testing.T) {
			ran := ""
			mux := http.NewServeMux()
			for _, match := range matches {
				mux.HandleFunc(match, func(http.ResponseWriter, *http.Request) { ran = match })
			}
			counted := spelling.Counting(t, matches)
			for _, s := range spelled[:len(matches)] {
				if got := counted(spelling.Parsed(s.method, s.path, s.host)); !slices.Equal(got, []string{s.match}) {
					t.Errorf("%s %s%s counts for %q", s.method, s.host, s.path, got)
				}
			}
			files := http.FileServerFS(fstest.MapFS{ // each says for which route it is
				"downloads/big.iso": {Data: []byte("/downloads/")}, "Reports/2026/q1": {Data: []byte("/Reports/")},
				"posts/new": {Data: []byte("/posts/new")}, "users/ann-7": {Data: []byte("GET /users/{id}")},
			})
			random := rand.New(rand.NewPCG(40, 1))
			served := map[string]int{}
			for i := range each * len(spelled) {
				s := spelled[i%len(spelled)]
				target, host, method := s.path, s.host, s.method
				for range random.IntN(5) {
					target = spelling.Target(random, target)
				}
				switch random.IntN(8) {
				case 0:
					host = strings.ToUpper(host)
				case 1:
					host += []string{":80", ".", ".:8080", "..", ":"}[random.IntN(5)]
				case 2:
					method = strings.ToLower(method)
				case 3:
					method = []string{"HEAD", "Get", "OPTIONS", "X", "CONNECT"}[random.IntN(5)]
				case 4:
					target = "http://" + host + target
				}
				r := spelling.Parsed(method, target, host)
				if r == nil {
					continue
				}
				have := counted(r)
				check := func(server, route string) {
					if route == "" {
						return
					}
					if served[server]++; !slices.Contains(have, route) {
						t.Errorf("%s serves %s %s of %s as %s, and it counts for %q", server, method, target, host, route, have)
					}
				}
				for _, s := range servers {
					check(s.name, s.serves(r, matches))
				}
				ran = ""
				mux.ServeHTTP(httptest.NewRecorder(), r)
				check("ServeMux", ran)
				w := httptest.NewRecorder()
				files.ServeHTTP(w, r.Clone(t.Context())) // it cleans the path itself
				if route := w.Body.String(); method == http.MethodGet && slices.Contains(matches, route) {
					check("FileServer", route)
				}
			}
			t.Log(served)
			for server, n := range served {
				if n < each && (server != "FileServer" || n < each/2) {
					t.Errorf("%s serves %d requests only", server, n)
				}
			}
		})
	}
}

// Whatever routes a file has, and whatever a client asks for: the route that a ServeMux serves
// counts. A request without anything that could be read in another way counts for no other.
func TestAnyRoutesCountAsAMuxServesThem(t *testing.T) {
	random := rand.New(rand.NewPCG(40, 3))
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	tables := 60
	if testing.Short() {
		tables = 15
	}
	served, alone := 0, 0
	for range tables {
		ran := ""
		mux := http.NewServeMux()
		var matches []string
		for range 1 + random.IntN(8) {
			match := one("", "", "", "GET ", "HEAD ", "POST ") + one("", "", "", "a.b", "c.d")
			for i := range 1 + random.IntN(3) {
				match += "/" + one("a", "b", "A", "c.d", "é", fmt.Sprintf("{w%d}", i))
			}
			match += one("", "", "/", "/{$}", "/{rest...}")
			func() {
				defer func() { _ = recover() }() // conflicts with another
				mux.HandleFunc(match, func(http.ResponseWriter, *http.Request) { ran = match })
				matches = append(matches, match)
			}()
		}
		if slices.ContainsFunc(matches, func(m string) bool { return strings.Contains(m, "A") }) && collide(matches) {
			continue
		}
		counted := spelling.Counting(t, matches)
		for range 300 {
			match := matches[random.IntN(len(matches))] // a request that may meet it, or another
			match = match[strings.Index(match, "/"):]
			target := ""
			for _, part := range parts(match) {
				if random.IntN(9) == 0 || strings.HasPrefix(part, "{w") {
					part = one("a", "b", "c.d", "A", "x", "%2e", "a%2fb", "a;b", "é")
				}
				if strings.HasPrefix(part, "{") {
					part = one("", "", "a", "a/b", "B/..%2f/a", "a//b")
				}
				target += "/" + part
			}
			if random.IntN(3) == 0 {
				target = spelling.Target(random, target)
			}
			r := spelling.Parsed(one("GET", "HEAD", "POST", "CONNECT", "get"), target, one("x", "a.b", "A.b:80", "c.d."))
			if r == nil {
				continue
			}
			have := counted(r)
			ran = ""
			mux.ServeHTTP(httptest.NewRecorder(), r)
			if ran == "" {
				continue
			}
			if served++; !slices.Contains(have, ran) {
				t.Errorf("of %q a mux serves %s %s of %s as %s, and it counts for %q", matches, r.Method, target, r.Host, ran, have)
			}
			if len(have) == 1 {
				alone++
			}
		}
	}
	if served < tables*30 || alone < served/3 {
		t.Errorf("%d requests were served, %d of them counted for one route", served, alone)
	}
}

// collide reports whether a file cannot have these routes, because they are in each other's way in
// lower case.
func collide(matches []string) bool {
	text := "version: 1\npolicies: [{name: a, limit: 1/s}]\nhttp:\n"
	for _, match := range matches {
		text += fmt.Sprintf("  - {match: %q, limits: [{policy: a, key: ip}]}\n", match)
	}
	_, err := policyfile.Parse("p.yaml", []byte(text))
	return err != nil && strings.Contains(err.Error(), "upper and lower case")
}

// Whatever the pattern and the request: none panics, and what a ServeMux serves as the pattern
// counts for it. A pattern that is refused is refused with its text.
func FuzzMatch(f *testing.F) {
	for _, s := range spelled {
		f.Add(s.match, s.method, s.path, s.host)
	}
	f.Add("/a/{b}/{c...}", "CONNECT", "//a//%2e%2e/;x", "[::1]:80")
	f.Fuzz(func(t *testing.T, match, method, target, host string) {
		text := fmt.Sprintf("version: 1\npolicies: [{name: a, limit: blocked}]\nhttp: [{match: %q, limits: [{policy: a, key: header X-Id}]}]\n", match)
		file, err := policyfile.Parse("p.yaml", []byte(text))
		if err != nil || len(file.HTTP) != 1 {
			return
		}
		r := spelling.Parsed(method, target, host)
		if r == nil || r.Header.Get("X-Id") != "ann" {
			return
		}
		ran := false
		mux := http.NewServeMux()
		mux.HandleFunc(file.HTTP[0].Match, func(http.ResponseWriter, *http.Request) { ran = true })
		w := httptest.NewRecorder()
		limit, _ := middleware(t, text, nil)
		limit(mux).ServeHTTP(w, r)
		if ran {
			t.Errorf("%q serves %s %q of %q, and it is not limited", match, method, target, host)
		}
	})
}
