package main_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	llmproxy "github.com/tiered-limiter/tiered-limiter/examples/llmproxy"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// stage is a proxy on a real Redis before a model that answers in three pieces, the next when the
// test says so.
type stage struct {
	t     *testing.T
	url   string
	group *tiered.Group
	next  chan int64 // what the answer cost
	gone  chan bool  // the model saw that nobody reads any more
	store *remote.Redis
}

func newStage(t *testing.T, rpm, tpm int64) *stage {
	t.Helper()
	s := &stage{t: t, next: make(chan int64), gone: make(chan bool, 10)}
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); !strings.Contains(string(b), "max_tokens") {
			t.Errorf("the model got %q", b)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"delta\":\"hel\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case cost := <-s.next:
			fmt.Fprintf(w, "data: {\"delta\":\"lo\"}\n\ndata: {\"usage\":{\"total_tokens\":%d}}\n\ndata: [DONE]\n\n", cost)
		case <-r.Context().Done():
			s.gone <- true
		}
	}))
	t.Cleanup(model.Close)
	store, err := remote.Open(redistest.Start(t).URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s.group, err = tiered.NewGroup(store, &tiered.Options{Budget: 5 * time.Second, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.group.Close(ctx)
	})
	target, err := url.Parse(model.URL)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := llmproxy.Service{Target: target, RPM: rpm, TPM: tpm}.Handler(s.group)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s.url, s.store = server.URL, store
	return s
}

func (s *stage) ask(ctx context.Context, user string, maxTokens int) *http.Response {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(`{"max_tokens": %d}`, maxTokens)))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+user)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// spent is how many tokens of a user are gone from Redis, as a second process sees it, soon.
func (s *stage) spent(user string, tpm, least, most int64) {
	s.t.Helper()
	other, err := tiered.New(s.store, tiered.Policy{Name: "tokens-per-minute", Limit: tiered.PerMinute(tpm)}, &tiered.Options{Budget: 5 * time.Second, Timeout: 5 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	defer other.Close(context.Background())
	sum := sha256.Sum256([]byte(user)) // Credential counts by the token, whatever its scheme
	key := base64.RawURLEncoding.EncodeToString(sum[:])
	got := int64(-1)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		d := other.Peek(context.Background(), key)
		if got = tpm - d.Remaining; d.Tier == tiered.Remote && least <= got && got <= most {
			return
		}
	}
	s.t.Errorf("%s has spent %d tokens, want %d to %d", user, got, least, most)
}

func TestCostIsSettledWhenTheStreamEnds(t *testing.T) {
	const tpm = 1000
	s := newStage(t, 100, tpm)
	ctx := context.Background()
	r := s.ask(ctx, "ann", 600)
	lines := bufio.NewReader(r.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: {\"delta\":\"hel\"}\n" {
		t.Fatalf("the first piece is %q, %v", line, err)
	}
	s.spent("ann", tpm, 400, 605) // what it may cost is taken while it streams; refilled meanwhile, on a slow machine
	s.next <- 40
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Fatalf("%q, %v", rest, err)
	}
	s.spent("ann", tpm, 0, 40)
}

func TestRequestsAreLimitedToo(t *testing.T) {
	s := newStage(t, 1, 100_000)
	ctx := context.Background()
	if r := s.ask(ctx, "ann", 10); r.StatusCode != 200 {
		t.Fatal(r.Status)
	}
	r := s.ask(ctx, "ann", 10)
	body, _ := io.ReadAll(r.Body)
	if r.StatusCode != 429 || !strings.Contains(string(body), "requests per minute") {
		t.Errorf("%s %s", r.Status, body)
	}
	r, err := http.Post(s.url, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != 400 {
		t.Errorf("without a credential: %s", r.Status)
	}
}

// Who hangs up has cost what was taken.
func TestHangingUpIsNotCheaper(t *testing.T) {
	const tpm = 60_000
	s := newStage(t, 100, tpm)
	ctx, hangUp := context.WithCancel(context.Background())
	s.ask(ctx, "ann", 50_000)
	hangUp()
	<-s.gone
	time.Sleep(300 * time.Millisecond) // what goes back takes 50 ms
	s.spent("ann", tpm, 20_000, 50_005)
}

// A signal lets an answer under way end, and its cost is settled before the program does.
func TestSignalDuringAnAnswer(t *testing.T) {
	next := make(chan bool)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: {\"delta\":\"hel\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-next
		fmt.Fprint(w, "data: {\"usage\":{\"total_tokens\":7}}\n\ndata: [DONE]\n\n")
	}))
	defer model.Close()
	ctx, signal := context.WithCancel(t.Context())
	pipe, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- llmproxy.Run(ctx, []string{"-addr", "127.0.0.1:0", "-upstream", model.URL}, out) }()
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	live, err := http.Get(base + "/livez")
	if err != nil || live.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", live, err)
	}
	_ = live.Body.Close()
	r, err := http.NewRequest(http.MethodPost, base+"/v1/chat/completions", strings.NewReader(`{"max_tokens": 500}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer ann")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	signal()
	select {
	case err := <-ended:
		t.Fatalf("it has ended during an answer: %v", err)
	case next <- true:
	}
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), "[DONE]") {
		t.Errorf("%q, %v", text, err)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
