package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The lengths of the prefixes by which addresses are counted, unless [Key.Prefix] sets others. An
// IPv6 client can choose among the 2⁶⁴ addresses of its /64.
const (
	prefixIPv4 = 32
	prefixIPv6 = 64
)

// MaxHops is far more proxies than a request passes.
const MaxHops = 32

// MaxEntries bounds the entries of a field that are read, empty ones too: a client may send a
// megabyte of commas.
const MaxEntries = 2 * MaxHops

// Proxies are the addresses of proxies.
type Proxies []netip.Prefix

// ProxiesOf validates the proxies of a key of this name. An IPv4 prefix in IPv6 form becomes an
// IPv4 prefix.
func ProxiesOf(key string, proxies []netip.Prefix) (Proxies, error) {
	if len(proxies) == 0 {
		return nil, fmt.Errorf("is %s(): must have the prefix of a proxy at least", key)
	}
	trusted := make(Proxies, len(proxies))
	for i, p := range proxies {
		if !p.IsValid() {
			return nil, fmt.Errorf("is %s with proxy %d %v: must be a valid prefix", key, i, p)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		trusted[i] = p
	}
	return trusted, nil
}

// Has reports whether an address is that of a proxy.
func (t Proxies) Has(a netip.Addr) bool {
	return slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(a) })
}

// CutLast cuts the right-most entry off a field's value. It returns what stands before the entry,
// and the entry's address. A list may have an empty entry: its address is "".
type CutLast func(value string) (rest, address string, ok bool)

// Client walks through the lines of a field from the right, past the addresses of proxies. The
// connection comes from peer.
func (t Proxies) Client(peer netip.Addr, lines []string, cut CutLast) (netip.Addr, bool) {
	if !t.Has(peer) {
		return peer, true
	}
	a, seen := peer, 0
	for _, line := range slices.Backward(lines) {
		for line != "" {
			if seen++; seen > MaxEntries {
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
			if a, ok = Address(text); !ok {
				return netip.Addr{}, false
			}
			if !t.Has(a) {
				return a, true
			}
		}
	}
	return a, true
}

// LastOfXFF cuts at the last comma, as X-Forwarded-For has it.
func LastOfXFF(value string) (rest, text string, ok bool) {
	i := strings.LastIndexByte(value, ',')
	return value[:max(i, 0)], strings.Trim(value[i+1:], " \t"), true
}

// Address parses 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1] and [2001:db8::1]:80.
func Address(s string) (netip.Addr, bool) {
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

// prefix returns the prefix of an address as text, and a full IPv4 address without its length. It
// returns "" for an invalid address.
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
