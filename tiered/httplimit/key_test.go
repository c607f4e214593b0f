package httplimit_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func TestKeys(t *testing.T) {
	found := finder(t)
	same := func(pairs ...string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "http://example.org/", nil)
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Add(pairs[i], pairs[i+1])
		}
		return r
	}
	path := same()
	path.SetPathValue("tenant", "acme/\x00")
	routed := same()
	routed.Pattern = "GET /items/{id}"
	asked := func(query string) *http.Request { return httptest.NewRequest(http.MethodGet, "/?"+query, nil) }
	odd := same()
	odd.SetPathValue("tenant", "\x00")
	for _, c := range []struct {
		name string
		key  httplimit.Key
		r    *http.Request
		want string // "" for none
	}{
		{"header", httplimit.Header("x-user"), same("X-User", "ann", "X-User", "bob"), "ann"},
		{"no header", httplimit.Header("X-User"), same(), ""},
		{"empty header", httplimit.Header("X-User"), same("X-User", ""), ""},
		{"after an empty line", httplimit.Header("X-User"), same("X-User", "", "X-User", "ann"), "ann"},
		{"host", httplimit.Header("host"), same(), "example.org"},
		{"cookie", httplimit.Cookie("session"), same("Cookie", "a=1; session=s3cr3t"), "s3cr3t"},
		{"cookie, encoded", httplimit.Cookie("session"), same("Cookie", `session="%733cr%zz%4"`), "s3cr%zz%4"},
		{"cookie, after an empty one", httplimit.Cookie("session"), same("Cookie", "session=; session=s"), "s"},
		{"no cookie", httplimit.Cookie("session"), same("Cookie", "a=1"), ""},
		{"empty cookie", httplimit.Cookie("session").Hashed(), same("Cookie", "session="), ""},
		{"query", httplimit.Query("key"), asked("a=1&key=s%203cret&key=&b"), "s 3cret"},
		{"query, encoded name", httplimit.Query("key"), asked("k%65y=s&key=s"), "s"},
		{"query with two values", httplimit.Query("key"), asked("key=s&key=t"), "\x00\x00"},
		{"empty query", httplimit.Query("key").Hashed(), asked("key=&key"), ""},
		{"query that is none", httplimit.Query("key"), asked("key=%zz&key=a;b&%zz=c&Key=s"), ""},
		{"path", httplimit.PathValue("tenant"), path, "acme/\x00"},
		{"no path", httplimit.PathValue("tenant"), same(), ""},
		{"like those without a key", httplimit.PathValue("tenant"), odd, "\x00\x00"},
		{"function", httplimit.KeyFunc(func(r *http.Request) (string, error) { return r.Method, nil }), same(), "GET"},
		{"function without a key", httplimit.KeyFunc(func(*http.Request) (string, error) { return "", nil }), same(), ""},
		{"method", httplimit.Method(), same(), "GET"},
		{"route", httplimit.Route(), routed, "GET /items/{id}"},
		{"no route", httplimit.Route(), same(), ""},
		{"joined", httplimit.JoinKeys(httplimit.Header("X-User"), httplimit.Method()), same("X-User", "ann"), "3:ann3:GET"},
		{"joined, one missing", httplimit.JoinKeys(httplimit.Header("X-User"), httplimit.Route()), same("X-User", "ann"), ""},
		{"no credential", httplimit.Credential("Authorization"), same("Authorization", " "), ""},
		// printf abc | openssl dgst -sha256 -binary | basenc --base64url
		{
			"credential", httplimit.Credential("Authorization"), same("Authorization", "Bearer abc"),
			"ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0",
		},
	} {
		got, ok := found(c.key, c.r)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", c.name, got, ok, c.want)
		}
	}
}

// Different parts never give one key, whatever they contain.
func FuzzJoinKeys(f *testing.F) {
	found := finder(f)
	f.Add("a", "b", "ab", "")
	f.Add("1:a", "b", "1", "a1:b")
	of := func(a, b string) (string, bool) {
		text := func(s string) httplimit.Key {
			return httplimit.KeyFunc(func(*http.Request) (string, error) { return s, nil })
		}
		return found(httplimit.JoinKeys(text(a), text(b)), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		first, ok := of(a, b)
		second, also := of(c, d)
		if ok != (a != "" && b != "") {
			t.Errorf("%q and %q have a key: %v", a, b, ok)
		}
		if ok && also && (first == second) != (a == c && b == d) {
			t.Errorf("%q and %q are %q, %q and %q are %q", a, b, first, c, d, second)
		}
	})
}

// One user has one bucket however the credential is written; two users have two.
func TestCredentialIsOne(t *testing.T) {
	found := finder(t)
	of := func(value string) string {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", value)
		key, _ := found(httplimit.Credential("Authorization"), r)
		return key
	}
	groups := [][]string{
		{"Bearer abc", "bearer abc", "BEARER   abc", " Bearer abc ", "Bearer\tabc", "Bearer\u00a0\t abc more", "abc", "Token abc", "x abc y"},
		{"Bearer Abc"},
		{"Basic YTpi", "basic YTpi", "Basic  YTpi", "Basic YT*pi==", "Basic\tYTpi", "Basic YTpi x"},
		{"Basic YTpj", "Basic YTpjY"},
		{"Basic Pz8/", "Basic Pz8_"},
		{"a:b"},
		{"basic:a:b"},
		{"Bearer abc="},
		{`Digest username="ann", realm="x"`},
		{`Digest username="bob", realm="x"`},
		{`Signature keyId="x",signature="Y=="`},
		{`Signature keyId="x",signature="Z=="`},
		{"AWS4-HMAC-SHA256 Credential=a/b, Signature=c"},
		{"AWS4-HMAC-SHA256 Credential=a/b, Signature=d"},
	}
	seen := map[string]string{}
	for _, group := range groups {
		for _, v := range group {
			if of(v) != of(group[0]) || len(of(v)) != 43 {
				t.Errorf("%q is %q, %q is %q", v, of(v), group[0], of(group[0]))
			}
		}
		if other, ok := seen[of(group[0])]; ok {
			t.Errorf("%q and %q are one", group[0], other)
		}
		seen[of(group[0])] = group[0]
	}
}

// A host has one bucket however a client writes it, and so has a method.
func TestHostAndMethodAreOne(t *testing.T) {
	found := finder(t)
	for want, all := range map[string][]string{
		"example.com": {"example.com", "EXAMPLE.com", "example.com:80", "example.com.", "Example.COM.:443", "u@example.com"},
		"2001:db8::1": {"[2001:db8::1]", "[2001:DB8:0::1]:80", "2001:db8::1"},
		"192.0.2.1":   {"192.0.2.1", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"},
		"":            {"", ":80", "."},
		"[":           {"[", "[:80"},
	} {
		for _, host := range all {
			if got, _ := found(httplimit.Header("Host"), &http.Request{Host: host}); got != want {
				t.Errorf("host %q is %q, want %q", host, got, want)
			}
		}
	}
	for want, all := range map[string][]string{
		"GET": {"GET", "get", "Get"}, "OTHER": {"PROPFIND", "x", "y", "GET1"}, "HEAD": {"HEAD"},
	} {
		for _, method := range all {
			if got, _ := found(httplimit.Method(), &http.Request{Method: method}); got != want {
				t.Errorf("method %q is %q, want %q", method, got, want)
			}
		}
	}
}

// A credential is never read more strictly than by what authenticates: whatever a service takes for
// the secret counts for the secret.
func TestSpellingsOfASecretCountAsOne(t *testing.T) {
	found := finder(t)
	const secret = "s3cr3t-_=="
	second := func(parts []string) string {
		if len(parts) < 2 {
			return ""
		}
		return parts[1]
	}
	plain := base64.StdEncoding.EncodeToString([]byte("ann:s?>~3"))
	services := map[string]struct {
		key       httplimit.Key
		secret    string // as the service reads it
		usual     string // as clients write it
		field     string
		authorize func(*http.Request) string
	}{
		"prefix": {httplimit.Credential("Authorization"), secret, "Bearer " + secret, "Authorization", func(r *http.Request) string {
			return strings.TrimSpace(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		}},
		"fields": {httplimit.Credential("Authorization"), secret, "Bearer " + secret, "Authorization", func(r *http.Request) string {
			return second(strings.Fields(r.Header.Get("Authorization")))
		}},
		"split": {httplimit.Credential("Authorization"), secret, "Bearer " + secret, "Authorization", func(r *http.Request) string {
			return second(strings.Split(r.Header.Get("Authorization"), " "))
		}},
		"cut, any case": {httplimit.Credential("Authorization"), secret, "Bearer " + secret, "Authorization", func(r *http.Request) string {
			scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return ""
			}
			return strings.Trim(rest, " \t")
		}},
		"basic": {httplimit.Credential("Authorization"), "ann:s?>~3", "Basic " + plain, "Authorization", func(r *http.Request) string {
			user, password, _ := r.BasicAuth()
			return user + ":" + password
		}},
		"API key": {httplimit.Credential("X-Api-Key"), secret, secret, "X-Api-Key", func(r *http.Request) string {
			return strings.TrimSpace(r.Header.Get("X-Api-Key"))
		}},
		"last line": {httplimit.Credential("X-Api-Key"), secret, secret, "X-Api-Key", func(r *http.Request) string {
			for _, v := range r.Header["X-Api-Key"] {
				if v != "" {
					return strings.TrimSpace(v)
				}
			}
			return ""
		}},
		"cookie": {httplimit.Cookie("session").Hashed(), secret, "session=" + secret, "Cookie", func(r *http.Request) string {
			c, err := r.Cookie("session")
			if err != nil {
				return ""
			}
			return c.Value
		}},
		"cookie, decoded": {httplimit.Cookie("session").Hashed(), secret, "session=" + secret, "Cookie", func(r *http.Request) string {
			c, err := r.Cookie("session")
			if err != nil {
				return ""
			}
			v, _ := url.QueryUnescape(c.Value)
			return v
		}},
	}
	pieces := []string{" ", "\t", "\u00a0", "\u2003", "\"", ";", ",", "=", "x", "%", "*", "bearer ", "Bearer ", "Token ", "session=", "%3d"}
	random := rand.New(rand.NewPCG(40, 4))
	// What services read in different ways counts as one, whatever it is.
	unclear, _ := found(httplimit.Credential("Authorization"), &http.Request{Header: http.Header{"Authorization": {"x\ty z"}}})
	for name, s := range services {
		want, _ := found(s.key, &http.Request{Header: http.Header{s.field: {s.usual}}})
		authenticated := 0
		for i := range 3000 {
			text := s.usual
			for range i % 5 { // changes
				at := random.IntN(len(text) + 1)
				switch piece := pieces[random.IntN(len(pieces))]; random.IntN(5) {
				case 0:
					text = text[:at] + strings.Repeat(piece, random.IntN(4)) + text[at:]
				case 1:
					text = piece + text
				case 2:
					text += piece
				case 3:
					if at < len(text) {
						text = text[:at] + fmt.Sprintf("%%%02x", text[at]) + text[at+1:]
					}
				case 4:
					text = strings.ToUpper(text[:at]) + text[at:]
				}
			}
			lines := []string{strings.Trim(text, " \t")} // as net/http reads a line
			if random.IntN(4) == 0 {
				lines = append([]string{""}, lines...)
			}
			if random.IntN(4) == 0 {
				lines = append(lines, "another")
			}
			r := &http.Request{Header: http.Header{s.field: lines}}
			key, ok := found(s.key, r)
			if s.authorize(r) != s.secret {
				continue
			}
			if authenticated++; !ok || key != want && key != unclear {
				t.Errorf("%s: %q is the secret, and counts for %q, %v; want %q", name, lines, key, ok, want)
			}
		}
		if authenticated < 500 {
			t.Errorf("%s: only %d spellings authenticate", name, authenticated)
		}
	}
}

// Whatever bytes a client sends in whatever number of lines: with a policy that is blocked no
// request passes, and none panics, for each key.
func TestAnyHeadersAreLimitedOrRefused(t *testing.T) {
	g, _ := group(t)
	l := limiter(t, g, "blocked", tiered.Blocked())
	keys := map[string]httplimit.Key{
		"Header": httplimit.Header("X-User"), "Host": httplimit.Header("Host"), "Credential": httplimit.Credential("Authorization"), "Cookie": httplimit.Cookie("session"),
		"Cookie, hashed": httplimit.Cookie("session").Hashed(), "RemoteIP": httplimit.RemoteIP(), "ForwardedFor": httplimit.ForwardedFor(proxies...),
		"Forwarded": httplimit.Forwarded(proxies...), "TrustedHops": httplimit.TrustedHops(2), "HeaderIP": httplimit.HeaderIP("X-Real-IP", proxies...), "Method": httplimit.Method(),
		"joined": httplimit.JoinKeys(httplimit.Header("X-User"), httplimit.Method(), httplimit.RemoteIP()), "path": httplimit.PathValue("x"), "Route": httplimit.Route(),
	}
	fields := []string{"X-User", "Authorization", "Cookie", "X-Forwarded-For", "Forwarded", "X-Real-Ip"}
	pieces := []string{
		"", " ", "\t", ",", ";", "=", `"`, "\\", "for=", "Basic ", "Bearer ", "session=", "%", "%zz", "[", "]", ":", "::1", "10.0.0.1",
		"fe80::1%eth0", "::ffff:1.2.3.4", "_hidden", "unknown", strings.Repeat("x", 70_000), strings.Repeat(",", 300),
	}
	random := rand.New(rand.NewPCG(40, 5))
	text := func() (s string) {
		for range random.IntN(6) {
			if random.IntN(2) == 0 {
				s += string([]byte{byte(random.IntN(256))})
			} else {
				s += pieces[random.IntN(len(pieces))]
			}
		}
		return s
	}
	for name, key := range keys {
		refused := map[int]int{}
		for _, missing := range []httplimit.Missing{httplimit.Refuse, httplimit.Together} {
			h := wrap(t, []httplimit.Rule{{Limiter: l, Key: key, Missing: missing}}, nil, ok)
			for range 300 {
				r := &http.Request{Method: text(), Host: text(), RemoteAddr: "10.0.0.1:80", Header: http.Header{}, URL: &url.URL{Path: text()}}
				if random.IntN(4) == 0 {
					r.RemoteAddr = text()
				}
				r.SetPathValue("x", text())
				for range random.IntN(5) {
					name := fields[random.IntN(len(fields))]
					r.Header[name] = append(r.Header[name], text())
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if refused[w.Code]++; w.Code != http.StatusTooManyRequests && w.Code != http.StatusBadRequest {
					t.Fatalf("%s: %.300q is answered with %d", name, r.Header, w.Code)
				}
			}
		}
		if refused[http.StatusTooManyRequests] == 0 {
			t.Errorf("%s: %v", name, refused)
		}
	}
}
