package fiberlimit_test

import (
	"testing"

	"github.com/gofiber/fiber/v2"

	"github.com/tiered-limiter/tiered-limiter/contrib/fiberlimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMistakes(t *testing.T) {
	limiter := testgroup.Limiter(t, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)})
	user := func(c *fiber.Ctx) (string, error) { return c.Get("X-User"), nil }
	for _, c := range []struct {
		l   *tiered.Limiter
		key func(*fiber.Ctx) (string, error)
	}{{nil, user}, {new(tiered.Limiter), user}, {limiter, nil}} {
		if _, err := fiberlimit.New(c.l, c.key); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
