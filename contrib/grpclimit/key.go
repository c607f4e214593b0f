package grpclimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/internal/inside"
)

// Key tells what a call counts for: mostly a client. The zero Key is an error: make one with [PeerIP], [ForwardedFor],
// [Metadata], [Credential], [Method], [TLSSubject], [SPIFFEID], [Constant], [JoinKeys] or [KeyFunc].
type Key struct {
	of     func(request) (string, error) // "" if the call has none
	ip     findIP                        // if it counts by addresses
	server bool                          // it is known of clients that call a server only
	err    error                         // an error in its construction: New reports it
}

// request is a call or a message that is to be counted.
type request struct {
	ctx    context.Context
	call   Call
	client bool // it is counted where it is sent
}

// KeyFunc counts a call for the key that f returns, such as the user that an earlier interceptor put into the context:
//
//	grpclimit.KeyFunc(func(ctx context.Context, _ grpclimit.Call) (string, error) { return userOf(ctx), nil })
//
// f returns "" for a call that has no key: Missing decides then. If f returns an error, the client has sent something wrong. The
// call ends with InvalidArgument and the text of the error, whatever Missing says, so the text must be fit for a client. The
// [Error] wraps it. f is called concurrently, once per call and rule. If it panics, the call ends with Internal and the
// panic is logged.
func KeyFunc(f func(context.Context, Call) (key string, err error)) Key {
	if f == nil {
		return Key{err: errors.New("is KeyFunc(nil): must be a function")}
	}
	return Key{of: func(r request) (string, error) { return f(r.ctx, r.call) }}
}

// Metadata counts by the first value of a metadata field that is not blank, as it was sent. In a server it is the metadata
// of the client, and in a client the outgoing metadata. A client can send any value: use Metadata for fields that your
// proxy sets, or that were authenticated before.
func Metadata(name string) Key {
	name = strings.ToLower(name)
	if err := checkField(name); err != nil {
		return Key{err: fmt.Errorf("is Metadata(%q): %w", name, err)}
	}
	return Key{of: func(r request) (string, error) { return r.field(name), nil }}
}

// Credential counts by the SHA-256 of a metadata field that holds a secret, such as authorization. The secret itself
// goes neither to Redis nor into a Decision. In authorization the scheme, the space around the secret, what follows a
// token and the encoding of Basic do not matter, so that one user does not get several buckets. It is not for schemes that
// sign each call: their values differ each time.
//
// Check the credential before this interceptor. Otherwise each invented one gets a bucket of its own.
func Credential(name string) Key {
	name = strings.ToLower(name)
	if err := checkField(name); err != nil {
		return Key{err: fmt.Errorf("is Credential(%q): %w", name, err)}
	}
	return Key{of: func(r request) (string, error) { return canonical.Credential(name, r.field(name)), nil }}.Hashed()
}

// field returns the first value of a metadata field that is not blank, or "".
func (r request) field(name string) string {
	var v []string
	if r.client {
		if md, ok := metadata.FromOutgoingContext(r.ctx); ok {
			v = md[name]
		}
	} else {
		v = metadata.ValueFromIncomingContext(r.ctx, name)
	}
	return canonical.First(v)
}

// Method counts by the full name of the method. A client can call methods that do not exist, and a server without a
// handler for unknown methods answers them before any interceptor runs.
func Method() Key {
	return Key{of: func(r request) (string, error) { return r.call.Method, nil }}
}

// Constant counts all calls under one key: for a limit of the whole service, or of what a client may ask of another.
func Constant(key string) Key {
	if key == "" || len(key) > inside.MaxKeyLength {
		return Key{err: fmt.Errorf("is Constant with %d bytes: must be 1 to %d", len(key), inside.MaxKeyLength)}
	}
	return Key{of: func(request) (string, error) { return key, nil }}
}

// TLSSubject counts by the subject of the client's certificate, as in "CN=billing,O=Example". Only a certificate that
// the server has verified counts (mutual TLS: tls.RequireAndVerifyClientCert). Another call has no key.
func TLSSubject() Key {
	return Key{server: true, of: func(r request) (string, error) {
		info, ok := verified(r.ctx)
		if !ok {
			return "", nil
		}
		return info.State.VerifiedChains[0][0].Subject.String(), nil
	}}
}

// SPIFFEID counts by the SPIFFE ID of the client's certificate, as in "spiffe://example.org/billing". Only a
// certificate that the server has verified counts. Another call has no key.
func SPIFFEID() Key {
	return Key{server: true, of: func(r request) (string, error) {
		info, ok := verified(r.ctx)
		if !ok || info.SPIFFEID == nil {
			return "", nil
		}
		return info.SPIFFEID.String(), nil
	}}
}

// verified returns what is known of a client whose certificate the server has verified.
func verified(ctx context.Context) (credentials.TLSInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return credentials.TLSInfo{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return info, ok && len(info.State.VerifiedChains) > 0 && len(info.State.VerifiedChains[0]) > 0
}

// JoinKeys counts by all of the keys together, as in JoinKeys(PeerIP(), Method()): each client has a bucket for each
// method. A call that lacks one of the keys has none. Different keys never give the same joined key.
func JoinKeys(keys ...Key) Key {
	if len(keys) == 0 {
		return Key{err: errors.New("is JoinKeys(): must have one key at least")}
	}
	keys = slices.Clone(keys)
	joined := Key{}
	for i, k := range keys {
		switch {
		case k.err != nil:
			return Key{err: fmt.Errorf("is JoinKeys with key %d that %w", i, k.err)}
		case k.of == nil:
			return Key{err: fmt.Errorf("is JoinKeys with key %d zero: must be set, as in grpclimit.PeerIP()", i)}
		}
		joined.server = joined.server || k.server
	}
	joined.of = func(r request) (string, error) {
		var room [128]byte
		b := room[:0]
		for _, k := range keys {
			part, err := k.of(r)
			if err != nil || part == "" {
				return "", err
			}
			b = strconv.AppendInt(b, int64(len(part)), 10) // so that a part may contain anything
			b = append(b, ':')
			b = append(b, part...)
		}
		return string(b), nil
	}
	return joined
}

// Hashed returns k with each key replaced by its SHA-256: 43 characters of base64url. A key that can be guessed,
// such as an e-mail address, can be recognized by its hash too.
func (k Key) Hashed() Key {
	of := k.of
	if of == nil {
		return k
	}
	return Key{server: k.server, of: func(r request) (string, error) {
		key, err := of(r)
		if err != nil || key == "" {
			return "", err
		}
		sum := sha256.Sum256([]byte(key))
		return base64.RawURLEncoding.EncodeToString(sum[:]), nil
	}}
}

// Missing says what happens to a call that has no key for a rule. There is no default.
type Missing uint8

const (
	_ Missing = iota

	// Refuse ends the call with InvalidArgument.
	Refuse

	// Exempt lets the call pass this rule uncounted. The other rules still apply.
	Exempt

	// Together counts all calls without a key as one client.
	Together

	// Next lets the next rule count the call instead. That rule is left out for a call that has a key here. So who has
	// an API key is counted by it, and who has none by address. Rules that stand for each other in that way may have the
	// same policy, and count all messages or none.
	Next
)

// sharedKey is the key of all calls without one. A client's key never equals it: see find.
const sharedKey = "\x00"

// find returns the key of a call, "" if it has none. A key that begins like sharedKey gets that prefix once more, so that no
// two keys become one.
func (k Key) find(r request) (string, error) {
	key, err := k.of(r)
	if err != nil || key == "" {
		return "", err
	}
	if key[0] == sharedKey[0] {
		key = sharedKey + key
	}
	return key, nil
}
