// Package service is what the examples have in common: the limiter's life from start to SIGTERM,
// and health.
package service

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Run calls serve with a Group until SIGTERM or an interrupt ends its context. Then it gives the
// leases back. redis is a URL, as remote.Open takes it; without one this process limits alone.
// processes is the fewest that run.
func Run(redis string, processes int, serve func(context.Context, *tiered.Group) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var store remote.Store = remote.NewMemory()
	if redis == "" {
		slog.Warn("there is no -redis: this process limits alone")
	} else {
		r, err := remote.Open(redis, &remote.RedisOptions{Logger: slog.Default()})
		if err != nil {
			return err
		}
		defer r.Close() // after the Group
		store = r
	}
	group, err := tiered.NewGroup(store, &tiered.Options{Processes: processes})
	if err != nil {
		return err
	}
	defer func() {
		fresh, cancel := context.WithTimeout(context.Background(), 5*time.Second) // ctx has ended
		defer cancel()
		err = errors.Join(err, group.Close(fresh))
	}()
	return serve(ctx, group)
}

// Health adds /livez and /readyz. A service is ready once Redis has answered. It stays ready in an
// outage, because the fail mode decides then.
func Health(mux *http.ServeMux, group *tiered.Group) {
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("GET /readyz", httplimit.Ready(group))
}

// ServeHTTP serves until ctx ends, and then lets the requests under way end.
func ServeHTTP(ctx context.Context, server *http.Server) error {
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	fresh, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return server.Shutdown(fresh)
}
