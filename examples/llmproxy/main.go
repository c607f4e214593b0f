// Llmproxy stands before a service that streams the answers of a language model, and holds each
// client to requests per minute and to tokens per minute: both or neither. What an answer may cost
// at most is taken before it begins, and put right when its stream has ended and says what it did
// cost.
//
//	go run ./examples/llmproxy -upstream http://localhost:9000 -redis redis://127.0.0.1:6379
//
//	curl -N -H 'Authorization: Bearer ann' -d '{"max_tokens": 500, "stream": true, "messages": []}' localhost:8080/v1/chat/completions
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
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
	flags := flag.NewFlagSet("llmproxy", flag.ContinueOnError)
	addr := flags.String("addr", "localhost:8080", "where to listen")
	upstream := flags.String("upstream", "http://localhost:9000", "URL of the service")
	redis := flags.String("redis", "", "URL of the Redis that processes share; without it, this process limits alone")
	requests := flags.Int64("rpm", 60, "requests per minute and client")
	tokens := flags.Int64("tpm", 90_000, "tokens per minute and client")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target, err := url.Parse(*upstream)
	if err != nil || target.Host == "" {
		return fmt.Errorf("-upstream is %q: must be a URL", *upstream)
	}

	var store remote.Store = remote.NewMemory()
	if *redis != "" {
		if store, err = remote.Open(*redis, nil); err != nil {
			return err
		}
	}
	defer store.Close()
	group, err := tiered.NewGroup(store, &tiered.Options{Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = group.Close(closing)
	}()
	handler, err := proxy(group, target, *requests, *tokens)
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

// proxy limits what it passes on to target.
func proxy(group *tiered.Group, target *url.URL, requests, tokens int64) (http.Handler, error) {
	perRequest, err := group.NewLimiter(tiered.Policy{Name: "requests-per-minute", Limit: tiered.PerMinute(requests)})
	if err != nil {
		return nil, err
	}
	perToken, err := group.NewLimiter(tiered.Policy{
		Name: "tokens-per-minute", Limit: tiered.PerMinute(tokens),
		MaxDebt: 10 * tokens, // answers under way may cost many bursts together
	})
	if err != nil {
		return nil, err
	}
	client := httplimit.Credential("Authorization") // hashed: the secret stays here
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: perRequest, Key: client, Missing: httplimit.Refuse},
		{Limiter: perToken, Key: client, Missing: httplimit.Refuse, Cost: atMost},
	}, &httplimit.Options{Settle: true, Problem: true, IETFDraft11: true}) // a refusal says which of the two limits it is
	if err != nil {
		return nil, err
	}
	return limit(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(r *http.Response) error {
			r.Body = &meter{ReadCloser: r.Body, ctx: r.Request.Context()}
			return nil
		},
		FlushInterval: -1, // each piece of the stream at once
	}), nil
}

const (
	longestBody   = 1 << 20
	defaultTokens = 1000 // where the client names no max_tokens
	bytesPerToken = 4    // of English text, as a rule of thumb
)

// atMost is what a request may cost: its prompt, and the longest answer that it allows. It reads
// the body and puts it back.
func atMost(r *http.Request) int64 {
	body, err := io.ReadAll(io.LimitReader(r.Body, longestBody+1))
	if err != nil || len(body) > longestBody {
		return math.MaxInt64 // is never admitted
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var asked struct {
		MaxTokens int64 `json:"max_tokens"`
	}
	if json.Unmarshal(body, &asked) != nil || asked.MaxTokens <= 0 {
		asked.MaxTokens = defaultTokens // the service will say what is wrong
	}
	prompt := int64(len(body))/bytesPerToken + 1
	return prompt + min(asked.MaxTokens, math.MaxInt64-prompt)
}

// meter reads along with an answer, and settles what it cost when it is over. Whoever hangs up
// before the end has cost what was taken: how far the model got, nobody says.
type meter struct {
	io.ReadCloser
	ctx   context.Context
	line  []byte // the last one, so far
	total int64
	ended bool
}

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.ReadCloser.Read(b)
	rest := b[:n]
	for {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		m.look(append(m.line, rest[:i]...))
		m.line, rest = m.line[:0], rest[i+1:]
	}
	if len(m.line)+len(rest) <= longestBody { // else it is nothing that tells a cost
		m.line = append(m.line, rest...)
	}
	if errors.Is(err, io.EOF) && !m.ended {
		m.ended = true
		m.look(m.line)
		if m.total > 0 {
			if err := httplimit.Settle(m.ctx, map[string]int64{"tokens-per-minute": m.total}); err != nil {
				slog.Error("llmproxy", "error", err)
			}
		}
	}
	return n, err
}

// look finds the usage in a line: "data: {…}" of a stream, or an answer in one piece.
func (m *meter) look(line []byte) {
	line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("data: "))
	if !bytes.Contains(line, []byte(`"usage"`)) {
		return
	}
	var answer struct {
		Usage struct {
			Total int64 `json:"total_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(line, &answer) == nil && answer.Usage.Total > 0 {
		m.total = answer.Usage.Total
	}
}
