package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/rules"
)

// Key tells what a call counts for: mostly a client. The zero Key is an error: make one with
// [PeerIP], [ForwardedFor], [Metadata], [Credential], [Method], [TLSSubject], [SPIFFEID],
// [Constant], [JoinKeys] or [KeyFunc].
type Key struct{ key rules.Key[request] }

// byText returns the Key that counts for what of returns.
func byText(of func(request) (string, error)) Key { return Key{rules.Key[request]{Of: of}} }

// bad returns a Key with an error in its construction, which New reports.
func bad(err error) Key { return Key{rules.Key[request]{Err: err}} }

// request is a call or a message that is to be counted.
type request struct {
	ctx    context.Context
	call   Call
	client bool // it is counted where it is sent
}

// KeyFunc counts a call for the key that f returns, such as the user that an earlier interceptor
// put into the context:
//
//	grpclimit.KeyFunc(func(ctx context.Context, _ grpclimit.Call) (string, error) { return userOf(ctx), nil })
//
// f returns "" for a call that has no key: Missing decides then. If f returns an error, the client
// has sent something wrong. The call ends with InvalidArgument and the text of the error, whatever
// Missing says, so the text must be fit for a client. The [Error] wraps it. f is called
// concurrently, once per call and rule. If it panics, the call ends with Internal and the panic is
// logged.
func KeyFunc(f func(context.Context, Call) (key string, err error)) Key {
	if f == nil {
		return bad(errors.New("is KeyFunc(nil): must be a function"))
	}
	return byText(func(r request) (string, error) { return f(r.ctx, r.call) })
}

// Metadata counts by the first value of a metadata field that is not blank, as it was sent. In a
// server it is the metadata of the client, and in a client the outgoing metadata. A client can send
// any value: use Metadata for fields that your proxy sets, or that were authenticated before.
func Metadata(name string) Key {
	name = strings.ToLower(name)
	if err := checkField(name); err != nil {
		return bad(fmt.Errorf("is Metadata(%q): %w", name, err))
	}
	return byText(func(r request) (string, error) { return r.field(name), nil })
}

// Credential counts by the SHA-256 of a metadata field that holds a secret, such as authorization.
// The secret itself goes neither to Redis nor into a Decision. In authorization the scheme, the
// space around the secret, what follows a token and the encoding of Basic do not matter, so that
// one user does not get several buckets. It is not for schemes that sign each call: their values
// differ each time.
//
// Check the credential before this interceptor. Otherwise each invented one gets a bucket of its
// own.
func Credential(name string) Key {
	name = strings.ToLower(name)
	if err := checkField(name); err != nil {
		return bad(fmt.Errorf("is Credential(%q): %w", name, err))
	}
	return byText(func(r request) (string, error) { return canonical.Credential(name, r.field(name)), nil }).Hashed()
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

// Method counts by the full name of the method. A client can call methods that do not exist, and a
// server without a handler for unknown methods answers them before any interceptor runs.
func Method() Key {
	return byText(func(r request) (string, error) { return r.call.Method, nil })
}

// Constant counts all calls under one key: for a limit of the whole service, or of what a client
// may ask of another.
func Constant(key string) Key {
	if key == "" || len(key) > defaults.MaxKeyLength {
		return bad(fmt.Errorf("is Constant with %d bytes: must be 1 to %d", len(key), defaults.MaxKeyLength))
	}
	return byText(func(request) (string, error) { return key, nil })
}

// TLSSubject counts by the subject of the client's certificate, as in "CN=billing,O=Example". Only
// a certificate that the server has verified counts (mutual TLS: tls.RequireAndVerifyClientCert).
// Another call has no key.
func TLSSubject() Key {
	return Key{rules.Key[request]{Peer: true, Of: func(r request) (string, error) {
		info, ok := verified(r.ctx)
		if !ok {
			return "", nil
		}
		return info.State.VerifiedChains[0][0].Subject.String(), nil
	}}}
}

// SPIFFEID counts by the SPIFFE ID of the client's certificate, as in
// "spiffe://example.org/billing". Only a certificate that the server has verified counts. Another
// call has no key.
func SPIFFEID() Key {
	return Key{rules.Key[request]{Peer: true, Of: func(r request) (string, error) {
		info, ok := verified(r.ctx)
		if !ok || info.SPIFFEID == nil {
			return "", nil
		}
		return info.SPIFFEID.String(), nil
	}}}
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

// JoinKeys counts by all of the keys together, as in JoinKeys(PeerIP(), Method()): each client has
// a bucket for each method. A call that lacks one of the keys has none. Different keys never give
// the same joined key.
func JoinKeys(keys ...Key) Key {
	all := make([]rules.Key[request], len(keys))
	for i, k := range keys {
		all[i] = k.key
	}
	return Key{rules.Join(all, words)}
}

// words are those of this package, for what it says is wrong.
var words = rules.Words{Package: "grpclimit", Request: "call", Key: "PeerIP()"}

// Hashed returns k with each key replaced by its SHA-256: 43 characters of base64url. A key that
// can be guessed, such as an e-mail address, can be recognized by its hash too.
func (k Key) Hashed() Key { return Key{k.key.Hashed()} }

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

	// Next lets the next rule count the call instead. That rule is left out for a call that has a
	// key here. So a client that has an API key is counted by it, and one that has none by address.
	// Rules that stand for each other in that way may have the same policy, and count all messages
	// or none.
	Next
)
