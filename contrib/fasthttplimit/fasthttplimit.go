// Package fasthttplimit limits the requests of a fasthttp server.
//
//	limit, err := fasthttplimit.New(limiter, func(c *fasthttp.RequestCtx) (string, error) {
//		return string(c.Request.Header.Peek("X-User")), nil
//	})
//	...
//	server := &fasthttp.Server{Handler: limit(handler)}
//
// [Middleware] takes several policies, costs and all else that package httplimit has.
package fasthttplimit

import (
	"context"
	"errors"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// New returns a middleware that takes one token for each request, and answers it if the limiter
// refuses: with the status, the header fields and the text of [httplimit.WriteRefusal]. key returns
// what a request counts for. A request with an empty key gets 400, and so does one for which key
// returns an error, with its text. key must copy what it returns, because fasthttp uses its buffers
// again. Around a nil handler the middleware answers 404.
func New(l *tiered.Limiter, key func(*fasthttp.RequestCtx) (string, error)) (
	func(fasthttp.RequestHandler) fasthttp.RequestHandler, error,
) {
	switch {
	case l == nil:
		return nil, errors.New("fasthttplimit: limiter is nil: must be set")
	case l.Group() == nil:
		return nil, errors.New("fasthttplimit: limiter is zero: must be made by tiered.New or Group.NewLimiter")
	case key == nil:
		return nil, errors.New("fasthttplimit: key is nil: must be a function")
	}
	return func(next fasthttp.RequestHandler) fasthttp.RequestHandler {
		if next == nil {
			next = (*fasthttp.RequestCtx).NotFound
		}
		return func(c *fasthttp.RequestCtx) {
			// Not c: its Done says that the server shuts down, which must not refuse the requests
			// that it still serves.
			k, err := key(c)
			if !exchange(c, false).Allow(context.Background(), l, k, err) {
				return
			}
			next(c)
		}
	}, nil
}
