// Package canonical writes what a client sends in one way: a client that spells its secret, its
// host or its method in another way stays the same client. A key must never be read more strictly
// than what authenticates or serves the request reads it. Otherwise one client has as many buckets
// as there are spellings.
package canonical

import (
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"
	"unicode"
)

// Request is the key of a value in the context of a request that is limited by several middlewares,
// because its URL can be read in several ways. The value, a pointer, is the same for all of them.
type Request struct{}

// First returns the first value of a header field that is not blank, or "". A client may send the
// field several times.
func First(values []string) string {
	for _, v := range values {
		if strings.TrimSpace(v) != "" {
			return v
		}
	}
	return ""
}

// Credential returns the secret in a header field of this name. Space around it does not matter. In
// Authorization and Proxy-Authorization the scheme does not matter either, because many services
// cut off any first word. Of a token they take the first word after it. Basic is decoded.
func Credential(field, value string) string {
	value = strings.TrimSpace(value)
	if !strings.EqualFold(field, "Authorization") && !strings.EqualFold(field, "Proxy-Authorization") {
		return value
	}
	scheme, secret := cutWord(value)
	if secret == "" {
		return value
	}
	word, _ := cutWord(secret)
	// Some services know one space only. If they would take another word, all such values are one.
	if _, after, ok := strings.Cut(value, " "); ok {
		if other, _ := cutWord(strings.TrimSpace(after)); other != word {
			return "\x00"
		}
	}
	switch {
	case strings.EqualFold(scheme, "Basic"):
		return "basic\x00" + decoded(word) // no header contains a NUL
	case strings.EqualFold(scheme, "Bearer") || !isParameter(word):
		return word
	}
	return secret
}

// cutWord cuts the first word off, and the space after it.
func cutWord(s string) (word, rest string) {
	i := strings.IndexFunc(s, unicode.IsSpace)
	if i < 0 {
		return s, ""
	}
	return s[:i], strings.TrimLeftFunc(s[i:], unicode.IsSpace)
}

// isParameter reports whether a word is a parameter and not a token, as in Digest username="ann",
// realm="x". A token may end with =, which fills its base64.
func isParameter(word string) bool {
	return strings.HasSuffix(word, ",") || strings.Contains(strings.TrimRight(word, "="), "=")
}

// decoded decodes base64 as the most lenient decoders do: of both alphabets, with or without
// padding, and past what is no base64.
func decoded(s string) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '+', c == '/':
			return c
		case c == '-':
			return '+'
		case c == '_':
			return '/'
		}
		return -1
	}, s)
	if len(s)%4 == 1 { // 6 bits are no byte
		s = s[:len(s)-1]
	}
	plain, _ := base64.RawStdEncoding.DecodeString(s) // of base64 only, so it does not fail
	return string(plain)
}

// Cookie returns the value of a cookie with its percent-encoding decoded, once. + is a space, as
// gin and others read it. What is no encoding stays.
func Cookie(value string) string {
	if !strings.ContainsAny(value, "%+") {
		return value
	}
	b := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case c == '+':
			c = ' '
		case c == '%' && i+2 < len(value) && isHex(value[i+1]) && isHex(value[i+2]):
			c = unhex(value[i+1])<<4 | unhex(value[i+2])
			i += 2
		}
		b = append(b, c)
	}
	return string(b)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// Host returns the host of the field Host: in lower case, without a port and without dots at the
// end, and an address of IPv6 in its usual form without brackets.
func Host(host string) string {
	host = host[strings.LastIndexByte(host, '@')+1:]
	bare := host
	if strings.HasPrefix(host, "[") {
		if end := strings.IndexByte(host, ']'); end > 0 {
			bare = host[1:end]
		}
	}
	if strings.Count(bare, ":") > 1 {
		if a, err := netip.ParseAddr(bare); err == nil {
			return a.Unmap().String()
		}
	}
	host, _, _ = strings.Cut(bare, ":")
	return strings.ToLower(strings.TrimRight(host, "."))
}

// methods are those that net/http names.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"}

// Other is the method of all requests whose method is not one of [net/http]'s.
const Other = "OTHER"

// Method returns one of the nine methods of net/http in capitals, or else Other: a client can
// invent any number of methods, and a handler that does not look at the method serves them all.
func Method(method string) string {
	if slices.Contains(methods, method) {
		return method
	}
	if upper := strings.ToUpper(method); slices.Contains(methods, upper) {
		return upper
	}
	return Other
}
