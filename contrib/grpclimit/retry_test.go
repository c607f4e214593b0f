package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// retryPolicy is a client that retries up to three times. Without a pushback it waits for about the
// backoff.
func retryPolicy(backoff string) grpc.DialOption {
	return grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "` + backoff + `", "maxBackoff": "` + backoff + `", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]}`)
}

// attempts counts what reaches a server, before other interceptors.
func attempts(n *int) grpc.ServerOption {
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (
		any, error,
	) {
		*n++
		return h(ctx, req)
	})
}

// A client with a retry policy comes back when the server says: not later, as its own backoff would
// be, and not sooner.
func TestRetryObeysPushback(t *testing.T) {
	for backoff, why := range map[string]string{"50s": "too late", "0.001s": "too soon"} {
		g, _ := group(t)
		s := server(t, nil, perUser(limiter(t, g, "user", tiered.Every(500*time.Millisecond))))
		n := 0
		o := append([]grpc.ServerOption{attempts(&n)}, s.ServerOptions()...)
		c := dial(t, serve(t, &service{}, o...), retryPolicy(backoff))
		begin := time.Now()
		for range 2 {
			if a := call(as(t, "ann"), c); a.code != codes.OK {
				t.Errorf("backoff %s: %v", backoff, a.status)
			}
		}
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("backoff %s: it took %v", backoff, d)
		}
		// The second call needs two attempts. A third is possible if this machine is so slow that
		// the first retry comes before the token of the server's clock.
		if n < 3 || n > 4 {
			t.Errorf("backoff %s: %d attempts, want 3: the client came %s", backoff, n, why)
		}
	}
}

// A client does not retry what never succeeds.
func TestNoRetryAboveBurst(t *testing.T) {
	g, _ := group(t)
	rule := perUser(limiter(t, g, "user", tiered.PerHour(1)))
	rule.Cost = func(context.Context, grpclimit.Call) int64 { return 2 }
	n := 0
	o := append([]grpc.ServerOption{attempts(&n)}, server(t, nil, rule).ServerOptions()...)
	c := dial(t, serve(t, &service{}, o...), retryPolicy("0.001s"))
	if a := call(as(t, "ann"), c); a.code != codes.ResourceExhausted || n != 1 {
		t.Errorf("%v after %d attempts, want one", a.status, n)
	}
}

// The interceptor does not stop a client from retrying what the handler answered.
func TestRetryOfHandler(t *testing.T) {
	g, _ := group(t)
	impl := &service{}
	impl.unary = func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		if impl.calls.Load() < 3 {
			return nil, status.Error(codes.Unavailable, "not yet")
		}
		return &pb.SimpleResponse{}, nil
	}
	s := server(t, nil, perUser(limiter(t, g, "user", tiered.PerHour(10))))
	c := dial(t, serve(t, impl, s.ServerOptions()...), retryPolicy("0.001s"))
	if a := call(as(t, "ann"), c); a.code != codes.OK || impl.calls.Load() != 3 {
		t.Errorf("%v after %d attempts, want OK after three", a.status, impl.calls.Load())
	}
}

// A stream that is refused at its begin is retried too.
func TestRetryOfStream(t *testing.T) {
	g, _ := group(t)
	s := server(t, nil, perUser(limiter(t, g, "user", tiered.Every(50*time.Millisecond))))
	c := dial(t, serve(t, &service{}, s.ServerOptions()...), retryPolicy("50s"))
	for range 2 {
		st := fatal.Get(c.FullDuplexCall(as(t, "ann")))(t)
		_ = st.Send(&pb.StreamingOutputCallRequest{})
		_ = st.CloseSend()
		fatal.Get(st.Recv())(t)
	}
}
