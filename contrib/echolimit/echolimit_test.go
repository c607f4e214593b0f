package echolimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/tiered-limiter/tiered-limiter/contrib/echolimit"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/must"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The key is read from echo's context. A mistake is refused.
func TestKey(t *testing.T) {
	limiter := groups.Limiter(t, tiered.Policy{Name: "per-tenant", Limit: tiered.PerHour(2)})
	limit := must.Get(httplimit.New([]httplimit.Rule{{
		Limiter: limiter, Missing: httplimit.Refuse,
		Key: echolimit.Key(func(c echo.Context) (string, error) { return c.Param("tenant") + c.Get("suffix").(string), nil }),
	}}, nil))(t)
	served := 0
	e := echo.New()
	suffix := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("suffix", "/eu")
			return next(c)
		}
	}
	e.GET("/:tenant", func(c echo.Context) error {
		served++
		return c.String(http.StatusOK, "hello "+c.Param("tenant"))
	}, suffix, echolimit.Middleware(limit))
	e.GET("/nil/limit", func(echo.Context) error { served++; return nil }, echolimit.Middleware(nil))
	for i, want := range []struct {
		path, body, remaining string
		status                int
	}{
		{"/acme", "hello acme", "1", 200},
		{"/acme", "hello acme", "0", 200},
		{"/acme", "Rate limit exceeded.\n", "0", 429},
		{"/other", "hello other", "1", 200},
		{"/nil/limit", "The service cannot accept the request now. Try again later.\n", "", 503},
	} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, want.path, nil))
		if w.Code != want.status || w.Body.String() != want.body || w.Header().Get("X-RateLimit-Remaining") != want.remaining {
			t.Errorf("request %d: %d %q %v, want %+v", i, w.Code, w.Body, w.Header(), want)
		}
	}
	if served != 3 {
		t.Errorf("the handler ran %d times, want 3", served)
	}
	if _, err := httplimit.New([]httplimit.Rule{{Limiter: limiter, Key: echolimit.Key(nil), Missing: httplimit.Refuse}}, nil); err == nil {
		t.Error("a nil function is accepted")
	}
}
