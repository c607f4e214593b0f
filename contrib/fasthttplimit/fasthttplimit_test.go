package fasthttplimit_test

import (
	"errors"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/contrib/fasthttplimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Mistakes are refused, and a user's test of a handler needs no server.
func TestWithoutServer(t *testing.T) {
	limiter := testgroup.Limiter(t, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)})
	user := func(*fasthttp.RequestCtx) (string, error) { return "ann", nil }
	for _, c := range []struct {
		l   *tiered.Limiter
		key func(*fasthttp.RequestCtx) (string, error)
	}{{nil, user}, {new(tiered.Limiter), user}, {limiter, nil}} {
		if _, err := fasthttplimit.New(c.l, c.key); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	limit := fatal.Get(fasthttplimit.New(limiter, user))(t)
	for _, c := range []struct {
		handler fasthttp.RequestHandler
		status  int
	}{{nil, fasthttp.StatusNotFound}, {func(c *fasthttp.RequestCtx) { c.SetStatusCode(fasthttp.StatusNoContent) }, fasthttp.StatusNoContent}} {
		ctx := new(fasthttp.RequestCtx)
		if limit(c.handler)(ctx); ctx.Response.StatusCode() != c.status {
			t.Errorf("status %d, want %d", ctx.Response.StatusCode(), c.status)
		}
	}
	limit = fatal.Get(fasthttplimit.New(limiter, func(*fasthttp.RequestCtx) (string, error) { return "ann", errors.New("X-User must be a number") }))(t)
	ctx := new(fasthttp.RequestCtx)
	limit(func(*fasthttp.RequestCtx) { t.Error("a request is served whose key is an error") })(ctx)
	const text = "The request does not identify its client: X-User must be a number\n"
	if left := limiter.Peek(t.Context(), "ann").Remaining; ctx.Response.StatusCode() != fasthttp.StatusBadRequest ||
		string(ctx.Response.Body()) != text || left != 0 {
		t.Errorf("%d %q, and %d are left", ctx.Response.StatusCode(), ctx.Response.Body(), left)
	}
}
