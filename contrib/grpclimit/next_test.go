package grpclimit_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A rule that stands in for another one counts a call only if that has no key for it, whichever of
// the rules skips the call. All of them are settled by the name of their policy.
func TestNextStandsIn(t *testing.T) {
	g, _ := group(t)
	users, guests := limiter(t, g, "users", tiered.PerHour(100)), limiter(t, g, "guests", tiered.PerHour(100))
	rules := []grpclimit.Rule{
		{Limiter: users, Key: grpclimit.Metadata("user"), Missing: grpclimit.Next, Skip: func(ctx context.Context, _ grpclimit.Call) bool {
			return len(metadata.ValueFromIncomingContext(ctx, "free")) > 0
		}},
		{Limiter: users, Key: grpclimit.Metadata("other"), Missing: grpclimit.Next},
		{Limiter: guests, Key: grpclimit.Metadata("guest"), Missing: grpclimit.Refuse},
	}
	s := server(t, &grpclimit.Options{Settle: true}, rules...)
	for _, c := range []struct {
		fields []string
		code   codes.Code
		took   map[string]int64 // of a key, with the cost that is known afterwards
	}{
		{[]string{"user", "ann"}, codes.OK, map[string]int64{"ann": 3}},
		{[]string{"user", "ann", "other", "bob", "guest", "cid"}, codes.OK, map[string]int64{"ann": 3}},
		{[]string{"other", "bob", "guest", "cid"}, codes.OK, map[string]int64{"bob": 3}},
		{[]string{"guest", "cid"}, codes.OK, map[string]int64{"cid": 5}},
		{nil, codes.InvalidArgument, nil},
		{[]string{"user", "ann", "free", "1", "guest", "cid"}, codes.OK, nil},
		{[]string{"free", "1", "guest", "cid"}, codes.OK, map[string]int64{"cid": 5}},
	} {
		of := map[string]*tiered.Limiter{"ann": users, "bob": users, "cid": guests}
		before := map[string]int64{}
		for key, l := range of {
			before[key] = left(l, key)
		}
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(c.fields...))
		_, err := s.Unary(ctx, &pb.SimpleRequest{}, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(ctx context.Context, _ any) (any, error) {
			return nil, grpclimit.Settle(ctx, map[string]int64{"users": 3, "guests": 5})
		})
		if status.Code(err) != c.code {
			t.Errorf("%q: %v, want %v", c.fields, err, c.code)
		}
		for key, l := range of {
			if took := before[key] - left(l, key); took != c.took[key] {
				t.Errorf("%q: %d tokens of %s, want %d", c.fields, took, key, c.took[key])
			}
		}
	}
	rules[0].Messages, rules[2].Missing, rules[1].Missing = true, grpclimit.Next, grpclimit.Exempt
	rules = append(rules[:3:3], grpclimit.Rule{Limiter: users, Key: grpclimit.PeerIP(), Missing: grpclimit.Next})
	_, err := grpclimit.New(rules, nil)
	for _, want := range []string{
		"rules[0].Missing is Next: must be another one, or both rules must count messages, or none",
		`rules[3].Limiter has policy "users", as rules[1] has`, "rules[3].Missing is Next: must be Refuse, Exempt or Together",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
