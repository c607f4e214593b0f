// Package httplimit limits HTTP requests by the policies of package tiered: net/http middleware, standard library only.
//
//	limit, err := httplimit.New([]httplimit.Rule{{
//		Limiter: perUser, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse,
//	}}, nil)
//	...
//	http.Handle("/", limit(handler))
//
// # What a client sees
//
// An answer tells the tightest limit in X-RateLimit-Limit, -Remaining and -Reset. Over the limit it is 429 with Retry-After;
// while Redis does not answer and a policy fails closed, 503 with Retry-After, for that is not the client's fault; 400
// without a key where [Refuse] says so. The middleware never answers 500: a limiter in trouble is no reason to fail.
//
// # Whom to count
//
// A [Key] is whatever tells clients apart. Everything in a request can be made up, so put the middleware behind whatever
// authenticates, or count by [RemoteIP]. A request without a key is never counted under an empty one: each [Rule] says
// what happens to it.
//
// # Several limits
//
// A request that has to keep to several rules takes from all of them or from none. Two middlewares one inside the other are
// something else: what the outer one took is spent even if the inner one refuses.
package httplimit
