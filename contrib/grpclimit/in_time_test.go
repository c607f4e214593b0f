package grpclimit_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// frozen is a store that answers nothing.
type frozen struct{ *remote.Memory }

func (frozen) Run(_ context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	time.Sleep(timeout)
	for i := range calls {
		results[i] = remote.Result{Err: context.DeadlineExceeded}
	}
}

// While Redis is frozen a call with a deadline is decided before it, so its handler has time left.
func TestDecisionComesBeforeTheDeadline(t *testing.T) {
	for _, rules := range []int{1, 2} {
		for _, left := range []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				g := testgroup.New(t, frozen{remote.NewMemory()}, &tiered.Options{Budget: defaults.Budget, Logger: slog.New(slog.DiscardHandler)})
				var all []grpclimit.Rule
				for _, name := range []string{"a", "b"}[:rules] {
					l := testgroup.NewLimiter(t, g, tiered.Policy{Name: name, Limit: tiered.PerSecond(100)})
					all = append(all, grpclimit.Rule{Limiter: l, Key: grpclimit.PeerIP(), Missing: grpclimit.Together})
				}
				s := fatal.Get(grpclimit.New(all, nil))(t)
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, func(ctx context.Context, _ any) (any, error) {
					return nil, ctx.Err()
				})
				if err != nil {
					t.Errorf("%d rules, %v left: %v", rules, left, err)
				}
			})
		}
	}
}
