// Api is an HTTP service whose limits come from a file: plans, a quota per month, a limit by
// address, and how many requests of a user run at once. It has metrics, readiness and a test.
//
//	go run -C examples/services ./api -policies api/policies.yaml
//	curl -H 'Authorization: Bearer ann' localhost:8080/api/hello
//
// Change the file while it runs: the new limits count within a second.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/examples/services/service"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where users ask")
	operators := flag.String("operators", "localhost:6060", "where operators look: metrics, health, the debug page")
	policies := flag.String("policies", "policies.yaml", "the file with the limits")
	redis := flag.String("redis", os.Getenv("REDIS_URL"), "URL of the Redis that the processes share")
	processes := flag.Int("processes", 1, "the fewest processes that run")
	flag.Parse()
	err := service.Run(*redis, *processes, func(ctx context.Context, group *tiered.Group) error {
		return serve(ctx, group, *addr, *operators, *policies)
	})
	if err != nil {
		log.Fatal(err)
	}
}

func api() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	return mux
}

func serve(ctx context.Context, group *tiered.Group, addr, operators, policies string) error {
	watcher, err := policyfile.Watch(policies, group, nil)
	if err != nil {
		return err
	}
	defer watcher.Close()

	page, err := debugpage.New(group, nil)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(promlimit.NewCollector(group))
	look := http.NewServeMux()
	look.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	look.Handle("/debug/limiter", page)
	service.Health(look, group)

	ctx, stop := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		defer stop() // a port that is taken ends the program
		failed <- service.ServeHTTP(ctx, &http.Server{Addr: operators, Handler: look})
	}()
	err = service.ServeHTTP(ctx, &http.Server{Addr: addr, Handler: watcher.Middleware(api())})
	stop()
	return errors.Join(err, <-failed)
}
