package ginlimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/spelling"
)

// patterns are those of gin for the routes of spelling, by their matches in a policy file.
var patterns = map[string]string{
	"/downloads/": "/downloads/*any", "POST /login": "/login", "/users/{id}": "/users/:id",
	"/users/{id}/files/{rest...}": "/users/:id/files/*rest", "/Reports/q": "/Reports/q", "/{$}": "/",
}

// However a URL is spelled: what gin serves behind a policy file has counted for its route,
// whichever of its options about paths are set.
func TestWhatGinServesIsLimited(t *testing.T) {
	gin.SetMode(gin.TestMode)
	servers := map[string]func(*http.Request) string{}
	for options := range 4 {
		raw, extra := options&1 > 0, options&2 > 0
		g, ran := gin.New(), ""
		g.UseRawPath, g.RemoveExtraSlash = raw, extra
		for _, r := range spelling.Routes {
			g.Handle(r.Method, patterns[r.Match], func(*gin.Context) { ran = r.Match })
		}
		servers[fmt.Sprintf("UseRawPath %v, RemoveExtraSlash %v", raw, extra)] = func(r *http.Request) string {
			ran = ""
			g.ServeHTTP(httptest.NewRecorder(), r)
			return ran
		}
	}
	spelling.Play(t, 6000, servers)
}
