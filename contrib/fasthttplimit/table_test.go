package fasthttplimit_test

import (
	"bufio"
	"context"
	"net"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/contrib/fasthttplimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/adapters"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The table of behaviors that docs/http.md shows: the column of fasthttp.
func TestTableOfFrameworks(t *testing.T) {
	adapters.Play(t, "fasthttp", func(t *testing.T, app adapters.App, ln net.Listener) func() error {
		limit := app.Limit(t, func(f func(adapters.Request) (string, error)) httplimit.Key {
			return fasthttplimit.Key(func(c *fasthttp.RequestCtx) (string, error) { return f(request{c}) })
		})
		limited := fasthttplimit.Middleware(limit)(func(c *fasthttp.RequestCtx) {
			if string(c.Path()) != "/" {
				c.NotFound()
				return
			}
			_ = app.Handler(request{c})
		})
		s := &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) {
			defer func() {
				v := recover()
				if v != nil {
					c.Error("failed", fasthttp.StatusInternalServerError)
				}
				r := &c.Response
				app.After(adapters.Seen{Status: r.StatusCode(), Written: r.StatusCode() != fasthttp.StatusOK, Panic: v})
			}()
			app.Before(request{c})
			limited(c)
		}}
		done := make(chan error, 1)
		go func() { done <- s.Serve(ln) }()
		return func() error {
			if err := s.Shutdown(); err != nil {
				return err
			}
			return <-done
		}
	})
	adapters.CheckNilKey(t, fasthttplimit.Key(nil))
}

type request struct{ c *fasthttp.RequestCtx }

func (r request) Context() context.Context { return fasthttplimit.Context(r.c) }

func (r request) With(key, value string) { r.c.SetUserValue(adapters.Key(key), value) }

func (r request) Value(key string) any { return r.c.UserValue(adapters.Key(key)) }

func (r request) Answer(status int, body string) {
	r.c.SetStatusCode(status)
	r.c.SetBodyString(body)
}

func (r request) Stream(write func(func(string))) {
	r.c.SetBodyStreamWriter(func(w *bufio.Writer) {
		write(func(part string) {
			_, _ = w.WriteString(part)
			_ = w.Flush()
		})
	})
}

func (r request) Hijack(use func(net.Conn)) {
	r.c.HijackSetNoResponse(true)
	r.c.Hijack(use)
}
