// Package fiberlimit limits the requests of a fiber application.
//
//	limit, err := fiberlimit.New(limiter, func(c *fiber.Ctx) string { return c.Params("tenant") })
//	...
//	app.Get("/tenants/:tenant", limit, handler)
package fiberlimit

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// New returns a handler that takes one token for each request, and answers it if the limiter refuses: with the status,
// the header fields and the text of [httplimit.WriteRefusal]. key returns what a request counts for. A request with an
// empty key gets 400. The key is copied, because fiber uses its buffers again.
func New(l *tiered.Limiter, key func(*fiber.Ctx) string) (fiber.Handler, error) {
	switch {
	case l == nil:
		return nil, errors.New("fiberlimit: limiter is nil: must be set")
	case l.Group() == nil:
		return nil, errors.New("fiberlimit: limiter is zero: must be made by tiered.New or Group.NewLimiter")
	case key == nil:
		return nil, errors.New("fiberlimit: key is nil: must be a function")
	}
	return func(c *fiber.Ctx) error {
		d := l.Allow(c.UserContext(), strings.Clone(key(c)))
		a := answer{c, make(http.Header, 4)}
		if !d.Allowed {
			httplimit.WriteRefusal(a, d)
			return nil
		}
		httplimit.WriteHeaders(a.Header(), d)
		a.copyHeader()
		return c.Next()
	}, nil
}

// answer writes to a fiber response what is written to it.
type answer struct {
	c      *fiber.Ctx
	header http.Header
}

func (a answer) Header() http.Header { return a.header }

func (a answer) WriteHeader(status int) {
	a.c.Status(status)
	a.copyHeader()
}

func (a answer) Write(b []byte) (int, error) { return a.c.Write(b) }

func (a answer) copyHeader() {
	for name, values := range a.header {
		for _, v := range values {
			a.c.Set(name, v)
		}
	}
}
