package routers

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Each of the routers serves two requests of a user and refuses the third, with the fields that net/http would send; its
// own handler does not run then.
func TestRouters(t *testing.T) {
	for name, router := range map[string]func(Middleware) http.Handler{"chi": Chi, "echo": Echo, "gin": Gin} {
		t.Run(name, func(t *testing.T) {
			store := remote.NewMemory()
			limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = limiter.Close(ctx)
			}()
			limit, err := httplimit.New([]httplimit.Rule{{
				Limiter: limiter, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse,
			}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(router(limit))
			defer server.Close()
			for i, want := range []struct {
				user, body, remaining, retry string
				status                       int
			}{
				{"ann", "hello acme", "1", "", 200},
				{"ann", "hello acme", "0", "", 200},
				{"ann", "Rate limit exceeded.\n", "0", "1800", 429},
				{"bob", "hello acme", "1", "", 200},
				{"", "The request does not identify its client.\n", "", "", 400},
			} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/tenants/acme", nil)
				if err != nil {
					t.Fatal(err)
				}
				if want.user != "" {
					r.Header.Set("X-User", want.user)
				}
				resp, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				h := resp.Header
				if resp.StatusCode != want.status || string(body) != want.body || h.Get("X-RateLimit-Remaining") != want.remaining || h.Get("Retry-After") != want.retry {
					t.Errorf("request %d: %s %q %v, want %+v", i, resp.Status, body, h, want)
				}
			}
		})
	}
}
