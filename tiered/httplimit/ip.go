package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
)

// Prefix returns k with addresses counted by prefixes of ipv4 (1 … 32) and ipv6 (1 … 128) bits,
// instead of 32 and 64. All addresses of a prefix are one client. k must be made by [RemoteIP],
// [ForwardedFor], [Forwarded], [TrustedHops] or [HeaderIP].
func (k Key) Prefix(ipv4, ipv6 int) Key {
	return Key{k.key.Prefix(ipv4, ipv6, "RemoteIP or another IP key")}
}

// Address returns the address of a request's client as k finds it, whole and not by its prefix. It
// reports false if the request has none, or if k is no address. It is for [Rule].Skip, so that your
// own networks are not limited:
//
//	Skip: func(r *http.Request) bool { a, ok := clients.Address(r); return ok && office.Contains(a) },
func (k Key) Address(r *http.Request) (a netip.Addr, ok bool) {
	if k.key.IP == nil || r == nil {
		return a, false
	}
	return k.key.IP(r)
}

// RemoteIP counts by the address that the connection comes from. An IPv4 client is counted by its
// address, an IPv6 client by its /64: see [Key.Prefix]. RemoteIP reads no header: behind a proxy
// all clients have the proxy's address, so use [ForwardedFor] there. A connection without an IP
// address, such as a unix socket's, has no key.
func RemoteIP() Key { return byAddress(peer) }

// HeaderIP counts like [RemoteIP], by the address in a header field that a proxy sets, such as
// CF-Connecting-IP or X-Real-IP. The field is read only if the connection comes from one of
// proxies. Otherwise, and without the field, the connection's address counts. If the field is not
// one address, with or without a port, the request has no key.
//
// The proxy must overwrite what a client sends in that field.
func HeaderIP(name string, proxies ...netip.Prefix) Key {
	if !isToken(name) {
		return bad(fmt.Errorf("is HeaderIP(%q): must be the name of a header field", name))
	}
	trusted, err := rules.ProxiesOf("HeaderIP", proxies)
	if err != nil {
		return bad(err)
	}
	name = http.CanonicalHeaderKey(name)
	return byAddress(func(r *http.Request) (netip.Addr, bool) {
		a, ok := peer(r)
		lines := r.Header[name]
		if !ok || !trusted.Has(a) || len(lines) == 0 {
			return a, ok
		}
		if len(lines) > 1 {
			return netip.Addr{}, false
		}
		return rules.Address(strings.Trim(lines[0], " \t"))
	})
}

// TrustedHops counts like [RemoteIP], by the address in X-Forwarded-For that the outermost of n
// proxies appended: the n-th from the right. Use it if the addresses of the proxies are not known,
// but their number is. n is 1 … 32.
//
// It is safe only if every request passes all n proxies, and each of them appends the address that
// it was called from. Otherwise a client chooses its own address. A request with fewer addresses,
// or with an entry there that is not an address, has no key.
func TrustedHops(n int) Key {
	if n < 1 || n > rules.MaxHops {
		return bad(fmt.Errorf("is TrustedHops(%d): must be 1 to %d proxies", n, rules.MaxHops))
	}
	return byAddress(func(r *http.Request) (netip.Addr, bool) {
		left, seen := n, 0
		for _, line := range slices.Backward(r.Header["X-Forwarded-For"]) {
			for line != "" {
				if seen++; seen > rules.MaxEntries {
					return netip.Addr{}, false
				}
				rest, text, _ := rules.LastOfXFF(line)
				line = rest
				if text == "" {
					continue
				}
				if left--; left == 0 {
					return rules.Address(text)
				}
			}
		}
		return netip.Addr{}, false
	})
}

// ForwardedFor counts like [RemoteIP], by the right-most address of X-Forwarded-For that is not one
// of proxies. The sender of the request wrote the entries to the left of it. They cannot be
// trusted.
//
// The field is read only if the connection comes from one of proxies. Each proxy must append the
// address that it was called from, on the same line or on another. If all addresses are proxies,
// the left-most counts. Without the field, the connection's address counts. If the search reaches
// an entry that is not an address, with or without a port, or passes 64 entries, the request has no
// key.
func ForwardedFor(proxies ...netip.Prefix) Key {
	return forwarded("ForwardedFor", "X-Forwarded-For", rules.LastOfXFF, proxies)
}

// Forwarded is [ForwardedFor] for the for= parameter of the header field Forwarded (RFC 7239).
// "unknown" and names like "_hidden" are not addresses. An element with two of them has no key: RFC
// 7239 forbids it, so a client has made it up. A proxy that copies the client's Host into the field
// must not let quotes through.
func Forwarded(proxies ...netip.Prefix) Key {
	return forwarded("Forwarded", "Forwarded", lastOfForwarded, proxies)
}

func forwarded(name, field string, cut rules.CutLast, proxies []netip.Prefix) Key {
	trusted, err := rules.ProxiesOf(name, proxies)
	if err != nil {
		return bad(err)
	}
	return byAddress(func(r *http.Request) (netip.Addr, bool) {
		a, ok := peer(r)
		if !ok {
			return a, ok
		}
		return trusted.Client(a, r.Header[field], cut)
	})
}

// lastOfForwarded cuts at the last comma outside of quotes. It reads from the right, so that a
// quote that a client left open does not swallow what a proxy wrote after it.
func lastOfForwarded(value string) (rest, text string, ok bool) {
	quoted := false
	i := len(value) - 1
	for ; i >= 0 && (quoted || value[i] != ','); i-- {
		switch value[i] {
		case '"':
			quoted = !quoted
		case '\\':
			return "", "", false // no address needs one
		}
	}
	if quoted {
		return "", "", false
	}
	entry := strings.Trim(value[i+1:], " \t")
	rest = value[:max(i, 0)]
	if entry == "" {
		return rest, "", true
	}
	found := false
	for entry != "" {
		var pair string
		pair, entry = cutPair(entry)
		name, v, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !strings.EqualFold(strings.Trim(name, " \t"), "for") {
			continue
		}
		if found {
			return "", "", false
		}
		found, v = true, strings.Trim(v, " \t")
		if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
			v = v[1 : len(v)-1]
		}
		text = v
	}
	return rest, text, text != ""
}

// cutPair cuts the left-most pair off an entry: up to the first semicolon outside of quotes.
func cutPair(entry string) (pair, rest string) {
	quoted := false
	for i := range len(entry) {
		switch c := entry[i]; {
		case c == '"':
			quoted = !quoted
		case c == ';' && !quoted:
			return entry[:i], entry[i+1:]
		}
	}
	return entry, ""
}

// peer returns the address that the connection comes from.
func peer(r *http.Request) (netip.Addr, bool) { return rules.Address(r.RemoteAddr) }

// byAddress returns the Key that counts by addresses.
func byAddress(ip func(*http.Request) (netip.Addr, bool)) Key { return Key{rules.ByAddress(ip)} }
