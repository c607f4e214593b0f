package grpclimit

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
)

// Prefix returns k with addresses counted by prefixes of ipv4 (1 … 32) and ipv6 (1 … 128) bits,
// instead of 32 and 64. All addresses of a prefix are one client. k must be made by [PeerIP] or
// [ForwardedFor].
func (k Key) Prefix(ipv4, ipv6 int) Key {
	return Key{k.key.Prefix(ipv4, ipv6, "PeerIP or ForwardedFor")}
}

// Address returns the address of a call's client as k finds it, whole and not by its prefix. It
// reports false if the call has none, or if k is no address. It is for [Rule].Skip in a server, so
// that your own networks are not limited.
func (k Key) Address(ctx context.Context) (a netip.Addr, ok bool) {
	if k.key.IP == nil || ctx == nil {
		return a, false
	}
	return k.key.IP(request{ctx: ctx})
}

// PeerIP counts by the address that the connection comes from. An IPv4 client is counted by its
// address, an IPv6 client by its /64: see [Key.Prefix]. PeerIP reads no metadata: behind a proxy
// all clients have the proxy's address, so use [ForwardedFor] there. A connection without an IP
// address, such as a unix socket's, has no key.
func PeerIP() Key { return Key{rules.ByAddress(peerIP)} }

// ForwardedFor counts like [PeerIP], by the right-most address of the metadata field
// x-forwarded-for that is not one of proxies. The sender of the call wrote the entries to the left
// of it. They cannot be trusted.
//
// The field is read only if the connection comes from one of proxies. Each proxy must append the
// address that it was called from, to the same value or as another one. If all addresses are
// proxies, the left-most counts. Without the field, the connection's address counts. If the search
// reaches an entry that is not an address, with or without a port, or passes 64 entries, the call
// has no key.
func ForwardedFor(proxies ...netip.Prefix) Key {
	trusted, err := rules.ProxiesOf("ForwardedFor", proxies)
	if err != nil {
		return bad(err)
	}
	return Key{rules.ByAddress(func(r request) (netip.Addr, bool) {
		a, ok := peerIP(r)
		if !ok {
			return a, ok
		}
		return trusted.Client(a, metadata.ValueFromIncomingContext(r.ctx, "x-forwarded-for"), rules.LastOfXFF)
	})}
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
	return rules.Address(p.Addr.String())
}
