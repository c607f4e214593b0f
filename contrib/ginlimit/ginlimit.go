// Package ginlimit puts the middleware of package httplimit into gin.
//
//	limit, err := httplimit.New([]httplimit.Rule{{
//		Limiter: perTenant,
//		Key:     ginlimit.Key(func(c *gin.Context) (string, error) { return c.Param("tenant"), nil }),
//		Missing: httplimit.Refuse,
//	}}, nil)
//	...
//	router.GET("/tenants/:tenant", ginlimit.Middleware(limit), handler)
package ginlimit

import (
	"bufio"
	"context"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// contextKey is the key of the *gin.Context in a request's context.
type contextKey struct{}

// Middleware returns a handler that calls the next ones if limit lets the request through, and
// aborts otherwise. limit is what [httplimit.New], [httplimit.ByIP] or [httplimit.ByHeader]
// returns. If it is nil, all requests get 503.
func Middleware(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	if limit == nil {
		limit = refuse
	}
	return func(c *gin.Context) {
		admitted, below := false, c.Writer
		front := &writer{below, below} // unlike below it can be compared
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			admitted = true
			c.Request = r
			if w == http.ResponseWriter(front) {
				c.Next()
				return
			}
			c.Writer = &writer{below, w}
			defer func() { c.Writer = below }()
			c.Next()
			w.WriteHeader(below.Status()) // gin has it already
		})
		r := c.Request.WithContext(context.WithValue(c.Request.Context(), contextKey{}, c))
		limit(next).ServeHTTP(front, r)
		if !admitted {
			c.Abort()
			below.WriteHeaderNow()
		}
	}
}

// writer is gin's writer, of which seen sees what a limit needs to know.
type writer struct {
	gin.ResponseWriter
	seen http.ResponseWriter
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack is seen too: the status of a connection that was taken over is not gin's.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.seen).Hijack()
}

// refuse is what limits requests if the error of httplimit.New was ignored.
func refuse(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { httplimit.WriteRefusal(w, tiered.Decision{}) })
}

// Key counts a request for what f reads from gin's context: a parameter, or what another middleware
// has set. f returns "" for a request that has no key, and an error for one that gets 400 with its
// text, as [httplimit.KeyFunc] says. It works within [Middleware] only.
func Key(f func(*gin.Context) (string, error)) httplimit.Key {
	if f == nil {
		return httplimit.KeyFunc(nil)
	}
	return httplimit.KeyFunc(func(r *http.Request) (string, error) {
		c, ok := r.Context().Value(contextKey{}).(*gin.Context)
		if !ok {
			return "", nil
		}
		return f(c)
	})
}
