package docs_test

import (
	"context"
	"log"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// askOnce is the code of the page.
func askOnce(ctx context.Context, group *tiered.Group, limiter *tiered.Limiter) bool {
	if err := group.Ping(ctx); err != nil {
		log.Print(err) // Redis is away: the fail mode decides
	}
	allowed := limiter.Allow(ctx, "nightly").Allowed
	return allowed
}

// Processes that ask once and end, such as jobs, share a limit as docs/deploying.md says: if they
// call Ping before. Without it the fail mode decides before they are connected, and says so.
func TestProcessThatAsksOnce(t *testing.T) {
	for _, c := range []struct {
		name           string
		pings          bool
		admitted, told int
	}{
		{"with Ping", true, 10, 0},
		{"without Ping", false, 30, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := miniredis.NewMiniRedis() // over pipes, so that it may run in a bubble
				first := fatal.Get(server.Dial())(t)
				defer func() { _ = first.Close(); server.Close() }()
				wire := faultnet.New(1)
				fatal.If(t, wire.Set(faultnet.Faults{Delay: 3 * time.Millisecond})) // each way
				ctx, admitted, told := context.Background(), 0, 0
				for range 30 {
					var lines strings.Builder
					client := redis.NewClient(&redis.Options{
						MaxRetries: -1, PipelinePoolSize: -1, ContextTimeoutEnabled: true, DialerRetries: 1,
						MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
						Dialer:                   wire.Dialer(func(context.Context, string, string) (net.Conn, error) { return server.Dial() }),
					})
					group, err := tiered.NewGroup(remote.NewRedis(client, nil), &tiered.Options{
						Processes: 10, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
					})
					fatal.If(t, err)
					limiter := fatal.Get(group.NewLimiter(tiered.Policy{Name: "reports", Limit: tiered.PerHour(10)}))(t)
					ask := askOnce
					if !c.pings {
						ask = func(ctx context.Context, _ *tiered.Group, l *tiered.Limiter) bool {
							return l.Allow(ctx, "nightly").Allowed
						}
					}
					if ask(ctx, group, limiter) {
						admitted++
					}
					ended, cancel := context.WithCancel(ctx)
					cancel()
					_ = group.Close(ended) // a process that ends gives nothing back
					_ = client.Close()
					time.Sleep(time.Millisecond) // lines are written by another goroutine
					if strings.Contains(lines.String(), "call Group.Ping before the first decision") {
						told++
					}
				}
				if admitted != c.admitted || told != c.told {
					t.Errorf("%d are admitted and %d told, want %d and %d", admitted, told, c.admitted, c.told)
				}
				time.Sleep(5 * time.Second) // what is under way ends
				synctest.Wait()
			})
		})
	}
}
