package exposition

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// TraceOptions are the options of Traces. Where spans go, and how, the exporter reads from
// variables that begin with OTEL_.
type TraceOptions struct {
	Protocol                     string // grpc, or http if it is empty
	Service, Namespace, Instance string // of the resource
	Rate                         float64
	Logger                       *slog.Logger
}

// Traces make a span of each call of gRPC that is sampled.
type Traces struct{ provider *sdk.TracerProvider }

// complainEvery is how often the log says that spans get lost.
const complainEvery = time.Minute

// NewTraces returns Traces. Spans that nobody takes are dropped: a few thousand of them are kept.
func NewTraces(ctx context.Context, o TraceOptions) (*Traces, error) {
	var exporter sdk.SpanExporter
	var err error
	switch o.Protocol {
	case "", "http":
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("TRACING_EXPORTER_PROTOCOL is %q: must be http or grpc", o.Protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("TRACING_ENABLED is true: %w", err)
	}
	var said atomic.Int64
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		now, last := time.Now().UnixNano(), said.Load()
		if (last == 0 || now-last >= int64(complainEvery)) && said.CompareAndSwap(last, now) {
			o.Logger.Warn("spans of traces are lost", "error", err)
		}
	}))
	return &Traces{sdk.NewTracerProvider(
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Rate))),
		sdk.WithBatcher(exporter),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", o.Service), attribute.String("service.namespace", o.Namespace),
			attribute.String("service.instance.id", o.Instance))),
	)}, nil
}

// ServerOptions are for the gRPC server.
func (t *Traces) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
			otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, b3.New(), propagation.Baggage{})))),
		grpc.ChainUnaryInterceptor(describe),
	}
}

// describe tells in the span what was decided.
func describe(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, request)
	span := trace.SpanFromContext(ctx)
	if asked, ok := request.(*pb.RateLimitRequest); ok && span.IsRecording() {
		span.SetAttributes(attribute.String("ratelimit.domain", asked.GetDomain()), attribute.Int("ratelimit.descriptors", len(asked.GetDescriptors())))
		if is, ok := answer.(*pb.RateLimitResponse); ok && err == nil {
			span.SetAttributes(attribute.String("ratelimit.code", is.GetOverallCode().String()))
		}
	}
	return answer, err
}

// Close sends what is left.
func (t *Traces) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
