package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// The lengths of the prefixes by which addresses are counted, unless [Key.Prefix] sets others. An IPv6 client can
// choose among the 2⁶⁴ addresses of its /64.
const (
	prefixIPv4 = 32
	prefixIPv6 = 64
)

// findIP returns the address that a request counts for. It reports false if the request has none.
type findIP func(*http.Request) (netip.Addr, bool)

// key returns the Key that counts by prefixes of these lengths.
func (f findIP) key(ipv4, ipv6 int) Key {
	return Key{ip: f, of: func(r *http.Request) (string, error) {
		a, ok := f(r)
		if !ok {
			return "", nil
		}
		return prefix(a, ipv4, ipv6), nil
	}}
}

// Prefix returns k with addresses counted by prefixes of ipv4 (1 … 32) and ipv6 (1 … 128) bits, instead of 32 and 64.
// All addresses of a prefix are one client. k must be made by [RemoteIP], [ForwardedFor], [Forwarded], [TrustedHops]
// or [HeaderIP].
func (k Key) Prefix(ipv4, ipv6 int) Key {
	switch {
	case k.err != nil:
		return k
	case k.ip == nil:
		return Key{err: fmt.Errorf("is Prefix(%d, %d) of a key that is no address: must be of RemoteIP or another IP key",
			ipv4, ipv6)}
	case ipv4 < 1 || ipv4 > 32 || ipv6 < 1 || ipv6 > 128:
		return Key{err: fmt.Errorf("is Prefix(%d, %d): must be 1 to 32 bits of IPv4 and 1 to 128 of IPv6", ipv4, ipv6)}
	}
	return k.ip.key(ipv4, ipv6)
}

// Address returns the address of a request's client as k finds it, whole and not by its prefix. It reports false if the
// request has none, or if k is no address. It is for [Rule].Skip, so that your own networks are not limited:
//
//	Skip: func(r *http.Request) bool { a, ok := clients.Address(r); return ok && office.Contains(a) },
func (k Key) Address(r *http.Request) (a netip.Addr, ok bool) {
	if k.ip == nil || r == nil {
		return a, false
	}
	return k.ip(r)
}

// RemoteIP counts by the address that the connection comes from. An IPv4 client is counted by its address, an IPv6
// client by its /64: see [Key.Prefix]. RemoteIP reads no header: behind a proxy all clients have the proxy's address,
// so use [ForwardedFor] there. A connection without an IP address, such as a unix socket's, has no key.
func RemoteIP() Key { return findIP(peer).key(prefixIPv4, prefixIPv6) }

// HeaderIP counts like [RemoteIP], by the address in a header field that a proxy sets, such as CF-Connecting-IP or
// X-Real-IP. The field is read only if the connection comes from one of proxies. Otherwise, and without the field, the
// connection's address counts. If the field is not one address, with or without a port, the request has no key.
//
// The proxy must overwrite what a client sends in that field.
func HeaderIP(name string, proxies ...netip.Prefix) Key {
	if !isToken(name) {
		return Key{err: fmt.Errorf("is HeaderIP(%q): must be the name of a header field", name)}
	}
	trusted, err := trustedProxies("HeaderIP", proxies)
	if err != nil {
		return Key{err: err}
	}
	name = http.CanonicalHeaderKey(name)
	return findIP(func(r *http.Request) (netip.Addr, bool) {
		a, ok := peer(r)
		lines := r.Header[name]
		if !ok || !isOneOf(trusted, a) || len(lines) == 0 {
			return a, ok
		}
		if len(lines) > 1 {
			return netip.Addr{}, false
		}
		return address(strings.Trim(lines[0], " \t"))
	}).key(prefixIPv4, prefixIPv6)
}

// TrustedHops counts like [RemoteIP], by the address in X-Forwarded-For that the outermost of n proxies appended: the
// n-th from the right. Use it if the addresses of the proxies are not known, but their number is. n is 1 … 32.
//
// It is safe only if every request passes all n proxies, and each of them appends the address that it was called from.
// Otherwise a client chooses its own address. A request with fewer addresses, or with an entry there that is not an
// address, has no key.
func TrustedHops(n int) Key {
	if n < 1 || n > maxHops {
		return Key{err: fmt.Errorf("is TrustedHops(%d): must be 1 to %d proxies", n, maxHops)}
	}
	return findIP(func(r *http.Request) (netip.Addr, bool) {
		left, seen := n, 0
		for _, line := range slices.Backward(r.Header["X-Forwarded-For"]) {
			for line != "" {
				if seen++; seen > maxEntries {
					return netip.Addr{}, false
				}
				rest, text, _ := lastOfXFF(line)
				line = rest
				if text == "" {
					continue
				}
				if left--; left == 0 {
					return address(text)
				}
			}
		}
		return netip.Addr{}, false
	}).key(prefixIPv4, prefixIPv6)
}

// maxHops is far more proxies than a request passes.
const maxHops = 32

// maxEntries bounds the entries of a field that are read, empty ones too: a client may send a megabyte of commas.
const maxEntries = 2 * maxHops

// ForwardedFor counts like [RemoteIP], by the right-most address of X-Forwarded-For that is not one of proxies. The
// sender of the request wrote the entries to the left of it. They cannot be trusted.
//
// The field is read only if the connection comes from one of proxies. Each proxy must append the address that it
// was called from, on the same line or on another. If all addresses are proxies, the left-most counts. Without the
// field, the connection's address counts. If the search reaches an entry that is not an address, with or without a
// port, or passes 64 entries, the request has no key.
func ForwardedFor(proxies ...netip.Prefix) Key {
	return forwarded("ForwardedFor", "X-Forwarded-For", lastOfXFF, proxies)
}

// Forwarded is [ForwardedFor] for the for= parameter of the header field Forwarded (RFC 7239). "unknown" and names
// like "_hidden" are not addresses. An element with two of them has no key: RFC 7239 forbids it, so a client has made it
// up. A proxy that copies the client's Host into the field must not let quotes through.
func Forwarded(proxies ...netip.Prefix) Key {
	return forwarded("Forwarded", "Forwarded", lastOfForwarded, proxies)
}

// cutLast cuts the right-most entry off a field's value. It returns what stands before the entry, and the entry's
// address. A list may have an empty entry: its address is "".
type cutLast func(value string) (rest, address string, ok bool)

func forwarded(name, field string, cut cutLast, proxies []netip.Prefix) Key {
	trusted, err := trustedProxies(name, proxies)
	if err != nil {
		return Key{err: err}
	}
	return findIP(func(r *http.Request) (netip.Addr, bool) {
		a, ok := peer(r)
		if !ok || !isOneOf(trusted, a) {
			return a, ok
		}
		return client(a, r.Header[field], cut, trusted)
	}).key(prefixIPv4, prefixIPv6)
}

// trustedProxies validates the proxies of a key. An IPv4 prefix in IPv6 form becomes an IPv4 prefix.
func trustedProxies(name string, proxies []netip.Prefix) ([]netip.Prefix, error) {
	if len(proxies) == 0 {
		return nil, fmt.Errorf("is %s(): must have the prefix of a proxy at least", name)
	}
	trusted := make([]netip.Prefix, len(proxies))
	for i, p := range proxies {
		if !p.IsValid() {
			return nil, fmt.Errorf("is %s with proxy %d %v: must be a valid prefix", name, i, p)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		trusted[i] = p
	}
	return trusted, nil
}

// client walks through the lines from the right, past the addresses of proxies.
func client(proxy netip.Addr, lines []string, cut cutLast, trusted []netip.Prefix) (netip.Addr, bool) {
	a, seen := proxy, 0
	for _, line := range slices.Backward(lines) {
		for line != "" {
			if seen++; seen > maxEntries {
				return netip.Addr{}, false
			}
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

// prefix returns the prefix of an address as text, and a full IPv4 address without its length. It returns "" for an
// invalid address.
func prefix(a netip.Addr, ipv4, ipv6 int) string {
	bits := ipv6
	switch {
	case !a.IsValid():
		return ""
	case a.Is4() && ipv4 == prefixIPv4:
		return a.String()
	case a.Is4():
		bits = ipv4
	}
	p, _ := a.Prefix(bits) // fails only for an address with a zone, or shorter
	return p.String()
}
