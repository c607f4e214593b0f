package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// RemoteIP counts by the address that the connection comes from. An IPv4 client is counted by its address, an IPv6
// client by its /64, because it can choose among its 2⁶⁴ addresses. RemoteIP reads no header: behind a proxy all
// clients have the proxy's address, so use [ForwardedFor] there. A connection without an IP address, such as a unix
// socket's, has no key.
func RemoteIP() Key {
	return Key{of: func(r *http.Request) (string, bool) {
		a, ok := peer(r)
		return block(a), ok
	}}
}

// ForwardedFor counts like [RemoteIP], by the right-most address of X-Forwarded-For that is not one of proxies. The
// sender of the request wrote what is left of it, so that cannot be trusted.
//
// The field is read only if the connection comes from one of proxies. Each proxy must append the address that it
// was called from, on the same line or on another. If all addresses are proxies, the left-most counts. Without the
// field, the connection's address counts. If the search reaches an entry that is not an address, with or without a
// port, the request has no key.
func ForwardedFor(proxies ...netip.Prefix) Key {
	return forwarded("ForwardedFor", "X-Forwarded-For", lastOfXFF, proxies)
}

// Forwarded is [ForwardedFor] for the for= parameter of the header field Forwarded (RFC 7239). "unknown" and names
// like "_hidden" are not addresses.
func Forwarded(proxies ...netip.Prefix) Key {
	return forwarded("Forwarded", "Forwarded", lastOfForwarded, proxies)
}

// cutLast cuts the right-most entry off a field's value. It returns what stands before the entry, and the entry's
// address. A list may have an empty entry: its address is "".
type cutLast func(value string) (rest, address string, ok bool)

func forwarded(name, field string, cut cutLast, proxies []netip.Prefix) Key {
	if len(proxies) == 0 {
		return Key{err: fmt.Errorf("is %s(): must have the prefix of a proxy at least", name)}
	}
	trusted := make([]netip.Prefix, len(proxies))
	for i, p := range proxies {
		if !p.IsValid() {
			return Key{err: fmt.Errorf("is %s with proxy %d %v: must be a valid prefix", name, i, p)}
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		trusted[i] = p
	}
	return Key{of: func(r *http.Request) (string, bool) {
		a, ok := peer(r)
		if !ok || !isOneOf(trusted, a) {
			return block(a), ok
		}
		a, ok = client(a, r.Header[field], cut, trusted)
		return block(a), ok
	}}
}

// client walks through the lines from the right, past the addresses of proxies.
func client(proxy netip.Addr, lines []string, cut cutLast, trusted []netip.Prefix) (netip.Addr, bool) {
	a := proxy
	for _, line := range slices.Backward(lines) {
		for line != "" {
			rest, text, ok := cut(line)
			if !ok {
				return netip.Addr{}, false
			}
			line = rest
			if text == "" {
				continue
			}
			if a, ok = address(text); !ok {
				return netip.Addr{}, false
			}
			if !isOneOf(trusted, a) {
				return a, true
			}
		}
	}
	return a, true
}

// lastOfXFF cuts at the last comma.
func lastOfXFF(value string) (rest, text string, ok bool) {
	i := strings.LastIndexByte(value, ',')
	return value[:max(i, 0)], strings.Trim(value[i+1:], " \t"), true
}

// lastOfForwarded cuts at the last comma outside of quotes. It reads from the right, so that a quote that a client
// left open does not swallow what a proxy wrote after it.
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
	// An address contains no semicolon. A quoted semicolon elsewhere only yields a pair without for=.
	for pair := range strings.SplitSeq(entry, ";") {
		name, v, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
			v = v[1 : len(v)-1]
		}
		return rest, v, v != ""
	}
	return "", "", false
}

// address parses 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1] and [2001:db8::1]:80.
func address(s string) (netip.Addr, bool) {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		s = s[1 : len(s)-1]
		if strings.IndexByte(s, ':') < 0 { // brackets are for IPv6
			return netip.Addr{}, false
		}
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		p, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		a = p.Addr()
	}
	return a.Unmap().WithZone(""), true
}

// peer returns the address that the connection comes from.
func peer(r *http.Request) (netip.Addr, bool) { return address(r.RemoteAddr) }

func isOneOf(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// block returns an IPv4 address, or the /64 of an IPv6 address, as text. It returns "" for an invalid address.
func block(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return ""
	case a.Is4():
		return a.String()
	}
	p, _ := a.Prefix(64) // fails only for an address with a zone, or shorter
	return p.String()
}
