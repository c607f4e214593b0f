package tiered_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// hostileRig is a limiter on a real Redis, and all that it says.
type hostileRig struct {
	t       *testing.T
	server  *redistest.Server
	admin   *redis.Client
	store   *remote.Redis
	group   *tiered.Group
	limiter *tiered.Limiter

	mu     sync.Mutex
	events []error // of Trace.Error and Trace.State
	logs   map[string]*logged
	lines  *countingHandler
	panics int // in hooks
}

func newHostileRig(t *testing.T) *hostileRig {
	t.Helper()
	r := &hostileRig{t: t, server: redistest.Start(t), logs: map[string]*logged{"text": {}, "json": {}}}
	r.admin = r.server.Client()
	var err error
	if r.store, err = remote.Open(r.server.URL(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.store.Close() })
	r.lines = &countingHandler{to: []slog.Handler{
		slog.NewTextHandler(r.logs["text"], nil), slog.NewJSONHandler(r.logs["json"], nil),
	}}
	patient := 5 * time.Second
	note := func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, err)
	}
	r.group, err = tiered.NewGroup(r.store, &tiered.Options{
		Budget: patient, Timeout: patient, Logger: slog.New(r.lines),
		Trace: &tiered.Trace{
			State: func(e tiered.Event) { note(e.Err) },
			Error: func(e tiered.Event) { note(e.Err) },
			Lease: func(e tiered.Event) { panic(e) },
			Decision: func(d tiered.Decision) {
				r.mu.Lock()
				r.panics++
				way := r.panics % 5
				r.mu.Unlock()
				switch way {
				case 0:
					panic(d.Key)
				case 1:
					panic(errors.New(d.Key))
				case 2:
					panic([]byte(d.Key))
				case 3:
					panic(map[string]any{d.Key: d})
				default:
					panic(fmt.Sprintf("cannot count %q", d.Key))
				}
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.limiter, err = r.group.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerHour(100)}); err != nil {
		t.Fatal(err)
	}
	return r
}

// do executes a command of words.
func (r *hostileRig) do(command string) {
	r.t.Helper()
	var words []any
	for _, w := range strings.Fields(command) {
		words = append(words, w)
	}
	if err := r.admin.Do(ctx, words...).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// healed waits until Redis is asked again.
func (r *hostileRig) healed() {
	r.t.Helper()
	soon(r.t, "the breaker closes", 20*second, func() bool {
		r.limiter.Allow(ctx, fmt.Sprint("healed? ", time.Now()))
		for _, n := range r.group.Stats().Nodes {
			if n.Outages.Breaker != "closed" {
				return false
			}
		}
		return true
	})
}

// hears waits until an event has an error with this text.
func (r *hostileRig) hears(text string) {
	r.t.Helper()
	soon(r.t, "an error "+text, 20*second, func() bool {
		r.limiter.Allow(ctx, fmt.Sprint("down? ", time.Now()))
		r.mu.Lock()
		defer r.mu.Unlock()
		return strings.Contains(fmt.Sprint(r.events), text)
	})
}

// abuse sends a key through everything that takes one, and returns every error.
func (r *hostileRig) abuse(key string) (all []error) {
	l := r.limiter
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	gone, leave := context.WithCancel(ctx)
	leave()
	add := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	add(l.Allow(ctx, key).Err())
	add(l.AllowN(ctx, key, 1000).Err())
	add(l.AllowN(ctx, key, -1).Err())
	add(l.Peek(ctx, key).Err())
	add(l.Peek(gone, key).Err())
	brief, end := context.WithTimeout(ctx, 5*time.Millisecond) // who waits for the next token waits for half a minute
	defer end()
	add(l.Wait(brief, key))
	add(l.Wait(gone, key))
	add(l.WaitN(ctx, key, 1000))
	res := l.ReserveN(ctx, key, 2)
	add(res.Err())
	res.Settle(3)
	res.Cancel()
	add(l.Reset(ctx, key))
	add(l.Reset(gone, key))
	add(l.AllowN(ctx, key, 100).Err())
	add(l.Allow(ctx, key).Err())
	add(l.Allow(ctx, key+strings.Repeat("x", tiered.MaxKeyLength)).Err())
	for node := range r.group.Stats().Nodes {
		all = append(all, errors.New(node)) // names that a page of figures shows
	}
	for policy := range r.group.Stats().Policies {
		all = append(all, errors.New(policy))
	}
	return all
}

// checkErrors wants no piece of any key in any error, and nothing that a terminal or a parser would
// obey.
func checkErrors(t tester, key string, all []error) {
	for _, err := range all {
		if err == nil {
			continue
		}
		if text := err.Error(); strings.Contains(text, marker) || strings.Contains(text, "%!") || !harmless(text) {
			t.Errorf("key %.80q: error %.300q", key, text)
		}
	}
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Errorf(format string, args ...any)
}

// harmless reports whether a text has only what is printed as it is.
func harmless(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// checkLogs ends the limiter and wants as many lines in the logs as it wrote, each of them of one
// piece.
func (r *hostileRig) checkLogs() {
	r.t.Helper()
	closing, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = r.group.Close(closing) // Redis may be gone
	want := r.lines.count()
	for name, log := range r.logs {
		text := log.String()
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) != want || want == 0 {
			r.t.Errorf("%s: %d lines, where %d were written", name, len(lines), want)
		}
		for _, line := range lines {
			if !harmless(line) || len(line) > 2000 || name == "json" && !json.Valid([]byte(line)) {
				r.t.Errorf("%s: %.300q", name, line)
			}
			if i := strings.Index(line, marker); i >= 0 && !quoted(line, i) {
				r.t.Errorf("%s, unquoted: %.300q", name, line)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	checkErrors(r.t, "(events)", r.events)
}

// quoted reports whether what is at i of a line lies between quotes.
func quoted(line string, i int) bool {
	inside := false
	for j := 0; j < i; j++ {
		switch line[j] {
		case '\\':
			j++
		case '"':
			inside = !inside
		}
	}
	return inside
}

// countingHandler hands each record to all others, and counts them.
type countingHandler struct {
	to []slog.Handler
	mu sync.Mutex
	n  int
}

func (h *countingHandler) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *countingHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "redis answers" { // which logged leaves out too
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	var all error
	for _, to := range h.to {
		all = errors.Join(all, to.Handle(ctx, r))
	}
	return all
}

func (h *countingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *countingHandler) WithGroup(string) slog.Handler { return h }

// printer is a logger for go-redis.
type printer struct{ to io.Writer }

func (p *printer) Printf(_ context.Context, format string, v ...any) {
	fmt.Fprintf(p.to, format+"\n", v...)
}
