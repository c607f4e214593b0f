package rules

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Key tells what a request counts for.
type Key[R any] struct {
	Of   func(R) (string, error)    // "" if the request has none
	IP   func(R) (netip.Addr, bool) // if it counts by addresses
	Peer bool                       // it is known of clients that call a server only
	Err  error                      // an error in its construction: Check reports it
}

// ByAddress counts by the prefixes of addresses, which ip finds. It reports false if a request has
// none.
func ByAddress[R any](ip func(R) (netip.Addr, bool)) Key[R] {
	return Key[R]{IP: ip, Peer: true}.prefixed(prefixIPv4, prefixIPv6)
}

// prefixed returns k with prefixes of these lengths.
func (k Key[R]) prefixed(ipv4, ipv6 int) Key[R] {
	ip := k.IP
	k.Of = func(r R) (string, error) {
		a, ok := ip(r)
		if !ok {
			return "", nil
		}
		return prefix(a, ipv4, ipv6), nil
	}
	return k
}

// Prefix returns k with prefixes of these lengths. must names the keys that have them.
func (k Key[R]) Prefix(ipv4, ipv6 int, must string) Key[R] {
	switch {
	case k.Err != nil:
		return k
	case k.IP == nil:
		return Key[R]{Err: fmt.Errorf("is Prefix(%d, %d) of a key that is no address: must be of %s", ipv4, ipv6, must)}
	case ipv4 < 1 || ipv4 > 32 || ipv6 < 1 || ipv6 > 128:
		return Key[R]{Err: fmt.Errorf("is Prefix(%d, %d): must be 1 to 32 bits of IPv4 and 1 to 128 of IPv6", ipv4, ipv6)}
	}
	return k.prefixed(ipv4, ipv6)
}

// Join counts by all of the keys together. A request that lacks one of the keys has none. Different
// keys never give the same joined key.
func Join[R any](keys []Key[R], w Words) Key[R] {
	if len(keys) == 0 {
		return Key[R]{Err: errors.New("is JoinKeys(): must have one key at least")}
	}
	for i, k := range keys {
		switch {
		case k.Err != nil:
			return Key[R]{Err: fmt.Errorf("is JoinKeys with key %d that %w", i, k.Err)}
		case k.Of == nil:
			return Key[R]{Err: fmt.Errorf("is JoinKeys with key %d zero: must be set, as in %s.%s", i, w.Package, w.Key)}
		}
	}
	return Key[R]{
		Peer: slices.ContainsFunc(keys, func(k Key[R]) bool { return k.Peer }),
		Of: func(r R) (string, error) {
			var room [128]byte
			joined := room[:0]
			for _, k := range keys {
				part, err := k.Of(r)
				if err != nil || part == "" {
					return "", err
				}
				joined = strconv.AppendInt(joined, int64(len(part)), 10) // so that a part may contain anything
				joined = append(joined, ':')
				joined = append(joined, part...)
			}
			return string(joined), nil
		},
	}
}

// Hashed returns k with each key replaced by its SHA-256: 43 characters of base64url.
func (k Key[R]) Hashed() Key[R] {
	of := k.Of
	if of == nil {
		return k
	}
	return Key[R]{Peer: k.Peer, Of: func(r R) (string, error) {
		key, err := of(r)
		if err != nil || key == "" {
			return "", err
		}
		sum := sha256.Sum256([]byte(key))
		return base64.RawURLEncoding.EncodeToString(sum[:]), nil
	}}
}

// sharedKey is the key of all requests without one. A client's key never equals it: see find.
const sharedKey = "\x00"

// find returns the key of a request, "" if it has none. A key that begins like sharedKey gets that
// prefix once more, so that no two keys become one. Only a path, a cookie or a user's function can
// return such a key.
func (k Key[R]) find(r R) (string, error) {
	key, err := k.Of(r)
	if err != nil || key == "" {
		return "", err
	}
	if key[0] == sharedKey[0] {
		key = sharedKey + key
	}
	return key, nil
}
