// Package fiberlimit limits the requests of a fiber application.
//
//	limit, err := fiberlimit.New(limiter, func(c *fiber.Ctx) (string, error) { return c.Params("tenant"), nil })
//	...
//	app.Get("/tenants/:tenant", limit, handler)
//
// [Middleware] takes several policies, costs and all else that package httplimit has.
package fiberlimit

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tiered-limiter/tiered-limiter/internal/fasthttpadapter"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// New returns a handler that takes one token for each request, and answers it if the limiter
// refuses: with the status, the header fields and the text of [httplimit.WriteRefusal]. key returns
// what a request counts for. A request with an empty key gets 400, and so does one for which key
// returns an error, with its text. The key is copied, because fiber uses its buffers again.
func New(l *tiered.Limiter, key func(*fiber.Ctx) (string, error)) (fiber.Handler, error) {
	switch {
	case l == nil:
		return nil, errors.New("fiberlimit: limiter is nil: must be set")
	case l.Group() == nil:
		return nil, errors.New("fiberlimit: limiter is zero: must be made by tiered.New or Group.NewLimiter")
	case key == nil:
		return nil, errors.New("fiberlimit: key is nil: must be a function")
	}
	return func(c *fiber.Ctx) error {
		k, err := key(c)
		if !exchange(c).Allow(c.UserContext(), l, strings.Clone(k), err) {
			return nil
		}
		return c.Next()
	}, nil
}

// Middleware calls the next handlers if limit lets the request through. limit is what
// [httplimit.New], [httplimit.ByIP], [httplimit.ByHeader] or a policy file's Watcher.Middleware
// returns, so all of their rules and options can be used. If it is nil, all requests get 503.
// [httplimit.Settle] takes the UserContext of a handler.
//
// What limit is told of a request are copies, without the body. A URL that net/http does not read
// is answered with 400. With [httplimit.Options.Counts] an error of the handler is answered at once
// by the ErrorHandler of the application, because Counts needs the status, and again when outer
// middleware has got it. [New] is faster, because it makes no copies.
func Middleware(limit func(http.Handler) http.Handler) fiber.Handler {
	return func(c *fiber.Ctx) (err error) {
		ctx := context.WithValue(c.UserContext(), contextKey{}, c)
		e := exchange(c)
		e.Header = make(http.Header, 8)
		for name, values := range c.GetReqHeaders() {
			if name == fiber.HeaderHost { // as in net/http
				continue
			}
			for _, v := range values {
				e.Header.Add(strings.Clone(name), strings.Clone(v))
			}
		}
		e.Next = func(ctx context.Context, counts bool) {
			c.SetUserContext(ctx)
			if err = c.Next(); err != nil && counts {
				_ = c.App().ErrorHandler(c, err) // outside it is answered again
			}
		}
		e.Serve(ctx, limit)
		return err
	}
}

// exchange returns what a limit needs of a request, but for the fields of its header.
func exchange(c *fiber.Ctx) *fasthttpadapter.Exchange {
	r := c.Context()
	return &fasthttpadapter.Exchange{Request: r, Length: r.Request.Header.ContentLength(), Response: &r.Response.Header}
}

// contextKey is the key of the *fiber.Ctx in a request's context.
type contextKey struct{}

// Key counts a request for what f reads from fiber's context: a parameter, or what another
// middleware has set. f returns "" for a request that has no key, and an error for one that gets
// 400 with its text, as [httplimit.KeyFunc] says. It works within [Middleware] only.
func Key(f func(*fiber.Ctx) (string, error)) httplimit.Key {
	if f == nil {
		return httplimit.KeyFunc(nil)
	}
	return httplimit.KeyFunc(func(r *http.Request) (string, error) {
		c, ok := r.Context().Value(contextKey{}).(*fiber.Ctx)
		if !ok {
			return "", nil
		}
		key, err := f(c)
		return strings.Clone(key), err // fiber uses its buffers again
	})
}
