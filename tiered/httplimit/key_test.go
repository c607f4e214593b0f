package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestKeys(t *testing.T) {
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
	odd := same()
	odd.SetPathValue("tenant", "\x00")
	for _, c := range []struct {
		name string
		key  Key
		r    *http.Request
		want string // "" for none
	}{
		{"header", Header("x-user"), same("X-User", "ann", "X-User", "bob"), "ann"},
		{"no header", Header("X-User"), same(), ""},
		{"empty header", Header("X-User"), same("X-User", ""), ""},
		{"host", Header("host"), same(), "example.org"},
		{"cookie", Cookie("session"), same("Cookie", "a=1; session=s3cr3t"), "s3cr3t"},
		{"no cookie", Cookie("session"), same("Cookie", "a=1"), ""},
		{"empty cookie", Cookie("session").Hashed(), same("Cookie", "session="), ""},
		{"path", PathValue("tenant"), path, "acme/\x00"},
		{"no path", PathValue("tenant"), same(), ""},
		{"like those without a key", PathValue("tenant"), odd, "\x00\x00"},
		{"function", KeyFunc(func(r *http.Request) (string, bool) { return r.Method, true }), same(), "GET"},
		{"function without a key", KeyFunc(func(*http.Request) (string, bool) { return "x", false }), same(), ""},
		{"method", Method(), same(), "GET"},
		{"route", Route(), routed, "GET /items/{id}"},
		{"no route", Route(), same(), ""},
		{"joined", JoinKeys(Header("X-User"), Method()), same("X-User", "ann"), "3:ann3:GET"},
		{"joined, one missing", JoinKeys(Header("X-User"), Route()), same("X-User", "ann"), ""},
		{"no credential", Credential("Authorization"), same("Authorization", " "), ""},
		// printf 'bearer abc' | openssl dgst -sha256 -binary | basenc --base64url
		{
			"credential", Credential("Authorization"), same("Authorization", "Bearer abc"),
			"RuOOnOTEMsPKhGNuJ7piQmPP4OSteIhty62ZQqDz82o",
		},
	} {
		got, found := c.key.find(c.r)
		if got != c.want || found != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", c.name, got, found, c.want)
		}
	}
}

// Different parts never give one key, whatever they contain.
func FuzzJoinKeys(f *testing.F) {
	f.Add("a", "b", "ab", "")
	f.Add("1:a", "b", "1", "a1:b")
	of := func(a, b string) (string, bool) {
		text := func(s string) Key { return KeyFunc(func(*http.Request) (string, bool) { return s, true }) }
		return JoinKeys(text(a), text(b)).find(httptest.NewRequest(http.MethodGet, "/", nil))
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
	of := func(value string) string {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", value)
		key, _ := Credential("Authorization").find(r)
		return key
	}
	for _, group := range [][]string{
		{"Bearer abc", "bearer abc", "BEARER   abc", " Bearer abc "},
		{"Bearer Abc"},
		{"Basic YTpi", "basic YTpi", "Basic  YTpi"},
		{"Basic YTpj"},
		{"a:b"},
		{"abc"},
	} {
		for _, v := range group {
			if of(v) != of(group[0]) || len(of(v)) != 43 {
				t.Errorf("%q is %q, %q is %q", v, of(v), group[0], of(group[0]))
			}
		}
	}
	seen := map[string]string{}
	for _, v := range []string{
		"Bearer abc", "Bearer Abc", "Basic YTpi", "Basic YTpj", "a:b", "abc", "basic a:b",
		"basic:a:b",
	} {
		if other, ok := seen[of(v)]; ok {
			t.Errorf("%q and %q are one", v, other)
		}
		seen[of(v)] = v
	}
}
