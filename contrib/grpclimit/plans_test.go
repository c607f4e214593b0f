package grpclimit_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/must"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A call goes by its plan, and is charged by it afterwards. New says which field of a rule does not go with plans.
func TestRuleWithPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := groups.Limiter(t, tiered.Policy{
			Name: "api", Limit: tiered.PerDay(100), Plans: tiered.Plans{"pro": tiered.PerDay(1000)},
		})
		plan := ""
		for _, cost := range []int64{0, 1} {
			rule := grpclimit.Rule{
				Limiter: l, Key: grpclimit.Method(), Missing: grpclimit.Refuse,
				Cost:   func(context.Context, grpclimit.Call) int64 { return cost },
				Plan:   func(context.Context, grpclimit.Call) string { return plan },
				Actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 40 },
			}
			s := must.Get(grpclimit.New([]grpclimit.Rule{rule}, nil))(t)
			for name, left := range map[string]int64{"": 60, "pro": 960, "gold": 60} {
				plan = name
				info := &grpc.UnaryServerInfo{FullMethod: "/a.B/C" + name + []string{"free", "dear"}[cost]}
				if _, err := s.Unary(ctx, nil, info, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				if d := l.Peek(ctx, info.FullMethod); d.Remaining != left {
					t.Errorf("plan %q: %d tokens are left, want %d", name, d.Remaining, left)
				}
			}
			rule.Limit = func(context.Context, grpclimit.Call) tiered.Limit { return tiered.Limit{} }
			if _, err := grpclimit.New([]grpclimit.Rule{rule}, nil); err == nil || !strings.Contains(err.Error(), "rules[0].Limit is set: must be nil if Plan is set") {
				t.Error(err)
			}
		}
		if n := l.Group().Stats().Policies["api"].Faults.UnknownPlans; n != 2 {
			t.Errorf("%d unknown plans, want 2", n)
		}
	})
}
