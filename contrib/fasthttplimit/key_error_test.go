package fasthttplimit_test

import (
	"errors"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/tiered-limiter/tiered-limiter/contrib/fasthttplimit"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The error of a key function is answered as package httplimit answers it, and takes nothing.
func TestKeyFunctionMayRefuse(t *testing.T) {
	l := groups.Limiter(t, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)})
	limit, err := fasthttplimit.New(l, func(*fasthttp.RequestCtx) (string, error) { return "ann", errors.New("X-User must be a number") })
	if err != nil {
		t.Fatal(err)
	}
	c, ran := new(fasthttp.RequestCtx), false
	limit(func(*fasthttp.RequestCtx) { ran = true })(c)
	const text = "The request does not identify its client: X-User must be a number\n"
	if ran || c.Response.StatusCode() != fasthttp.StatusBadRequest || string(c.Response.Body()) != text {
		t.Errorf("the handler ran: %v; %d %q", ran, c.Response.StatusCode(), c.Response.Body())
	}
	if d := l.Peek(t.Context(), "ann"); d.Remaining != 2 {
		t.Errorf("%v", d)
	}
}
