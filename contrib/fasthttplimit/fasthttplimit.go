// Package fasthttplimit limits the requests of a fasthttp server.
//
//	limit, err := fasthttplimit.New(limiter, func(c *fasthttp.RequestCtx) string {
//		return string(c.Request.Header.Peek("X-User"))
//	})
//	...
//	server := &fasthttp.Server{Handler: limit(handler)}
package fasthttplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// New returns a middleware that takes one token for each request, and answers it if the limiter refuses: with the
// status, the header fields and the text of [httplimit.WriteRefusal]. key returns what a request counts for. A request
// with an empty key gets 400. key must copy what it returns, because fasthttp uses its buffers again.
// Around a nil handler the middleware answers 404.
func New(l *tiered.Limiter, key func(*fasthttp.RequestCtx) string) (
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
			// Not c: its Done says that the server shuts down, which must not refuse the requests that it still serves.
			d := l.Allow(context.Background(), key(c))
			a := answer{c, make(http.Header, 4)}
			if !d.Allowed {
				httplimit.WriteRefusal(a, d)
				return
			}
			httplimit.WriteHeaders(a.Header(), d)
			a.copyHeader()
			next(c)
		}
	}, nil
}

// answer writes to a fasthttp response what is written to it.
type answer struct {
	c      *fasthttp.RequestCtx
	header http.Header
}

func (a answer) Header() http.Header { return a.header }

func (a answer) WriteHeader(status int) {
	a.c.SetStatusCode(status)
	a.copyHeader()
}

func (a answer) Write(b []byte) (int, error) { return a.c.Write(b) }

func (a answer) copyHeader() {
	for name, values := range a.header {
		for _, v := range values {
			a.c.Response.Header.Set(name, v)
		}
	}
}
