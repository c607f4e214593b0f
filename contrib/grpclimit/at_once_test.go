package grpclimit_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// TestAtOnce: a stream has its place until it ends, and a call until its handler returns or panics.
func TestAtOnce(t *testing.T) {
	g, _ := group(t)
	places, err := atonce.New(g, atonce.Policy{Name: "running", Places: 1})
	if err != nil {
		t.Fatal(err)
	}
	rate := limiter(t, g, "rate", tiered.PerHour(2))
	rule := perUser(rate)
	rule.AtOnce = places
	s := server(t, nil, rule)
	c := dial(t, serve(t, &service{}, s.ServerOptions()...))
	running := func() int64 { return places.Stats().Running }

	ctx, cancel := context.WithCancel(as(t, "alice"))
	defer cancel()
	stream, err := c.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if a := call(as(t, "alice"), c); a.code != codes.ResourceExhausted || a.status.Message() != "Too many calls at the same time." {
		t.Errorf("beside a stream: %v", a.status)
	} else if q := quota(a.status); q != nil {
		t.Errorf("places are no quota: %v", q)
	}
	if n := left(rate, "alice"); n != 1 {
		t.Errorf("a call without a place took a token: %d are left", n)
	}
	if a := call(as(t, "bob"), c); a.code != codes.OK {
		t.Errorf("another user: %v", a.status)
	}
	_ = stream.CloseSend()
	eventually(t, "the stream has its place", func() bool { return running() == 0 })
	if a := call(as(t, "alice"), c); a.code != codes.OK {
		t.Errorf("after the stream: %v", a.status)
	}
	if a := call(as(t, "alice"), c); a.code != codes.ResourceExhausted || a.status.Message() != "Rate limit exceeded." {
		t.Errorf("over the rate limit: %v", a.status)
	}
	eventually(t, "places are missing", func() bool { return running() == 0 })

	func() {
		defer func() {
			if recover() == nil {
				t.Error("the handler was not called")
			}
		}()
		_, _ = s.Unary(from(t, "192.0.2.1:5", "x-user", "carol"), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
			if running() != 1 {
				t.Errorf("%d run", running())
			}
			panic("handler")
		})
	}()
	if running() != 0 {
		t.Errorf("after a panic %d run", running())
	}
	rule.Messages = true
	if _, err := grpclimit.New([]grpclimit.Rule{rule}, nil); err == nil {
		t.Error("AtOnce with Messages was taken")
	}
	if _, err := grpclimit.NewClient([]grpclimit.Rule{{AtOnce: places, Limiter: rate, Key: rule.Key, Missing: grpclimit.Refuse}}, nil); err == nil {
		t.Error("AtOnce of a client was taken")
	}
}
