package fasthttplimit_test

import (
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/contrib/fasthttplimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A limit that could not be made lets nothing pass, nor does a URL that it cannot read.
func TestMiddleware(t *testing.T) {
	l := testgroup.Limiter(t, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)})
	user := fasthttplimit.Key(func(c *fasthttp.RequestCtx) (string, error) {
		return string(c.QueryArgs().Peek("user")), nil
	})
	limit := fatal.Get(httplimit.New([]httplimit.Rule{{Limiter: l, Key: user, Missing: httplimit.Refuse}}, nil))(t)
	served := fasthttplimit.Middleware(limit)(func(c *fasthttp.RequestCtx) { c.SetStatusCode(fasthttp.StatusNoContent) })
	for _, c := range []struct {
		uri     string
		handler fasthttp.RequestHandler
		status  int
	}{
		{"/?user=ann", served, fasthttp.StatusNoContent},
		{"/?user=bob", served, fasthttp.StatusNoContent},
		{"/?user=ann", served, fasthttp.StatusNoContent},
		{"/?user=ann", served, fasthttp.StatusTooManyRequests},
		{"/?user=bob", served, fasthttp.StatusNoContent},
		{"/?user=", served, fasthttp.StatusBadRequest},
		{"/%zz?user=eve", served, fasthttp.StatusBadRequest},
		{"//x/..//?user=eve", served, fasthttp.StatusNoContent},
		{"/?user=eve", fasthttplimit.Middleware(limit)(nil), fasthttp.StatusNotFound},
	} {
		ctx := new(fasthttp.RequestCtx)
		ctx.Request.SetRequestURI(c.uri)
		if c.handler(ctx); ctx.Response.StatusCode() != c.status {
			t.Errorf("%s: status %d, want %d", c.uri, ctx.Response.StatusCode(), c.status)
		}
	}
	if fasthttplimit.Context(new(fasthttp.RequestCtx)) == nil {
		t.Error("a request that no Middleware has seen has no context")
	}
}
