package tiered_test

import (
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Far from Redis a new connection takes longer than Timeout: four round trips of 20 ms, with a Timeout of 50 ms.
// The first calls fail, and later ones use the connections that the first calls have made.
func TestFarFromRedis(t *testing.T) {
	distance := faultnet.New(1)
	if err := distance.Set(faultnet.Faults{Delay: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(redistest.Start(t).Options(redis.Options{
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		Dialer: distance.Dialer((&net.Dialer{}).DialContext),
	}))
	t.Cleanup(func() { _ = client.Close() })
	l := limiter(t, remote.NewRedis(client, nil), tiered.Policy{Name: "far", Limit: tiered.PerSecond(1e6)}, nil)
	var d tiered.Decision
	granted := 0 // in a row
	for end := time.Now().Add(10 * time.Second); granted < 500 && time.Now().Before(end); {
		if d = l.Allow(t.Context(), "k"); d.Reason == tiered.Granted {
			granted++
		} else {
			granted = 0
		}
		time.Sleep(time.Millisecond)
	}
	if granted < 500 {
		t.Errorf("the last Decision is %+v, want Redis to decide", d)
	}
}
