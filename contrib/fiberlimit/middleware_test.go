package fiberlimit_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/gofiber/fiber/v2"

	"github.com/tiered-limiter/tiered-limiter/contrib/fiberlimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A key may be a parameter of the route, although fiber uses its buffers again, and the rules of a
// policy file limit a fiber application too.
func TestMiddleware(t *testing.T) {
	g := testgroup.New(t, remote.NewMemory(), nil)
	file := filepath.Join(t.TempDir(), "policies.yaml")
	fatal.If(t, os.WriteFile(file, []byte("version: 1\npolicies: [{name: tenant, limit: 2/h}, {name: ip, limit: 1/h}]\n"+
		"http: [{match: GET /file/, limits: [{policy: ip, key: ip}]}]\n"), 0o600))
	w := fatal.Get(policyfile.Watch(file, g, nil))(t)
	defer w.Close()
	l, _ := g.Limiter("tenant")
	tenant := fiberlimit.Key(func(c *fiber.Ctx) (string, error) { return c.Params("tenant"), nil })
	limit := fatal.Get(httplimit.New([]httplimit.Rule{{Limiter: l, Key: tenant, Missing: httplimit.Refuse}}, nil))(t)
	app := fiber.New()
	ok := func(c *fiber.Ctx) error { return c.SendStatus(fiber.StatusNoContent) }
	app.Get("/tenants/:tenant", fiberlimit.Middleware(limit), ok)
	app.Get("/file/*", fiberlimit.Middleware(w.Middleware), ok)
	for _, c := range []struct {
		path   string
		status int
	}{
		{"/tenants/abc", 204},
		{"/tenants/xyz", 204},
		{"/tenants/abc", 204},
		{"/tenants/abc", 429},
		{"/tenants/xyz", 204},
		{"/file/a", 204},
		{"//file/./b", 404}, // fiber does not serve it
		{"/file/%2e/b", 429},
	} {
		r := fatal.Get(app.Test(httptest.NewRequest(http.MethodGet, c.path, nil)))(t)
		if _ = r.Body.Close(); r.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", c.path, r.StatusCode, c.status)
		}
	}
}
