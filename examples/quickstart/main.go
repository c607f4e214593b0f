// Quickstart is an HTTP server with one rate limit per user.
//
//	go run ./examples/quickstart                                  # one process, no Redis
//	go run ./examples/quickstart -redis redis://127.0.0.1:6379    # any number of processes share the limit
//
//	curl -i -H 'X-User: ann' localhost:8080
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("quickstart", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	addr := flags.String("addr", "localhost:8080", "where to listen")
	url := flags.String("redis", "", "URL of the Redis that processes share; without it, this process limits alone")
	rate := flags.Int64("rate", 10, "requests per period and user")
	per := flags.Duration("per", time.Second, "the period")
	burst := flags.Int64("burst", 20, "requests at once and user")
	debug := flags.String("debug", "", "where to show who is refused, as in localhost:8081: for operators only")
	if err := flags.Parse(args); err != nil {
		return err
	}

	var store remote.Store = remote.NewMemory()
	if *url != "" {
		var err error
		// It dials later, so the service starts while Redis is down.
		if store, err = remote.Open(*url, &remote.RedisOptions{Logger: slog.Default()}); err != nil {
			return err
		}
	}
	defer store.Close()

	group, err := tiered.NewGroup(store, &tiered.Options{Logger: slog.Default()})
	if err != nil {
		return err
	}
	limiter, err := group.NewLimiter(tiered.Policy{
		Name:  "per-user",
		Limit: tiered.Limit{Tokens: *rate, Per: *per, Burst: *burst},
	})
	if err != nil {
		return err
	}

	limit, err := httplimit.New([]httplimit.Rule{{
		Limiter: limiter,
		Key:     httplimit.Header("X-User"), // in your service: whom you authenticated
		Missing: httplimit.Together,         // everybody without a name is one user
	}}, nil)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	server := &http.Server{Handler: limit(http.HandlerFunc(hello)), ReadHeaderTimeout: time.Second}
	if *debug != "" {
		if err := show(group, *debug, server, out); err != nil {
			return err
		}
	}
	go func() {
		<-ctx.Done()
		_ = server.Shutdown(context.Background())
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}

	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return group.Close(closing) // gives back what this process had leased
}

// show serves the page that says who is refused, until server ends.
func show(group *tiered.Group, addr string, server *http.Server, out io.Writer) error {
	page, err := debugpage.New(group, nil)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "who is refused: http://%s\n", listener.Addr())
	internal := &http.Server{Handler: page, ReadHeaderTimeout: time.Second}
	server.RegisterOnShutdown(func() { _ = internal.Close() })
	go func() { _ = internal.Serve(listener) }()
	return nil
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
