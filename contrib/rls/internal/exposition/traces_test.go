package exposition_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/exposition"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// refuser is a service that refuses all.
type refuser struct {
	pb.UnimplementedRateLimitServiceServer
}

func (refuser) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT}, nil
}

// received is a collector of traces by gRPC.
type received struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r received) Export(_ context.Context, is *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.got <- is
	return &collector.ExportTraceServiceResponse{}, nil
}

// serve serves gRPC on loopback until the test ends, and returns its address.
func serve(t *testing.T, register func(*grpc.Server), o ...grpc.ServerOption) (address string, stop func()) {
	t.Helper()
	at := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := grpc.NewServer(o...)
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(at) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return at.Addr().String(), s.GracefulStop
}

// A span of each call goes to a collector, by HTTP and by gRPC. It goes on with the trace of the
// caller, and tells what was decided. A caller whose trace is not sampled has none.
func TestTraces(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			r := received{got: make(chan *collector.ExportTraceServiceRequest, 10)}
			if protocol == "http" {
				server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
					var is collector.ExportTraceServiceRequest
					if body, err := io.ReadAll(q.Body); err == nil && q.URL.Path == "/v1/traces" && proto.Unmarshal(body, &is) == nil {
						r.got <- &is
					}
				}))
				defer server.Close()
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
			} else {
				at, _ := serve(t, func(s *grpc.Server) { collector.RegisterTraceServiceServer(s, r) })
				t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+at)
			}
			traces := fatal.Get(exposition.NewTraces(t.Context(), exposition.TraceOptions{
				Protocol: protocol, Service: "edge", Namespace: "shop", Instance: "pod", Rate: 0, Logger: slog.New(slog.DiscardHandler),
			}))(t)
			at, stop := serve(t, func(s *grpc.Server) { pb.RegisterRateLimitServiceServer(s, refuser{}) }, traces.ServerOptions()...)
			conn := fatal.Get(grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
			defer conn.Close()
			for _, b3 := range []string{"", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"} {
				ctx := metadata.AppendToOutgoingContext(t.Context(), "b3", b3)
				fatal.Get(pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, behavior.Request("shop | user=secret")))(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stop() // a span ends after its answer has left
			fatal.If(t, traces.Close(ctx))
			close(r.got)
			var all []string
			for is := range r.got {
				for _, of := range is.GetResourceSpans() {
					for _, scope := range of.GetScopeSpans() {
						for _, span := range scope.GetSpans() {
							all = append(all, fmt.Sprintf("%x %s %v %v", span.GetTraceId(), span.GetName(), span.GetAttributes(), of.GetResource()))
						}
					}
				}
			}
			if len(all) != 1 || strings.Contains(all[0], "secret") {
				t.Fatalf("%v", all)
			}
			for _, want := range []string{
				"0af7651916cd43dd8448eb211c80319c envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "ratelimit.domain", "shop", "OVER_LIMIT",
				"service.name", "edge", "service.namespace", "service.instance.id", "pod",
			} {
				if !strings.Contains(all[0], want) {
					t.Errorf("no %s in %s", want, all[0])
				}
			}
		})
	}
	if _, err := exposition.NewTraces(t.Context(), exposition.TraceOptions{Protocol: "udp"}); err == nil || !strings.Contains(err.Error(), "TRACING_EXPORTER_PROTOCOL is \"udp\"") {
		t.Error(err)
	}
}
