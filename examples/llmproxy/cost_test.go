package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	llmproxy "github.com/tiered-limiter/tiered-limiter/examples/llmproxy"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// front is a proxy before a model.
type front struct {
	t     *testing.T
	url   string
	group *tiered.Group
	log   lines
}

type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(line)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

func newFront(t *testing.T, s llmproxy.Service) *front {
	t.Helper()
	f := &front{t: t}
	if s.Target == nil {
		upstream := httptest.NewServer(&model{t})
		t.Cleanup(upstream.Close)
		s.Target, _ = url.Parse(upstream.URL)
	}
	group, err := tiered.NewGroup(remote.NewMemory(), &tiered.Options{
		Logger: slog.New(slog.DiscardHandler), Budget: 5 * time.Second, Timeout: 5 * time.Second, // a busy machine must not decide
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = group.Close(context.Background()) })
	s.Log = slog.New(slog.NewTextHandler(&f.log, nil))
	handler, err := s.Handler(group)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	f.url, f.group = server.URL, group
	return f
}

// ask returns the status of an answer, its header and all of it.
func (f *front) ask(method, path, body string, header ...string) (int, http.Header, string) {
	f.t.Helper()
	r, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		f.t.Error(err)
	}
	return a.StatusCode, a.Header, string(text)
}

// costs is what a policy has counted at last: taken, given back and charged.
func (f *front) costs(policy string, want int64) {
	f.t.Helper()
	var got int64
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p := f.group.Stats().Policies[policy]
		if got = p.Leases.Spent + p.Costs.Charged; got == want {
			return
		}
	}
	f.t.Errorf("%s: %d, want %d", policy, got, want)
}

// Whatever the protocol, an answer costs what it says, streamed or not, compressed or not; its
// cached tokens cost nothing if the operator says so. One without usage costs what was estimated,
// and the log has one line for each kind. One that failed costs no tokens.
func TestCost(t *testing.T) {
	bodies := map[string]string{
		"/v1/chat/completions": `{"max_completion_tokens":2000,"n":2,"messages":[],"stream":false}`,
		"/v1/responses":        `{"max_output_tokens":4000,"input":"hello!","stream":false}`,
		"/v1/messages":         `{"max_tokens":4000,"messages":[],"stream":false}`,
	}
	for path, body := range bodies {
		for _, c := range []struct {
			test       string
			cachedFree bool
			tokens     int64 // −1 is the estimate
			requests   int64
			logged     int
		}{
			{"", false, 110, 1, 0},
			{"", true, 106, 1, 0},
			{"no usage", false, -1, 1, 1},
			{"other format", false, -1, 1, 1},
			{"br", false, -1, 1, 1},
			{"failed", false, 0, 1, 0},
			{"text/plain", false, 110, 1, 0},
			{"503", false, 0, 0, 0},
			{"400", false, 0, 1, 0},
		} {
			for _, stream := range []string{"false", "true"} {
				if c.test == "failed" && stream == "false" {
					continue // a failure in one piece has a status
				}
				for _, encoding := range []string{"identity", "gzip, deflate, br"} {
					name := path + " " + c.test + ", stream " + stream + ", " + encoding
					f := newFront(t, llmproxy.Service{RPM: 100, TPM: 1_000_000, CachedFree: c.cachedFree})
					body := strings.Replace(body, "false", stream, 1)
					for range 2 {
						f.ask(http.MethodPost, path, body, "Authorization", "Bearer ann", "X-Test", c.test, "Accept-Encoding", encoding)
					}
					tokens := c.tokens
					switch {
					case tokens < 0:
						tokens = 4000 + int64(len(body))/4 + 1
					case c.test == "failed" && path == "/v1/messages":
						tokens = 11 // it had said what it had read, and one token of output
					}
					f.costs("tokens-per-minute", 2*tokens)
					f.costs("requests-per-minute", 2*c.requests)
					if n := f.log.count("is not known"); n != c.logged {
						t.Errorf("%s: %d lines, want %d", name, n, c.logged)
					}
					if t.Failed() {
						t.Fatal(name)
					}
				}
			}
		}
	}
}

// A client sees the stream that it asked for: not the event that the proxy has asked for.
func TestClientSeesItsStream(t *testing.T) {
	f := newFront(t, llmproxy.Service{RPM: 100, TPM: 1_000_000})
	for body, want := range map[string]int{
		`{"stream":true}`: 0, `{"stream":true,"stream_options":{"include_usage":true}}`: 1, `{"stream":true,"stream_options":{"include_usage":false}}`: 0,
	} {
		_, _, text := f.ask(http.MethodPost, "/v1/chat/completions", body, "Authorization", "Bearer ann")
		if got := strings.Count(text, `"choices":[],`); got != want || !strings.HasSuffix(text, "data: [DONE]\n\n") || strings.Count(text, "data: {\"choices\":[{") != 2 {
			t.Errorf("%s: %q", body, text)
		}
	}
	var plain strings.Builder
	messages(&plain, "", true)
	if _, _, text := f.ask(http.MethodPost, "/v1/messages", `{"stream":true}`, "Authorization", "Bearer ann"); text != plain.String() {
		t.Errorf("%q, want %q", text, plain.String())
	}
}

// A plan is that of the field that the gateway sets. A refusal is an error that the clients of all
// protocols read. What is over one limit takes nothing of the other.
func TestPlansAndRefusals(t *testing.T) {
	f := newFront(t, llmproxy.Service{RPM: 2, TPM: 1000, Plans: "pro=5:10000,team=3:3000"})
	ask := func(tokens, plan string) (int, http.Header, string) {
		return f.ask(http.MethodPost, "/v1/messages", `{"max_tokens":`+tokens+`}`, "X-Api-Key", "ann", "X-Plan", plan)
	}
	status, header, body := ask("5000", "")
	var e struct {
		Type  string
		Error struct{ Type, Message string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || status != 429 || e.Type != "error" || e.Error.Type != "rate_limit_error" ||
		e.Error.Message != "The request may cost 5005 tokens, and 1000 per minute are allowed: set a smaller max_tokens." || header.Get("Retry-After") != "" {
		t.Errorf("%d %v %s", status, header, body)
	}
	f.costs("requests-per-minute", 0)
	if status, _, body := ask("5000", "pro"); status != 200 {
		t.Errorf("pro: %d %s", status, body)
	}
	for i, want := range []int{200, 200, 429} {
		if status, header, body = f.ask(http.MethodPost, "/v1/messages", `{"max_tokens":10}`, "X-Api-Key", "bob"); status != want {
			t.Errorf("request %d: %d %s", i, status, body)
		}
	}
	if !strings.Contains(body, "Over the limit of requests per minute. Try again in 30s.") || header.Get("Retry-After") != "30" {
		t.Errorf("%v %s", header, body)
	}
	if status, _, body = f.ask(http.MethodPost, "/v1/messages", `{}`); status != 400 || !strings.Contains(body, "authentication_error") {
		t.Errorf("without a credential: %d %s", status, body)
	}
	if status, _, _ = f.ask(http.MethodGet, "/v1/models", "", "Authorization", "Bearer cid"); status != 200 || f.log.count("is not known") != 0 {
		t.Errorf("the list of models: %d", status)
	}
}

// The service gets the credential that counts, and no other: a second one would be a way around the
// limits. What it does not answer costs nothing.
func TestCredentialAndOutage(t *testing.T) {
	seen := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	target, _ := url.Parse(upstream.URL)
	f := newFront(t, llmproxy.Service{RPM: 10, TPM: 100_000, Target: target})
	f.ask(http.MethodPost, "/v1/messages", `{}`, "Authorization", "Bearer ann", "X-Api-Key", "real")
	if h := <-seen; h.Get("X-Api-Key") != "" || h.Get("Authorization") != "Bearer ann" {
		t.Errorf("%v", h)
	}
	upstream.Close()
	before := f.group.Stats().Policies["tokens-per-minute"]
	status, _, body := f.ask(http.MethodPost, "/v1/messages", `{"max_tokens":500}`, "X-Api-Key", "bob")
	if status != http.StatusBadGateway || !strings.Contains(body, `"api_error"`) {
		t.Errorf("%d %s", status, body)
	}
	f.costs("tokens-per-minute", before.Leases.Spent+before.Costs.Charged)
	f.costs("requests-per-minute", 1)
}

func TestAtMost(t *testing.T) {
	image := strings.Repeat("A", 400_000)
	for body, want := range map[string]int64{
		`{"max_tokens":100}`: 105, `{}`: 1001, `not JSON`: 1003, `{"max_tokens":-5}`: 1005, `{"max_completion_tokens":100}`: 108,
		`{"max_output_tokens":100,"n":3}`: 308, `{"max_tokens":10,"max_completion_tokens":90}`: 102,
		`{"max_tokens":9223372036854775807}`:       math.MaxInt64/2 + 9,
		`{"max_tokens":9223372036854775807,"n":9}`: math.MaxInt64/2 + 11,
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`:              1000 + 1500 + 19,
		`{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}}]}]}`: 1000 + 1500 + 27,
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(body))
		if got, _ := llmproxy.AtMost(r); got != want {
			t.Errorf("%.40s: %d, want %d", body, got, want)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", llmproxy.LongestBody+1)))
	if _, status := llmproxy.AtMost(r); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too long: %d", status)
	}
}
