// Package grpclimit limits gRPC calls by the policies of package tiered. It has interceptors for
// servers and for clients.
//
//	limit, err := grpclimit.ByPeer(limiter)
//	...
//	server := grpc.NewServer(limit.ServerOptions()...)
//
// # What a client sees
//
// A call over the limit ends with ResourceExhausted. Its details are RetryInfo and QuotaFailure.
// The trailer grpc-retry-pushback-ms tells the retry policy of gRPC clients when to come back. If
// Redis does not answer and the policy fails closed, a call ends with Unavailable. A call without a
// key ends with InvalidArgument if [Refuse] says so. A call with a deadline is decided before it:
// see [tiered.Options].Budget. Trailers state the tightest limit: ratelimit-limit, -remaining and
// -reset. They are trailers and not headers, because gRPC retries a call only if the server sent no
// header.
//
// # How to tell clients apart
//
// A [Key] tells clients apart. A client can make up all metadata, so count by what was
// authenticated, or by [PeerIP]. A call without a key is never counted under an empty one: each
// [Rule] says what happens to it.
//
// # Several limits
//
// A call under several rules takes tokens from all of them or from none. Two interceptors in a
// chain differ: tokens that the outer one took are spent even if the inner one refuses.
//
// # Clients
//
// [NewClient] makes interceptors that keep a client within a limit. A call over the limit fails
// before it is sent, or waits for its turn.
package grpclimit
