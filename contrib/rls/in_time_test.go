package rls_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
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

// While Redis is frozen a call is answered before Envoy gives it up, whatever Envoy's timeout is:
// 20 ms by default.
func TestAnswerComesBeforeEnvoysTimeout(t *testing.T) {
	descriptor := func(user string, hits uint64, back bool) *ratelimit.RateLimitDescriptor {
		return &ratelimit.RateLimitDescriptor{
			Entries:        []*ratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: user}},
			HitsAddend:     &wrapperspb.UInt64Value{Value: hits},
			IsNegativeHits: back,
		}
	}
	// What looks, looks at the same time, when the others are decided.
	steps := []int{1, 1, 1, 2}
	for _, together := range []bool{false, true} {
		for _, timeout := range []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				group := testgroup.New(t, frozen{remote.NewMemory()}, &tiered.Options{Budget: defaults.Budget, Logger: slog.New(slog.DiscardHandler)})
				s := fatal.Get(rls.New(group, &rls.Options{Together: together}))(t)
				use(t, s, "domain: shop\ndescriptors:\n  - {key: user, tiered: {algorithm: token bucket}, rate_limit: {unit: second, requests_per_unit: 100}}\n")
				for i, d := range [][]*ratelimit.RateLimitDescriptor{
					{descriptor("a", 1, false)},
					{descriptor("b", 1, false), descriptor("c", 2, false)},
					{descriptor("d", 0, false), descriptor("e", 0, false), descriptor("f", 0, false)},
					{descriptor("g", 1, false), descriptor("h", 0, false), descriptor("i", 0, false)},
				} {
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					longest, left := time.Duration(0), timeout
					for range steps[i] {
						longest += min(defaults.Budget, left-min(left/2, 10*time.Millisecond))
						left = timeout - longest
					}
					start := time.Now()
					_, err := s.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop", Descriptors: d})
					if took := time.Since(start); err != nil || took > longest {
						t.Errorf("call %d, together %v: %v after %v of %v", i, together, err, took, timeout)
					}
					cancel()
				}
			})
		}
	}
}
