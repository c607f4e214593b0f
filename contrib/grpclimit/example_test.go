package grpclimit_test

import (
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit/grpcfile"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// newServer is all that a server with one policy needs.
func newServer(limiter *tiered.Limiter) (*grpc.Server, error) {
	limit, err := grpclimit.ByPeer(limiter) // by client address, IPv6 by its /64
	if err != nil {
		return nil, err
	}
	return grpc.NewServer(limit.ServerOptions()...), nil
}

func ExampleByPeer() {
	store := remote.NewMemory() // or remote.Open("redis://127.0.0.1:6379", nil)
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "per-ip", Limit: tiered.PerSecond(100)}, nil)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	server, err := newServer(limiter)
	if err != nil {
		panic(err)
	}
	defer server.Stop()
	// pb.RegisterGreeterServer(server, …)
	// server.Serve(listener)

	// Output:
}

// newServerOfFile limits calls by the rules of a policy file.
func newServerOfFile(watcher *policyfile.Watcher) (*grpc.Server, error) {
	limit, err := grpcfile.New(watcher, &grpclimit.Options{Skip: grpclimit.Health}) // package contrib/grpclimit/grpcfile
	if err != nil {
		return nil, err
	}
	return grpc.NewServer(limit.ServerOptions()...), nil
}

var _ = newServerOfFile

func ExampleNew() {
	store := remote.NewMemory()
	defer store.Close()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		panic(err)
	}
	defer group.Close(context.Background())
	perUser, err := group.NewLimiter(tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)})
	if err != nil {
		panic(err)
	}
	perIP, err := group.NewLimiter(tiered.Policy{Name: "per-ip", Limit: tiered.PerHour(100)})
	if err != nil {
		panic(err)
	}
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	limit, err := grpclimit.New([]grpclimit.Rule{
		{Limiter: perUser, Key: grpclimit.Credential("authorization"), Missing: grpclimit.Exempt},
		{Limiter: perIP, Key: grpclimit.ForwardedFor(proxies), Missing: grpclimit.Together},
	}, &grpclimit.Options{Skip: grpclimit.Health})
	if err != nil {
		panic(err)
	}

	// What grpc.NewServer(limit.ServerOptions()...) does with a call:
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer s3cr3t"))
	info := &grpc.UnaryServerInfo{FullMethod: "/greeter.Greeter/Hello"}
	hello := func(context.Context, any) (any, error) { return "hello", nil }
	for range 3 {
		answer, err := limit.Unary(ctx, nil, info, hello)
		fmt.Println(answer, err)
	}
	// Output:
	// hello <nil>
	// hello <nil>
	// <nil> rpc error: code = ResourceExhausted desc = Rate limit exceeded.
}

// A query reserves 100 tokens and pays one for each row of its answer.
func ExampleRule_actual() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "rows", Limit: tiered.PerDay(1000)}, nil)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limit, err := grpclimit.New([]grpclimit.Rule{{
		Limiter: limiter, Key: grpclimit.Metadata("x-user"), Missing: grpclimit.Refuse,
		Cost:   func(context.Context, grpclimit.Call) int64 { return 100 },
		Actual: func(_ context.Context, _ grpclimit.Call, end grpclimit.End) int64 { return end.Sent },
	}}, &grpclimit.Options{
		Counts: func(c codes.Code) bool { return c != codes.Unavailable },
	})
	if err != nil {
		panic(err)
	}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-user", "ann"))
	info := &grpc.UnaryServerInfo{FullMethod: "/db.DB/Query"}
	answer, err := limit.Unary(ctx, nil, info, func(context.Context, any) (any, error) { return "a row", nil })
	fmt.Println(answer, err)
	// Output: a row <nil>
}

// settleInHandler is a handler that knows the cost.
func settleInHandler(ctx context.Context, rows int64) error {
	return grpclimit.Settle(ctx, map[string]int64{"rows": rows})
}

// A client keeps to what another service allows, together with all other processes of its own
// service.
func ExamplePace() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "billing-api", Limit: tiered.PerSecond(50)}, nil)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	pace, err := grpclimit.Pace(limiter, "billing") // calls wait for their turn
	if err != nil {
		panic(err)
	}
	options := append(pace.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("billing:443", options...)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_ = pb.NewTestServiceClient(conn)
	// Output:
}

// inHandler asks in a handler.
func inHandler(ctx context.Context, limiter *tiered.Limiter, user string) error {
	d := limiter.Allow(ctx, user)
	if !d.Allowed {
		return grpclimit.Status(d).Err() // code, text and details
	}
	return nil
}

func ExampleStatus() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(1)}, nil)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	for range 2 {
		fmt.Println(inHandler(context.Background(), limiter, "ann"))
	}
	fmt.Println(settleInHandler(context.Background(), 7))
	// Output:
	// <nil>
	// rpc error: code = ResourceExhausted desc = Rate limit exceeded.
	// grpclimit: the context is not of a call that was counted with Options.Settle
}
