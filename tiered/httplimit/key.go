package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/internal/rules"
)

// Key tells what a request counts for: mostly a client. The zero Key is an error: make one with
// [Header], [Credential], [Cookie], [Query], [PathValue], [Route], [Method], [RemoteIP],
// [ForwardedFor], [Forwarded], [TrustedHops], [HeaderIP], [JoinKeys] or [KeyFunc].
type Key struct{ key rules.Key[*http.Request] }

// byText returns the Key that counts by the text that of returns.
func byText(of func(*http.Request) (string, error)) Key { return Key{rules.Key[*http.Request]{Of: of}} }

// bad returns a Key with an error in its construction, which New reports.
func bad(err error) Key { return Key{rules.Key[*http.Request]{Err: err}} }

// KeyFunc counts a request for the key that f returns, as in
//
//	httplimit.KeyFunc(func(r *http.Request) (string, error) { return userOf(r.Context()), nil })
//
// f returns "" for a request that has no key: Missing decides then. If f returns an error, the
// client has sent something wrong. The request gets 400 with the text of the error, whatever
// Missing says, so the text must be fit for a client. f is called concurrently, once per request
// and rule.
func KeyFunc(f func(*http.Request) (key string, err error)) Key {
	if f == nil {
		return bad(errors.New("is KeyFunc(nil): must be a function"))
	}
	return byText(f)
}

// Header counts by the first value of a header field that is not empty, as it was sent. A client
// can send any value: use Header for fields that your proxy sets, or that were authenticated
// before. Of Host, upper case, the port and dots at the end do not matter.
func Header(name string) Key {
	if !isToken(name) {
		return bad(fmt.Errorf("is Header(%q): must be the name of a header field", name))
	}
	name = http.CanonicalHeaderKey(name)
	if name == "Host" { // net/http stores it elsewhere
		return byText(func(r *http.Request) (string, error) { return canonical.Host(r.Host), nil })
	}
	return byText(func(r *http.Request) (string, error) { return canonical.First(r.Header[name]), nil })
}

// Credential counts by the SHA-256 of a header field that holds a secret, such as Authorization or
// X-Api-Key. The secret itself goes neither to Redis nor into a Decision. In Authorization and
// Proxy-Authorization the scheme, the space around the secret, what follows a token and the
// encoding of Basic do not matter, so that one user does not get several buckets. It is not for
// schemes that sign each request, such as Digest: their values differ each time.
//
// Check the credential before this middleware. Otherwise each invented one gets a bucket of its
// own.
func Credential(name string) Key {
	if !isToken(name) {
		return bad(fmt.Errorf("is Credential(%q): must be the name of a header field", name))
	}
	name = http.CanonicalHeaderKey(name)
	return byText(func(r *http.Request) (string, error) {
		return canonical.Credential(name, canonical.First(r.Header[name])), nil
	}).Hashed()
}

// Cookie counts by the value of a cookie: of several with that name, the first that is not empty.
// Quotes and percent-encoding do not matter. A session cookie is a secret: use
// Cookie("session").Hashed().
func Cookie(name string) Key {
	if !isToken(name) {
		return bad(fmt.Errorf("is Cookie(%q): must be the name of a cookie", name))
	}
	return byText(func(r *http.Request) (string, error) {
		for _, c := range r.CookiesNamed(name) {
			if c.Value != "" {
				return canonical.Cookie(c.Value), nil
			}
		}
		return "", nil
	})
}

// Query counts by a parameter of the URL's query, as in ?api_key=…: the value that is not empty. An
// API key is a secret: use Query("api_key").Hashed(). Services read several values in different
// ways, so all requests with two values that differ count as one client.
func Query(name string) Key {
	if name == "" {
		return bad(errors.New(`is Query(""): must be the name of a parameter`))
	}
	return byText(func(r *http.Request) (key string, err error) {
		for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
			is, value, _ := strings.Cut(pair, "=")
			if is, err := url.QueryUnescape(is); err != nil || is != name || strings.Contains(pair, ";") {
				continue // as net/url reads it
			}
			if value, err := url.QueryUnescape(value); err == nil && value != "" && value != key {
				if key != "" {
					return "\x00", nil
				}
				key = value
			}
		}
		return key, nil
	})
}

// PathValue counts by a wildcard of the matched pattern, as in "/tenants/{tenant}/". Only a handler
// within the [http.ServeMux] sees it: wrap the handler of the pattern, not the mux.
func PathValue(name string) Key {
	if name == "" {
		return bad(errors.New(`is PathValue(""): must be the name of a wildcard`))
	}
	return byText(func(r *http.Request) (string, error) { return r.PathValue(name), nil })
}

// Route counts by the pattern that the request matched in the [http.ServeMux], such as "GET
// /items/{id}". Only a handler within the mux sees it: wrap the handler of the pattern, not the
// mux.
func Route() Key {
	return byText(func(r *http.Request) (string, error) { return r.Pattern, nil })
}

// Method counts by the request's method in capitals. It is meant for [JoinKeys]. All methods that
// net/http has no name for count as one, because a client can invent them.
func Method() Key {
	return byText(func(r *http.Request) (string, error) { return canonical.Method(r.Method), nil })
}

// JoinKeys counts by all of the keys together, as in JoinKeys(RemoteIP(), Route()): each client has
// a bucket for each route. A request that lacks one of the keys has none. Different keys never give
// the same joined key.
func JoinKeys(keys ...Key) Key {
	all := make([]rules.Key[*http.Request], len(keys))
	for i, k := range keys {
		all[i] = k.key
	}
	return Key{rules.Join(all, words)}
}

// words are those of this package, for what it says is wrong.
var words = rules.Words{Package: "httplimit", Request: "request", Key: "RemoteIP()"}

// Hashed returns k with each key replaced by its SHA-256: 43 characters of base64url. A key that
// can be guessed, such as an e-mail address, can be recognized by its hash too.
func (k Key) Hashed() Key { return Key{k.key.Hashed()} }

// Missing says what happens to a request that has no key for a rule. There is no default.
type Missing uint8

const (
	_ Missing = iota

	// Refuse answers 400.
	Refuse

	// Exempt lets the request pass this rule uncounted. The other rules still apply.
	Exempt

	// Together counts all requests without a key as one client.
	Together

	// Next lets the next rule count the request instead. That rule is left out for a request that
	// has a key here. So a client that has an API key is counted by it, and one that has none by
	// address. Rules that stand for each other in that way may have the same policy.
	Next
)

// isToken reports whether s is a token of RFC 9110 §5.6.2, as the names of fields and cookies are.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}
