package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// The lengths of the prefixes by which addresses are counted, unless [Key.Prefix] sets others. An IPv6 client can
// choose among the 2⁶⁴ addresses of its /64.
const (
	prefixIPv4 = 32
	prefixIPv6 = 64
)

// maxHops bounds the addresses of x-forwarded-for that are read. It is far more proxies than a call passes.
const maxHops = 32

// findIP returns the address that a call counts for. It reports false if the call has none.
type findIP func(request) (netip.Addr, bool)

// key returns the Key that counts by prefixes of these lengths.
func (f findIP) key(ipv4, ipv6 int) Key {
	return Key{ip: f, server: true, of: func(r request) (string, error) {
		a, ok := f(r)
		if !ok {
			return "", nil
		}
		return prefix(a, ipv4, ipv6), nil
	}}
}

// Prefix returns k with addresses counted by prefixes of ipv4 (1 … 32) and ipv6 (1 … 128) bits, instead of 32 and 64.
// All addresses of a prefix are one client. k must be made by [PeerIP] or [ForwardedFor].
func (k Key) Prefix(ipv4, ipv6 int) Key {
	switch {
	case k.err != nil:
		return k
	case k.ip == nil:
		return Key{err: fmt.Errorf("is Prefix(%d, %d) of a key that is no address: must be of PeerIP or ForwardedFor",
			ipv4, ipv6)}
	case ipv4 < 1 || ipv4 > 32 || ipv6 < 1 || ipv6 > 128:
		return Key{err: fmt.Errorf("is Prefix(%d, %d): must be 1 to 32 bits of IPv4 and 1 to 128 of IPv6", ipv4, ipv6)}
	}
	return k.ip.key(ipv4, ipv6)
}

// Address returns the address of a call's client as k finds it, whole and not by its prefix. It reports false if the call
// has none, or if k is no address. It is for [Rule].Skip in a server, so that your own networks are not limited.
func (k Key) Address(ctx context.Context) (a netip.Addr, ok bool) {
	if k.ip == nil || ctx == nil {
		return a, false
	}
	return k.ip(request{ctx: ctx})
}

// PeerIP counts by the address that the connection comes from. An IPv4 client is counted by its address, an IPv6
// client by its /64: see [Key.Prefix]. PeerIP reads no metadata: behind a proxy all clients have the proxy's address,
// so use [ForwardedFor] there. A connection without an IP address, such as a unix socket's, has no key.
func PeerIP() Key { return findIP(peerIP).key(prefixIPv4, prefixIPv6) }

// ForwardedFor counts like [PeerIP], by the right-most address of the metadata field x-forwarded-for that is not one
// of proxies. The sender of the call wrote the entries to the left of it. They cannot be trusted.
//
// The field is read only if the connection comes from one of proxies. Each proxy must append the address that it was
// called from, to the same value or as another one. If all addresses are proxies, the left-most counts. Without the
// field, the connection's address counts. If the search reaches an entry that is not an address, with or without a
// port, or passes 32 entries, the call has no key.
func ForwardedFor(proxies ...netip.Prefix) Key {
	trusted, err := trustedProxies(proxies)
	if err != nil {
		return Key{err: err}
	}
	return findIP(func(r request) (netip.Addr, bool) {
		a, ok := peerIP(r)
		if !ok || !isOneOf(trusted, a) {
			return a, ok
		}
		return client(a, metadata.ValueFromIncomingContext(r.ctx, "x-forwarded-for"), trusted)
	}).key(prefixIPv4, prefixIPv6)
}

// trustedProxies validates the proxies of a key. An IPv4 prefix in IPv6 form becomes an IPv4 prefix.
func trustedProxies(proxies []netip.Prefix) ([]netip.Prefix, error) {
	if len(proxies) == 0 {
		return nil, errors.New("is ForwardedFor(): must have the prefix of a proxy at least")
	}
	trusted := make([]netip.Prefix, len(proxies))
	for i, p := range proxies {
		if !p.IsValid() {
			return nil, fmt.Errorf("is ForwardedFor with proxy %d %v: must be a valid prefix", i, p)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		trusted[i] = p
	}
	return trusted, nil
}

// client walks through the values from the right, past the addresses of proxies.
func client(proxy netip.Addr, values []string, trusted []netip.Prefix) (netip.Addr, bool) {
	a, hops := proxy, 0
	for _, value := range slices.Backward(values) {
		for value != "" {
			if hops++; hops > maxHops {
				return netip.Addr{}, false
			}
			i := strings.LastIndexByte(value, ',')
			text := strings.Trim(value[i+1:], " \t")
			value = value[:max(i, 0)]
			if text == "" { // a list may have empty entries
				continue
			}
			var ok bool
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

// peerIP returns the address that the connection comes from.
func peerIP(r request) (netip.Addr, bool) {
	p, ok := peer.FromContext(r.ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}, false
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		a := tcp.AddrPort().Addr()
		return a.Unmap().WithZone(""), a.IsValid()
	}
	return address(p.Addr.String())
}

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
