package metrics_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// An exporter for another system is a loop: this one writes lines of DogStatsD.
func Example() {
	limiter, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)},
		&tiered.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close(context.Background())
	for range 12 {
		limiter.Allow(context.Background(), "ann")
	}

	reader, err := metrics.NewReader(limiter.Group())
	if err != nil {
		fmt.Println(err)
		return
	}
	for s := range reader.Samples() {
		if s.Metric.Kind == metrics.Histogram || s.Value == 0 || s.Metric.Name != "tiered_requested_tokens_total" {
			continue
		}
		var tags []string
		for i, name := range s.Metric.Labels {
			tags = append(tags, name+":"+s.Labels[i])
		}
		fmt.Printf("%s:%v|g|#%s\n", s.Metric.Name, s.Value, strings.Join(tags, ","))
	}
	// Output:
	// tiered_requested_tokens_total:10|g|#policy:login,reason:granted
	// tiered_requested_tokens_total:2|g|#policy:login,reason:limited
}
