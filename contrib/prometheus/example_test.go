package promlimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func Example() {
	limiter, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)},
		&tiered.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close(context.Background())

	registry := prometheus.NewRegistry()
	registry.MustRegister(promlimit.NewCollector(limiter.Group()))
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	for range 12 {
		limiter.Allow(context.Background(), "ann")
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "tiered_requested_tokens_total") && !strings.HasSuffix(line, " 0\n") {
			fmt.Print(line)
		}
	}
	// Output:
	// tiered_requested_tokens_total{policy="login",reason="granted"} 10
	// tiered_requested_tokens_total{policy="login",reason="limited"} 2
}

// From docs/metrics.md.

func export(group *tiered.Group) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(promlimit.NewCollector(group))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

func exportSeveral(registry *prometheus.Registry, users, jobs *tiered.Group) {
	registry.MustRegister(promlimit.NewGroupsCollector(map[string]*tiered.Group{"users": users, "jobs": jobs}))
}

var (
	_ = export
	_ = exportSeveral
)
