package otellimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	otellimit "github.com/tiered-limiter/tiered-limiter/contrib/otel"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func Example() {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	limiter, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)},
		&tiered.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close(context.Background())

	if _, err := otellimit.Register(provider, limiter.Group()); err != nil {
		fmt.Println(err)
		return
	}

	for range 12 {
		limiter.Allow(context.Background(), "ann")
	}
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &collected); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if m.Name != "tiered.requested_tokens" {
			continue
		}
		for _, p := range m.Data.(metricdata.Sum[float64]).DataPoints {
			if reason, _ := p.Attributes.Value("reason"); p.Value > 0 {
				fmt.Println(m.Name, reason.AsString(), p.Value)
			}
		}
	}
	// Unordered output:
	// tiered.requested_tokens granted 10
	// tiered.requested_tokens limited 2
}

// From docs/metrics.md.

func export(limiter *tiered.Limiter) error {
	_, err := otellimit.Register(otel.GetMeterProvider(), limiter.Group())
	return err
}

func exportSeveral(users, jobs *tiered.Group) error {
	_, err := otellimit.RegisterGroups(otel.GetMeterProvider(), map[string]*tiered.Group{"users": users, "jobs": jobs})
	return err
}

func traceHTTP(rules []httplimit.Rule) (func(http.Handler) http.Handler, error) {
	return httplimit.New(rules, &httplimit.Options{Refused: otellimit.Record})
}

func traceGRPC(rules []grpclimit.Rule) (*grpclimit.Server, error) {
	return grpclimit.New(rules, &grpclimit.Options{Refused: otellimit.Record})
}

func traceDecision(ctx context.Context, limiter *tiered.Limiter, userID string) bool {
	d := limiter.Allow(ctx, userID)
	otellimit.Record(ctx, d)
	return d.Allowed
}

func traceWait(ctx context.Context, limiter *tiered.Limiter, userID string) error {
	return otellimit.WaitN(ctx, limiter, userID, 1)
}

var (
	_ = export
	_ = exportSeveral
	_ = traceHTTP
	_ = traceGRPC
	_ = traceDecision
	_ = traceWait
)
