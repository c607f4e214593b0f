package fiberlimit_test

import (
	"bufio"
	"context"
	"net"
	"testing"

	"github.com/gofiber/fiber/v2"

	"github.com/tiered-limiter/tiered-limiter/contrib/fiberlimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/adapters"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The table of behaviors that docs/http.md shows: the column of fiber.
func TestTableOfFrameworks(t *testing.T) {
	adapters.Play(t, "fiber", func(t *testing.T, app adapters.App, ln net.Listener) func() error {
		limit := app.Limit(t, func(f func(adapters.Request) (string, error)) httplimit.Key {
			return fiberlimit.Key(func(c *fiber.Ctx) (string, error) { return f(request{c}) })
		})
		f := fiber.New(fiber.Config{DisableStartupMessage: true})
		f.Use(func(c *fiber.Ctx) (err error) {
			defer func() {
				v := recover()
				if v != nil {
					err = c.SendStatus(fiber.StatusInternalServerError)
				}
				r := c.Response()
				app.After(adapters.Seen{Status: r.StatusCode(), Written: r.StatusCode() != fiber.StatusOK, Err: err, Panic: v})
			}()
			app.Before(request{c})
			return c.Next()
		}, fiberlimit.Middleware(limit))
		f.Get("/", func(c *fiber.Ctx) error { return app.Handler(request{c}) })
		done := make(chan error, 1)
		go func() { done <- f.Listener(ln) }()
		return func() error {
			if err := f.Shutdown(); err != nil {
				return err
			}
			return <-done
		}
	})
	adapters.CheckNilKey(t, fiberlimit.Key(nil))
}

type request struct{ c *fiber.Ctx }

func (r request) Context() context.Context { return r.c.UserContext() }

func (r request) With(key, value string) {
	r.c.SetUserContext(context.WithValue(r.Context(), adapters.Key(key), value))
}

func (r request) Value(key string) any { return r.Context().Value(adapters.Key(key)) }

func (r request) Answer(status int, body string) { _ = r.c.Status(status).SendString(body) }

func (r request) Stream(write func(func(string))) {
	r.c.Context().SetBodyStreamWriter(func(w *bufio.Writer) {
		write(func(part string) {
			_, _ = w.WriteString(part)
			_ = w.Flush()
		})
	})
}

func (r request) Hijack(use func(net.Conn)) {
	r.c.Context().HijackSetNoResponse(true)
	r.c.Context().Hijack(use)
}
