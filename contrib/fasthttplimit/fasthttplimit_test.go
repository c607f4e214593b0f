package fasthttplimit

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMiddleware(t *testing.T) {
	store := remote.NewMemory()
	limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = limiter.Close(t.Context()) }()
	user := func(c *fasthttp.RequestCtx) string { return string(c.Request.Header.Peek("X-User")) }
	limit, err := New(limiter, user)
	if err != nil {
		t.Fatal(err)
	}
	listener := fasthttputil.NewInmemoryListener()
	defer func() { _ = listener.Close() }()
	server := &fasthttp.Server{Handler: limit(func(c *fasthttp.RequestCtx) { c.SetBodyString("hello") })}
	go func() { _ = server.Serve(listener) }()
	dial := func(context.Context, string, string) (net.Conn, error) { return listener.Dial() }
	client := http.Client{Transport: &http.Transport{DialContext: dial}}
	for i, want := range []struct {
		user, body, remaining, retry string
		status                       int
	}{
		{"ann", "hello", "1", "", 200},
		{"ann", "hello", "0", "", 200},
		{"ann", "Rate limit exceeded.\n", "0", "1800", 429},
		{"bob", "hello", "1", "", 200},
		{"", "The request does not identify its client.\n", "", "", 400},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://limited/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", want.user)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		h := resp.Header
		if resp.StatusCode != want.status || string(body) != want.body ||
			h.Get("X-RateLimit-Remaining") != want.remaining || h.Get("Retry-After") != want.retry {
			t.Errorf("request %d: %s %q %v, want %+v", i, resp.Status, body, h, want)
		}
	}
	for _, c := range []struct {
		l   *tiered.Limiter
		key func(*fasthttp.RequestCtx) string
	}{{nil, user}, {new(tiered.Limiter), user}, {limiter, nil}} {
		if _, err := New(c.l, c.key); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
