// Package echolimit puts the middleware of package httplimit into echo.
//
//	limit, err := httplimit.New([]httplimit.Rule{{
//		Limiter: perTenant,
//		Key:     echolimit.Key(func(c echo.Context) (string, error) { return c.Param("tenant"), nil }),
//		Missing: httplimit.Refuse,
//	}}, nil)
//	...
//	e.GET("/tenants/:tenant", handler, echolimit.Middleware(limit))
package echolimit

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// contextKey is the key of the echo.Context in a request's context.
type contextKey struct{}

// Middleware calls the next handler if limit lets the request through. limit is what
// [httplimit.New], [httplimit.ByIP] or [httplimit.ByHeader] returns. If it is nil, all requests get
// 503. With [httplimit.Options.Counts] an error of the handler is answered at once, as echo's
// RequestLogger does with HandleError, because Counts needs the status. Outer middleware gets the
// error as well.
func Middleware(limit func(http.Handler) http.Handler) echo.MiddlewareFunc {
	if limit == nil {
		limit = refuse
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			below := c.Response().Writer
			front := &writer{c.Response()} // so that echo knows of a refusal
			admitted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				front.ResponseWriter = below
				if w == http.ResponseWriter(front) {
					err = next(c)
					return
				}
				c.Response().Writer = w
				defer func() { c.Response().Writer = below }()
				if err = next(c); err != nil {
					c.Error(err) // now, so that Options.Counts sees the status
				}
			})
			r := c.Request()
			limit(admitted).ServeHTTP(front, r.WithContext(context.WithValue(r.Context(), contextKey{}, c)))
			return err
		}
	}
}

// writer is what a limit writes to: echo's Response as long as the request is not admitted, and
// then what that one writes to.
type writer struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refuse is what limits requests if the error of httplimit.New was ignored.
func refuse(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { httplimit.WriteRefusal(w, tiered.Decision{}) })
}

// Key counts a request for what f reads from echo's context: a parameter, or what another
// middleware has set. f returns "" for a request that has no key, and an error for one that gets
// 400 with its text, as [httplimit.KeyFunc] says. It works within [Middleware] only.
func Key(f func(echo.Context) (string, error)) httplimit.Key {
	if f == nil {
		return httplimit.KeyFunc(nil)
	}
	return httplimit.KeyFunc(func(r *http.Request) (string, error) {
		c, ok := r.Context().Value(contextKey{}).(echo.Context)
		if !ok {
			return "", nil
		}
		return f(c)
	})
}
