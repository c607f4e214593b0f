package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Key says whom a request is counted for. The zero Key is an error: make one with [Header], [Credential], [Cookie],
// [PathValue], [RemoteIP], [ForwardedFor], [Forwarded] or [KeyFunc].
type Key struct {
	of  func(*http.Request) (string, bool)
	err error // what was wrong when it was made: New reports it
}

// KeyFunc counts a request for what f returns. f returns false for a request that has no key, as it does by returning "".
// It is called concurrently, once per request and rule.
func KeyFunc(f func(*http.Request) (key string, ok bool)) Key {
	if f == nil {
		return Key{err: errors.New("is KeyFunc(nil): must be a function")}
	}
	return Key{of: f}
}

// Header counts by the first value of a header field, as it was sent. Everybody can send any: use it for fields that a
// proxy of yours sets, or for what was authenticated before.
func Header(name string) Key {
	if !isToken(name) {
		return Key{err: fmt.Errorf("is Header(%q): must be the name of a header field", name)}
	}
	name = http.CanonicalHeaderKey(name)
	if name == "Host" { // which net/http keeps elsewhere
		return Key{of: func(r *http.Request) (string, bool) { return r.Host, true }}
	}
	return Key{of: func(r *http.Request) (string, bool) {
		if v := r.Header[name]; len(v) > 0 {
			return v[0], true
		}
		return "", false
	}}
}

// Credential counts by the SHA-256 of a header field that holds a secret, such as Authorization or X-Api-Key: the secret
// itself goes neither to Redis nor into a Decision. Of Authorization and Proxy-Authorization the scheme's case and the
// spaces after it make no difference, nor does how Basic is encoded, or one user would have many buckets.
//
// Put it behind what checks the credential: else each made-up one has a bucket of its own.
func Credential(name string) Key {
	if !isToken(name) {
		return Key{err: fmt.Errorf("is Credential(%q): must be the name of a header field", name)}
	}
	name = http.CanonicalHeaderKey(name)
	schemes := name == "Authorization" || name == "Proxy-Authorization"
	return Key{of: func(r *http.Request) (string, bool) {
		v := r.Header[name]
		if len(v) == 0 {
			return "", false
		}
		secret := strings.Trim(v[0], " \t")
		if schemes {
			secret = canonicalCredential(secret)
		}
		return secret, true
	}}.Hashed()
}

// canonicalCredential is a credential with its scheme in lower case, and of Basic what it encodes.
func canonicalCredential(s string) string {
	scheme, rest, ok := strings.Cut(s, " ")
	if !ok {
		return s
	}
	scheme, rest = strings.ToLower(scheme), strings.TrimLeft(rest, " ")
	if scheme == "basic" {
		if plain, err := base64.StdEncoding.DecodeString(rest); err == nil {
			return "basic\x00" + string(plain) // which no header holds
		}
	}
	return scheme + " " + rest
}

// Cookie counts by the value of a cookie. A session cookie is a secret: Cookie("session").Hashed().
func Cookie(name string) Key {
	if !isToken(name) {
		return Key{err: fmt.Errorf("is Cookie(%q): must be the name of a cookie", name)}
	}
	return Key{of: func(r *http.Request) (string, bool) {
		c, err := r.Cookie(name)
		if err != nil {
			return "", false
		}
		return c.Value, true
	}}
}

// PathValue counts by a wildcard of the pattern that matched, as in "/tenants/{tenant}/". Only a handler within the
// [http.ServeMux] sees one: wrap the handler of the pattern, not the mux.
func PathValue(name string) Key {
	if name == "" {
		return Key{err: errors.New(`is PathValue(""): must be the name of a wildcard`)}
	}
	return Key{of: func(r *http.Request) (string, bool) { return r.PathValue(name), true }}
}

// Hashed is k with the SHA-256 of what it finds, 43 letters of base64url, in place of it. What can be guessed, an e-mail
// address say, can be guessed from its hash too.
func (k Key) Hashed() Key {
	of := k.of
	if of == nil {
		return k
	}
	return Key{of: func(r *http.Request) (string, bool) {
		key, ok := of(r)
		if !ok || key == "" {
			return "", false
		}
		sum := sha256.Sum256([]byte(key))
		return base64.RawURLEncoding.EncodeToString(sum[:]), true
	}}
}

// Missing says what happens to a request that has no key for a rule. There is no default.
type Missing uint8

const (
	_ Missing = iota

	// Refuse answers 400.
	Refuse

	// Exempt lets the request pass this rule, uncounted; the other rules remain.
	Exempt

	// Together counts all requests without a key as those of one client.
	Together
)

// together is the key of those without one. A key of a client never is: see find.
const together = "\x00"

// find reports the key of a request. One that begins as the common one does, which only a path or a function of the
// user's can make it, gets another of the same letters before it: no two keys become one.
func (k Key) find(r *http.Request) (string, bool) {
	key, ok := k.of(r)
	if !ok || key == "" {
		return "", false
	}
	if key[0] == together[0] {
		key = together + key
	}
	return key, true
}

// isToken reports whether s is a token of RFC 9110 §5.6.2, which the names of fields and cookies are.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}
