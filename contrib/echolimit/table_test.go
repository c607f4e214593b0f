package echolimit_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/tiered-limiter/tiered-limiter/contrib/echolimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/adapters"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The table of behaviors that docs/http.md shows: the column of echo.
func TestTableOfFrameworks(t *testing.T) {
	adapters.Play(t, "echo", func(t *testing.T, app adapters.App, ln net.Listener) func() error {
		limit := app.Limit(t, func(f func(adapters.Request) (string, error)) httplimit.Key {
			return echolimit.Key(func(c echo.Context) (string, error) { return f(request{c}) })
		})
		e := echo.New()
		e.Logger.SetOutput(failing{t})
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc { // as echo's RequestLogger and Recover
			return func(c echo.Context) (err error) {
				defer func() {
					v := recover()
					if v != nil {
						err = c.NoContent(http.StatusInternalServerError)
					}
					app.After(adapters.Seen{Status: c.Response().Status, Written: c.Response().Committed, Err: err, Panic: v})
				}()
				app.Before(request{c})
				return next(c)
			}
		}, echolimit.Middleware(limit))
		e.GET("/", func(c echo.Context) error { return app.Handler(request{c}) })
		return adapters.ServeHTTP(e, ln)
	})
	adapters.CheckNilKey(t, echolimit.Key(nil))
}

// failing is the output of echo's logger, which warns of a second answer.
type failing struct{ t *testing.T }

func (f failing) Write(b []byte) (int, error) {
	f.t.Errorf("echo logs %s", b)
	return len(b), nil
}

type request struct{ c echo.Context }

func (r request) Context() context.Context { return r.c.Request().Context() }

func (r request) With(key, value string) {
	r.c.SetRequest(r.c.Request().WithContext(context.WithValue(r.Context(), adapters.Key(key), value)))
}

func (r request) Value(key string) any { return r.Context().Value(adapters.Key(key)) }

func (r request) Answer(status int, body string) {
	if body == "" {
		_ = r.c.NoContent(status)
		return
	}
	_ = r.c.String(status, body)
}

func (r request) Stream(write func(func(string))) { adapters.Stream(r.c.Response(), write) }

func (r request) Hijack(use func(net.Conn)) { adapters.Hijack(r.c.Response(), use) }
