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

// A rule whose calls carry limits needs a policy that can have them. New says which field is in the way.
func TestPolicyThatCarriesNoLimit(t *testing.T) {
	l := groups.Limiter(t, tiered.Policy{Name: "api", Limit: tiered.PerSecond(100), Standing: tiered.StandingOn})
	_, err := grpclimit.New([]grpclimit.Rule{{
		Limiter: l, Key: grpclimit.PeerIP(), Missing: grpclimit.Refuse,
		Limit: func(context.Context, grpclimit.Call) tiered.Limit { return tiered.PerSecond(5) },
	}}, nil)
	if err == nil || !strings.Contains(err.Error(), "rules[0].Limit") ||
		!strings.Contains(err.Error(), "Policy.Standing is on: must be off") {
		t.Error(err)
	}
}

// A call of cost 0 that carries a limit is charged by that limit afterwards, also if it is the first of its key.
func TestFreeCallIsChargedByTheLimitThatItCarries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := groups.Limiter(t, tiered.Policy{Name: "api", Limit: tiered.PerDay(10)})
		s := must.Get(grpclimit.New([]grpclimit.Rule{{
			Limiter: l, Key: grpclimit.Method(), Missing: grpclimit.Refuse,
			Cost:   func(context.Context, grpclimit.Call) int64 { return 0 },
			Limit:  func(context.Context, grpclimit.Call) tiered.Limit { return tiered.PerDay(1000) },
			Actual: func(context.Context, grpclimit.Call, grpclimit.End) int64 { return 400 },
		}}, nil))(t)
		info := &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}
		if _, err := s.Unary(ctx, nil, info, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if d := l.Peek(ctx, "/a.B/C"); d.Remaining != 600 {
			t.Errorf("%d tokens are left, want 600", d.Remaining)
		}
	})
}
