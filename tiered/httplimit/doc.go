// Package httplimit limits HTTP requests by the policies of package tiered. It is net/http
// middleware and imports only the standard library and tiered.
//
//	limit, err := httplimit.New([]httplimit.Rule{{
//		Limiter: perUser, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse,
//	}}, nil)
//	...
//	http.Handle("/", limit(handler))
//
// # What a client sees
//
// Each answer states the tightest limit in X-RateLimit-Limit (its burst), -Remaining and -Reset. A
// request over the limit gets 429 with Retry-After. If Redis does not answer and the policy fails
// closed, a request gets 503 with a Retry-After of one second, because that is not the client's
// fault. A request without a key gets 400 if [Refuse] says so. The middleware never answers 500.
//
// # How to tell clients apart
//
// A [Key] tells clients apart. A client can make up everything in a request, so put the middleware
// behind authentication, or count by [RemoteIP]. A request without a key is never counted under an
// empty one: each [Rule] says what happens to it.
//
// # Several limits
//
// A request under several rules takes tokens from all of them or from none. Two nested middlewares
// differ: tokens that the outer one took are spent even if the inner one refuses.
package httplimit
