package fiberlimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/spelling"
)

// patterns are those of fiber for the routes of spelling, by their matches in a policy file.
var patterns = map[string]string{
	"/downloads/": "/downloads/*", "POST /login": "/login", "/users/{id}": "/users/:id",
	"/users/{id}/files/{rest...}": "/users/:id/files/*", "/Reports/q": "/Reports/q", "/{$}": "/",
}

// However a URL is spelled: what fiber serves behind a policy file has counted for its route,
// whichever of its options about paths are set. fasthttp reads the URL.
func TestWhatFiberServesIsLimited(t *testing.T) {
	servers := map[string]func(*http.Request) string{}
	for options := range 8 {
		config := fiber.Config{StrictRouting: options&1 > 0, CaseSensitive: options&2 > 0, UnescapePath: options&4 > 0}
		app, ran := fiber.New(config), ""
		for _, r := range spelling.Routes {
			app.Add(r.Method, patterns[r.Match], func(*fiber.Ctx) error {
				ran = r.Match
				return nil
			})
		}
		handler := adaptor.FiberApp(app)
		name := fmt.Sprintf("StrictRouting %v, CaseSensitive %v, UnescapePath %v",
			config.StrictRouting, config.CaseSensitive, config.UnescapePath)
		servers[name] = func(r *http.Request) string {
			ran = ""
			handler(httptest.NewRecorder(), r)
			return ran
		}
	}
	spelling.Play(t, 6000, servers)
}
