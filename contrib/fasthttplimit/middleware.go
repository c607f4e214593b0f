package fasthttplimit

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/internal/fasthttpadapter"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Middleware calls the next handler if limit lets the request through. limit is what
// [httplimit.New], [httplimit.ByIP], [httplimit.ByHeader] or a policy file's Watcher.Middleware
// returns, so all of their rules and options can be used. If it is nil, all requests get 503.
// Around a nil handler the middleware answers 404.
//
// What limit is told of a request are copies, without the body. A URL that net/http does not read
// is answered with 400. [New] is faster, because it makes no copies.
func Middleware(limit func(http.Handler) http.Handler) func(fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(next fasthttp.RequestHandler) fasthttp.RequestHandler {
		if next == nil {
			next = (*fasthttp.RequestCtx).NotFound
		}
		return func(c *fasthttp.RequestCtx) {
			base := &values{Context: context.Background()} // not c, whose Done says that the server shuts down
			base.of.Store(c)
			defer base.of.Store(nil) // fasthttp uses c again
			e := exchange(c, true)
			e.Next = func(ctx context.Context, _ bool) {
				c.SetUserValue(contextKey{}, ctx)
				next(c)
			}
			e.Serve(base, limit)
		}
	}
}

// Context returns the context for [httplimit.Settle], in a handler within [Middleware]. It may be
// used after the handler has returned.
func Context(c *fasthttp.RequestCtx) context.Context {
	if ctx, ok := c.UserValue(contextKey{}).(context.Context); ok {
		return ctx
	}
	return context.Background()
}

// Key counts a request for what f reads from fasthttp's request: a part of the path, or what
// another middleware has set. f returns "" for a request that has no key, and an error for one that
// gets 400 with its text, as [httplimit.KeyFunc] says. It works within [Middleware] only.
func Key(f func(*fasthttp.RequestCtx) (string, error)) httplimit.Key {
	if f == nil {
		return httplimit.KeyFunc(nil)
	}
	return httplimit.KeyFunc(func(r *http.Request) (string, error) {
		c, ok := r.Context().Value(requestKey{}).(*fasthttp.RequestCtx)
		if !ok {
			return "", nil
		}
		key, err := f(c)
		return strings.Clone(key), err
	})
}

// contextKey is the key of the context of a request among the values of a *fasthttp.RequestCtx, and
// requestKey that of the *fasthttp.RequestCtx in such a context.
type (
	contextKey struct{}
	requestKey struct{}
)

// values is a context with the values of a request, until its handler has returned.
type values struct {
	context.Context
	of atomic.Pointer[fasthttp.RequestCtx]
}

func (v *values) Value(key any) any {
	if c := v.of.Load(); c != nil {
		if _, is := key.(requestKey); is {
			return c
		}
		return c.UserValue(key)
	}
	return nil
}

// exchange returns what a limit needs of a request. Without fields the fields of the request are
// left out.
func exchange(c *fasthttp.RequestCtx, fields bool) *fasthttpadapter.Exchange {
	e := &fasthttpadapter.Exchange{Request: c, Length: c.Request.Header.ContentLength(), Response: &c.Response.Header}
	if fields {
		e.Header = make(http.Header, 8)
		for name, value := range c.Request.Header.All() {
			if n := string(name); n != fasthttp.HeaderHost { // as in net/http
				e.Header.Add(n, string(value))
			}
		}
	}
	return e
}
