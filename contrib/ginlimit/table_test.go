package ginlimit_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/tiered-limiter/tiered-limiter/contrib/ginlimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/adapters"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The table of behaviors that docs/http.md shows: the column of gin.
func TestTableOfFrameworks(t *testing.T) {
	gin.SetMode(gin.TestMode)
	adapters.Play(t, "gin", func(t *testing.T, app adapters.App, ln net.Listener) func() error {
		limit := app.Limit(t, func(f func(adapters.Request) (string, error)) httplimit.Key {
			return ginlimit.Key(func(c *gin.Context) (string, error) { return f(request{c}) })
		})
		g := gin.New()
		g.Use(func(c *gin.Context) {
			defer func() {
				v := recover()
				if v != nil {
					c.AbortWithStatus(http.StatusInternalServerError)
				}
				seen := adapters.Seen{Status: c.Writer.Status(), Written: c.Writer.Written(), Panic: v}
				if last := c.Errors.Last(); last != nil {
					seen.Err = last.Err
				}
				app.After(seen)
			}()
			app.Before(request{c})
			c.Writer = other{ResponseWriter: c.Writer}
			c.Next()
		}, ginlimit.Middleware(limit))
		g.GET("/", func(c *gin.Context) {
			if err := app.Handler(request{c}); err != nil {
				_ = c.Error(err)
			}
		})
		return adapters.ServeHTTP(g, ln)
	})
	adapters.CheckNilKey(t, ginlimit.Key(nil))
}

// other is a writer that another middleware has put in place. It cannot be compared.
type other struct {
	gin.ResponseWriter
	_ []string
}

type request struct{ c *gin.Context }

func (r request) Context() context.Context { return r.c.Request.Context() }

func (r request) With(key, value string) {
	r.c.Request = r.c.Request.WithContext(context.WithValue(r.Context(), adapters.Key(key), value))
}

func (r request) Value(key string) any { return r.Context().Value(adapters.Key(key)) }

func (r request) Answer(status int, body string) {
	if body == "" {
		r.c.Status(status)
		return
	}
	r.c.String(status, body)
}

func (r request) Stream(write func(func(string))) { adapters.Stream(r.c.Writer, write) }

func (r request) Hijack(use func(net.Conn)) { adapters.Hijack(r.c.Writer, use) }
