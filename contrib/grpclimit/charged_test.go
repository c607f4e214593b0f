package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A call goes by its plan or by the limit that it carries, and is charged by that afterwards, also
// if it costs nothing at first and is the first of its key.
func TestCallIsChargedByItsLimit(t *testing.T) {
	for _, c := range []struct {
		name, plan string
		carried    tiered.Limit
		unknown    int64
		left       int64 // after a cost of 40
	}{
		{"no plan", "", tiered.Limit{}, 0, 60},
		{"a plan", "pro", tiered.Limit{}, 0, 960},
		{"an unknown plan", "gold", tiered.Limit{}, 1, 60},
		{"a limit", "", tiered.PerDay(500), 0, 460},
		{"a contract beats a plan", "pro", tiered.PerDay(500), 0, 460},
	} {
		for _, cost := range []int64{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				p := tiered.Policy{Name: "api", Limit: tiered.PerDay(100)}
				rule := grpclimit.Rule{
					Key: grpclimit.Method(), Missing: grpclimit.Refuse,
					Cost:   func(context.Context, grpclimit.Call) int64 { return cost },
					Actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 40 },
				}
				p.Plans = map[string]tiered.Limit{"pro": tiered.PerDay(1000)}
				o := &grpclimit.Options{Plan: func(context.Context, grpclimit.Call) string { return c.plan }}
				rule.Limit = func(context.Context, grpclimit.Call) tiered.Limit { return c.carried }
				rule.Limiter = testgroup.Limiter(t, p)
				handler := func(context.Context, any) (any, error) { return nil, nil }
				fatal.Get(server(t, o, rule).Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, handler))(t)
				time.Sleep(time.Second)
				unknown := rule.Limiter.Group().Stats().Policies["api"].Faults.UnknownPlans
				use := rule.Limiter.For("/a.B/C").WithLimit(c.carried).WithPlan(c.plan)
				if n := use.Peek(t.Context()).Remaining; n != c.left || unknown != c.unknown {
					t.Errorf("%s, cost %d: %d left, %d unknown plans, want %+v", c.name, cost, n, unknown, c)
				}
			})
		}
	}
}

// One function from the call says the plan of all its limits, of a minute and an hour on one key and
// of a month on another policy. It is called once.
func TestOnePlanForAllLimits(t *testing.T) {
	for plan, want := range map[string]int{"": 3, "pro": 5, "deep": 6, "gold": 3} {
		synctest.Test(t, func(t *testing.T) {
			g := testgroup.New(t, remote.NewMemory(), nil)
			rule := func(p tiered.Policy) grpclimit.Rule {
				return grpclimit.Rule{Limiter: testgroup.NewLimiter(t, g, p), Key: grpclimit.Method(), Missing: grpclimit.Refuse}
			}
			fast := rule(tiered.Policy{
				Name: "fast", Limit: tiered.PerMinute(3).And(tiered.PerHour(9)),
				Plans: map[string]tiered.Limit{
					"pro": tiered.PerMinute(9).And(tiered.PerHour(5)), "deep": tiered.PerMinute(9).And(tiered.PerHour(8)),
				},
			})
			month := rule(tiered.Policy{
				Name: "month", Algorithm: tiered.FixedWindow, Limit: tiered.PerMonth(7), Plans: map[string]tiered.Limit{"deep": tiered.PerMonth(6)},
			})
			asked, admitted := 0, 0
			s := server(t, &grpclimit.Options{Plan: func(context.Context, grpclimit.Call) string { asked++; return plan }}, fast, month)
			for range 10 {
				handler := func(context.Context, any) (any, error) { admitted++; return nil, nil }
				_, _ = s.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, handler)
			}
			if admitted != want || asked != 10 {
				t.Errorf("plan %q: %d were admitted, want %d; the plan was asked %d times in 10 calls", plan, admitted, want, asked)
			}
		})
	}
}
