package policyfile_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/spelling"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A route says in words which requests it limits.
func TestMeets(t *testing.T) {
	for match, want := range map[string]string{
		"/api/":                  "any method, any host, /api and all paths below it",
		"/":                      "any method, any host, all paths",
		"POST /login":            "POST, any host, /login",
		"GET Example.com./a/{b}": "GET and HEAD, host example.com, /a/{b}",
		"/{$}":                   "any method, any host, / only",
		"/a b/{rest...}":         "none",
		"[2001:DB8::1]/x/{y...}": "any method, host 2001:db8::1, /x and all paths below it",
		"api./":                  "any method, host api, all paths",
		"localhost/a%20b":        "any method, host localhost, /a%20b",
	} {
		if got := (policyfile.Route{Match: match}).Meets(); got != want {
			t.Errorf("%s: %q, want %q", match, got, want)
		}
	}
}

// sender sends requests to a handler, each with the address of a client, and returns the statuses.
func sender(t *testing.T, h http.Handler) func(method, target, host string) int {
	return func(method, target, host string) int {
		t.Helper()
		r := spelling.Parsed(method, target, host)
		if r == nil {
			t.Fatalf("%s %s is no request", method, target)
		}
		r.RemoteAddr = "192.0.2.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
}

// A request that can be read in several ways counts for what each reading means: once for one
// policy and key.
func TestEachReadingCountsOnce(t *testing.T) {
	const head = "version: 1\npolicies: [{name: a, limit: 4/h}, {name: b, limit: 2/h}]\nhttp:\n"
	for name, c := range map[string]struct {
		routes string
		get    []string
		want   []int
	}{
		"one value however it is spelled": {
			"  - {match: '/t/{tenant}/', limits: [{policy: b, key: path tenant}]}\n",
			[]string{
				"/t/acme/x", "/t/%61cme/x", "//t/acme/x", "/t/acme;v=1/x", "/t/acme/", "/t/acme", "/T/acme/x", "/t/acme%2fx",
				"/t/z/../acme/x", "/t/ACME/x", "/t/other/x",
			},
			[]int{ok, ok, 429, 429, 429, 429, 429, 429, 429, ok, ok},
		},
		"two routes with one policy and key": { // %2F belongs to the ID, or it does not
			"  - {match: '/p/{id}/issues', limits: [{policy: a, key: ip}, {policy: b, key: path id}]}\n  - {match: /, limits: [{policy: a, key: ip}]}\n",
			[]string{"/p/g%2Fn/issues", "/p/g%2Fm/issues", "/p/g%2Fo/issues", "/p/g/issues", "/p/g/issues"},
			[]int{ok, ok, ok, ok, 429},
		},
		"two policies": {
			"  - {match: '/p/{id}/issues', limits: [{policy: a, key: ip}]}\n  - {match: /, limits: [{policy: b, key: ip}]}\n",
			[]string{"/p/g%2Fn/issues", "/x", "/p/g%2Fn/issues", "/p/g/issues", "/p/g/issues", "/x"},
			[]int{ok, ok, 429, ok, ok, 429}, // what a route took before another refuses is spent
		},
		"the larger cost": {
			"  - {match: '/p/{id}', limits: [{policy: a, key: ip}]}\n  - {match: /, limits: [{policy: a, key: ip, cost: 2}]}\n",
			[]string{"/p/g%2Fn", "/p/g", "/p/g"},
			[]int{ok, ok, 429}, // 1 and 2, as the routes say
		},
		"a route as a key": {
			"  - {match: '/p/{id}', limits: [{policy: b, key: [ip, route]}]}\n  - {match: /, limits: [{policy: b, key: [ip, route]}]}\n",
			[]string{"/p/x", "/P/x", "/x", "/p/x", "/x"},
			[]int{ok, ok, ok, 429, 429},
		},
		"routes that differ in case": { // as fiber and chi with StripSlashes would serve it
			"  - {match: '/{p}/y', limits: [{policy: b, key: ip}]}\n  - {match: /A/y, limits: [{policy: a, key: ip}]}\n",
			[]string{"/a/y/", "/A/y", "/a/y/", "/a/y/"},
			[]int{ok, ok, ok, 429},
		},
		"parameters after a value": {
			"  - {match: '/u/{id}', limits: [{policy: b, key: path id}]}\n",
			[]string{"/u/a%2Fb;v=1", "/u/a%2Fb;v=2", "/u/a%2Fb;v=3", "/u/a%2Fb"},
			[]int{ok, ok, 429, 429},
		},
		"nothing instead of a value": {
			"  - {match: '/t/{tenant}/x', limits: [{policy: b, key: path tenant}]}\n",
			[]string{"/t//x", "/t/", "/t"},
			[]int{400, ok, ok},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				send := sender(t, behind(t, head+c.routes))
				var got []int
				for _, target := range c.get {
					got = append(got, send(http.MethodGet, target, "x"))
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("%q: %v, want %v", c.get, got, c.want)
				}
			})
		})
	}
}

// Any byte in a part of a path is a key like another: the second request for it is refused.
func TestEachByteOfAPathIsAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no call to the store is late on a busy machine
		const text = "version: 1\npolicies: [{name: a, limit: 1/h}]\nhttp: [{match: '/t/{tenant}/x', limits: [{policy: a, key: path tenant}]}]\n"
		mux, ran := http.NewServeMux(), 0
		mux.HandleFunc("/t/{tenant}/x", func(http.ResponseWriter, *http.Request) { ran++ })
		for b := range 256 {
			for _, form := range []string{"/t/%%%02x/x", "/t/a%%%02xb/x", "/t/a%%%02X/x/", "/t/a%%25%02x/x"} {
				limit, _ := middleware(t, text, nil)
				send := sender(t, limit(mux))
				target := fmt.Sprintf(form, b)
				ran = 0
				first, second := send(http.MethodGet, target, "x"), send(http.MethodGet, target, "x")
				if ran > 1 || first != http.StatusBadRequest && second != http.StatusTooManyRequests {
					t.Errorf("%s: %d, %d, and the handler ran %d times", target, first, second, ran)
				}
			}
		}
	})
}

// The handler gets the request as it was sent, however often it was counted.
func TestHandlerGetsTheRequestAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no call to the store is late on a busy machine
		const text = "version: 1\npolicies: [{name: a, limit: 9/h}]\nhttp: [{match: '/t/{tenant}/', limits: [{policy: a, key: path tenant}]}]\n"
		var r, got *http.Request
		limit, _ := middleware(t, text, nil)
		h := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
		for _, target := range []string{"/t/x/", "//t/x%2fy/../z;v=1/?q=1", "/none"} {
			r = spelling.Parsed("get", target, "EXAMPLE.com:80")
			h.ServeHTTP(httptest.NewRecorder(), r)
			if got != r || got.RequestURI != target || got.URL.RequestURI() != target || got.Host != "EXAMPLE.com:80" || got.Method != "get" {
				t.Errorf("%s: %+v", target, got)
			}
		}
		mux := http.NewServeMux() // around it
		mux.Handle("/t/{other}/{tenant}", h)
		for target, want := range map[string]string{"/t/x%2fy/z": "x/y z", "/t/x/y": "x y"} {
			mux.ServeHTTP(httptest.NewRecorder(), spelling.Parsed(http.MethodGet, target, "x"))
			if is := got.PathValue("other") + " " + got.PathValue("tenant"); is != want || got.Pattern != "/t/{other}/{tenant}" {
				t.Errorf("%s: the values of the mux around it are %q, its pattern is %q", target, is, got.Pattern)
			}
		}
	})
}

// A long path is read in one way only, and refused if there are several.
func TestLongPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no call to the store is late on a busy machine
		const text = "version: 1\npolicies: [{name: a, limit: 1/h}]\nhttp: [{match: /a/, limits: [{policy: a, key: ip}]}]\n"
		send := sender(t, behind(t, text))
		long := strings.Repeat("/a", 1<<19)
		for i, c := range []struct {
			target string
			want   int
		}{
			{long, ok},
			{long, 429},
			{"/b" + long, ok},
			{"/b" + long + ";", 414},
			{"/" + strings.Repeat("%41", 1400), 414},
			{"/" + strings.Repeat("%41", 1300), ok},
			{"/" + strings.Repeat("%42/", 99), ok},
			{"/" + strings.Repeat("%42/", 101), 414},
			{"//a" + strings.Repeat("/", 90), 429},
			{"//a" + strings.Repeat("%5c", 100), 414},
		} {
			if got := send(http.MethodGet, c.target, "x"); got != c.want {
				t.Errorf("%d: %.20s of %d bytes: %d, want %d", i, c.target, len(c.target), got, c.want)
			}
		}
	})
}

// A middleware around may have changed the URL in part. Each part of it that a server may look at
// counts.
func TestURLsThatWereChanged(t *testing.T) {
	for name, u := range map[string]*url.URL{
		"Path only":       {Path: "/x", RawPath: "/a%2Fx"},
		"RawPath only":    {Path: "/a/x", RawPath: "/b/x"},
		"no slash":        {Path: "a/x"},
		"not an encoding": {Path: "/a/%zz"},
	} {
		const text = "version: 1\npolicies: [{name: a, limit: blocked}]\nhttp: [{match: /a/, limits: [{policy: a, key: ip}]}]\n"
		w := httptest.NewRecorder()
		r := &http.Request{Method: http.MethodGet, URL: u, RemoteAddr: "192.0.2.1:1", Header: http.Header{}}
		if behind(t, text).ServeHTTP(w, r); w.Code != http.StatusTooManyRequests {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

// The functions of the options and the handler see one request: a form that Skip has read, and the
// settlement.
func TestOptionsAndSeveralReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no call to the store is late on a busy machine
		const text = "version: 1\npolicies: [{name: a, limit: 2/h}, {name: b, limit: 9/h}]\nhttp:\n" +
			"  - {match: '/t/{tenant}/', limits: [{policy: a, key: path tenant}]}\n  - {match: /, limits: [{policy: b, key: ip}]}\n"
		type contextKey struct{}
		skipped := 0
		o := &httplimit.Options{Settle: true, Skip: func(r *http.Request) bool {
			if r.Context().Value(contextKey{}) != 1 {
				t.Error("Skip does not see the context")
			}
			skipped++
			return r.FormValue("admin") == "yes"
		}}
		limit, _ := middleware(t, text, o)
		h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("a") != "1" || r.Context().Value(contextKey{}) != 1 {
				t.Errorf("%s: the handler sees the form %v", r.URL, r.Form)
			}
			httplimit.Settle(r.Context(), map[string]int64{"a": 0})
		}))
		for _, c := range []struct {
			target, form string
			asked        int // routes
		}{
			{"/t/acme/", "a=1", 1}, {"/t/acme%2fx/", "a=1", 2}, {"/t/acme/", "a=1", 1}, {"/t/x%2fy/", "a=1&admin=yes", 2},
		} {
			skipped = 0
			r := httptest.NewRequest(http.MethodPost, c.target, strings.NewReader(c.form))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), contextKey{}, 1)))
			if w.Code != http.StatusOK || skipped != c.asked {
				t.Errorf("%s: %d, %d routes are asked", c.target, w.Code, skipped)
			}
		}
	})
}

// However a URL is spelled, what its request has cost is settled: the policy pays it, and not the
// estimate.
func TestSettlementOfEachReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no call to the store is late on a busy machine
		const text = "version: 1\npolicies: [{name: a, limit: 100/h}, {name: b, limit: 100/h}, {name: all, limit: 100/h}]\nhttp:\n" +
			"  - {match: '/chat/', limits: [{policy: a, key: ip}, {policy: b, key: ip}]}\n  - {match: /, limits: [{policy: all, key: ip}]}\n" +
			"  - {match: '/{x}', limits: [{policy: b, key: path x}, {policy: all, key: ip}]}\n"
		for _, target := range []string{"/chat/y/z", "//chat/y", "/chat%2fz", "/x/../chat/", "/CHAT/y", "/chat;v=1/y", "/chat/..;/y", "/chat/..;/z/w"} {
			var err error
			limit, _ := middleware(t, text, &httplimit.Options{Settle: true})
			h := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				err = httplimit.Settle(r.Context(), map[string]int64{"a": 100})
			}))
			send := sender(t, h)
			if code := send(http.MethodPost, target, "x"); code != ok || err != nil {
				t.Errorf("%s: %d, %v", target, code, err)
			}
			if code := send(http.MethodPost, "/chat/", "x"); code != http.StatusTooManyRequests {
				t.Errorf("%s: after a request that cost all of it the next is answered with %d", target, code)
			}
		}
	})
}

// A host counts however it is spelled, and so does one that a server would read in the path.
func TestHostsCountHoweverTheyAreSpelled(t *testing.T) {
	for match, all := range map[string][]string{
		"Example.com./": {
			"example.com /", "EXAMPLE.com /", "example.com. /", "example.com:80 /", "Example.Com.:443 /x", "example.com.. /",
			"u@example.com /", "x http://example.com/", "x http://EXAMPLE.com:80/x", "x //example.com/", "x //Example.com.:80", "x //example%2ecom/x",
		},
		"orders./":      {"orders /", "ORDERS:80 /", "x http://orders"},
		"[::1]/":        {"[::1] /", "[::1]:80 /", "[0:0::1]:80 /"},
		"192.0.2.1/":    {"192.0.2.1 /", "192.0.2.1:80 /", "[::ffff:192.0.2.1] /"},
		"example.com/a": {"example.com /a", "example.com //a", "EXAMPLE.com /A/", "x //example.com/a", "x ///example.com/a"},
	} {
		text := fmt.Sprintf("version: 1\npolicies: [{name: a, limit: blocked}]\nhttp: [{match: %q, limits: [{policy: a, key: ip}]}]\n", match)
		send := sender(t, behind(t, text))
		for _, request := range all {
			host, target, _ := strings.Cut(request, " ")
			want := http.StatusTooManyRequests
			if strings.HasPrefix(target, "///") {
				want = ok // no host
			}
			if code := send(http.MethodGet, target, host); code != want {
				t.Errorf("%s does not count for %s: %d", request, match, code)
			}
		}
		for _, request := range []string{"example.org /", "example.com.x /", "x.example.com /", "x /example.com/", " /"} {
			host, target, _ := strings.Cut(request, " ")
			if code := send(http.MethodGet, target, host); code != ok {
				t.Errorf("%s counts for %s: %d", request, match, code)
			}
		}
	}
}
