package echolimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/spelling"
)

// patterns are those of echo for the routes of spelling, by their matches in a policy file.
var patterns = map[string]string{
	"/downloads/": "/downloads/*", "POST /login": "/login", "/users/{id}": "/users/:id",
	"/users/{id}/files/{rest...}": "/users/:id/files/*", "/Reports/q": "/Reports/q", "/{$}": "/",
}

// However a URL is spelled: what echo serves behind a policy file has counted for its route.
func TestWhatEchoServesIsLimited(t *testing.T) {
	servers := map[string]func(*http.Request) string{}
	for name, pre := range map[string][]echo.MiddlewareFunc{
		"plain": nil, "RemoveTrailingSlash": {middleware.RemoveTrailingSlash()}, "AddTrailingSlash": {middleware.AddTrailingSlash()},
	} {
		e, ran := echo.New(), ""
		e.Pre(pre...)
		for _, r := range spelling.Routes {
			handler := func(echo.Context) error {
				ran = r.Match
				return nil
			}
			e.Add(r.Method, patterns[r.Match], handler)
			if name == "AddTrailingSlash" && r.Match != "/{$}" {
				e.Add(r.Method, patterns[r.Match]+"/", handler)
			}
		}
		servers[name] = func(r *http.Request) string {
			ran = ""
			e.ServeHTTP(httptest.NewRecorder(), r)
			return ran
		}
	}
	spelling.Play(t, 6000, servers)
}
