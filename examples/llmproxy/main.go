// Llmproxy stands before a service of language models, and holds each client to requests per minute
// and to tokens per minute: both or neither. What an answer may cost at most is taken before it
// begins, and put right when it has ended and says what it did cost. It understands the protocols
// of Chat Completions, Responses and Messages: see docs/language-models.md.
//
//	go run ./examples/llmproxy -upstream http://localhost:9000 -redis redis://127.0.0.1:6379 -plans pro=600:900000
//
//	curl -N -H 'Authorization: Bearer ann' -d '{"max_tokens": 500, "stream": true, "messages": []}' localhost:8080/v1/chat/completions
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
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("llmproxy", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s := service{plans: map[string]limits{}, log: slog.Default()}
	flags := flag.NewFlagSet("llmproxy", flag.ContinueOnError)
	addr := flags.String("addr", "localhost:8080", "where to listen")
	upstream := flags.String("upstream", "http://localhost:9000", "URL of the service")
	redis := flags.String("redis", "", "URL of the Redis that processes share; without it, this process limits alone")
	flags.Int64Var(&s.requests, "rpm", 60, "requests per minute and client")
	flags.Int64Var(&s.tokens, "tpm", 90_000, "tokens per minute and client")
	flags.Func("plans", "NAME=RPM:TPM,…: other limits by the name in the field X-Plan, which your gateway must set or remove", s.readPlans)
	flags.BoolVar(&s.cachedFree, "cached-free", false, "tokens that the service read from its cache of prompts cost nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if s.target, err = url.Parse(*upstream); err != nil || s.target.Host == "" {
		return fmt.Errorf("-upstream is %q: must be a URL", *upstream)
	}

	var store remote.Store = remote.NewMemory()
	if *redis != "" {
		if store, err = remote.Open(*redis, &remote.RedisOptions{Logger: s.log}); err != nil {
			return err
		}
	}
	defer store.Close()
	group, err := tiered.NewGroup(store, &tiered.Options{Logger: s.log})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = group.Close(closing)
	}()
	handler, err := s.proxy(group)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {}) // not limited
	mux.Handle("GET /readyz", httplimit.Ready(group))
	mux.Handle("/", handler)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Answers under way end, and what they cost is settled, before the leases go back.
	fresh, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return server.Shutdown(fresh)
}

// readPlans reads "pro=600:900000,team=60:50000".
func (s *service) readPlans(text string) error {
	for plan := range strings.SplitSeq(text, ",") {
		name, numbers, _ := strings.Cut(plan, "=")
		var l limits
		if n, err := fmt.Sscanf(numbers+"\n", "%d:%d\n", &l.requests, &l.tokens); n != 2 || err != nil || name == "" {
			return fmt.Errorf("the plan %q: must be as in pro=600:900000", plan)
		}
		s.plans[name] = l
	}
	return nil
}
