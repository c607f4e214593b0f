// Grpc is a gRPC service with a limit for each client. It serves grpc.health.v1.Health, whose
// checks are not limited, and the interop TestService in place of a service of yours.
//
//	go run -C examples/services ./grpc
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/examples/services/service"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func main() {
	addr := flag.String("addr", "localhost:8081", "where to listen")
	limit := flag.String("limit", "100/s burst 200", "of each client")
	redis := flag.String("redis", os.Getenv("REDIS_URL"), "URL of the Redis that the processes share")
	processes := flag.Int("processes", 1, "the fewest processes that run")
	flag.Parse()
	err := service.Run(*redis, *processes, func(ctx context.Context, group *tiered.Group) error {
		return serve(ctx, group, *addr, *limit)
	})
	if err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, group *tiered.Group, addr, text string) error {
	limit, err := tiered.ParseLimit(text)
	if err != nil {
		return err
	}
	perClient, err := group.NewLimiter(tiered.Policy{Name: "per-client", Limit: limit})
	if err != nil {
		return err
	}
	limits, err := grpclimit.New(
		[]grpclimit.Rule{{Limiter: perClient, Key: grpclimit.Credential("authorization"), Missing: grpclimit.Refuse}},
		&grpclimit.Options{Skip: grpclimit.Health})
	if err != nil {
		return err
	}
	server := grpc.NewServer(limits.ServerOptions()...)
	pb.RegisterTestServiceServer(server, greeter{})
	state := health.NewServer()
	healthpb.RegisterHealthServer(server, state)
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		state.Shutdown() // not healthy any more
		hurry := time.AfterFunc(15*time.Second, server.Stop)
		defer hurry.Stop()
		server.GracefulStop()
	}()
	return server.Serve(listener)
}

// greeter is a service of yours.
type greeter struct {
	pb.UnimplementedTestServiceServer
}

func (greeter) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Username: "hello"}, nil
}
