package tiered_test

import (
	"bytes"
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
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// marker is in every hostile key, so that it is found wherever a piece of one turns up.
const marker = "hOsTiLe"

// hostileKeys are what clients send who hope that somebody prints, parses or formats it.
var hostileKeys = []string{
	marker,
	marker + "\nlevel=ERROR msg=\"all is lost\"", marker + "\r\nSet-Cookie: a=b\r\n\r\n",
	"\x1b[2J\x1b[31m" + marker + "\x1b]0;title\x07", "\x00" + marker + "\x00", marker + "\x7f\x08\x08\x08",
	"\xff\xfe" + marker + "\xc3\x28\xed\xa0\x80", marker + "\u202eevil\u2028\u2029\u0085\ufeff",
	"{}" + marker, "{" + marker + "}", "}{" + marker + "}{", marker + "}tb1", "{other/" + marker + "}tb1", "/" + marker + "/../",
	marker + "\r\n*1\r\n$8\r\nFLUSHALL\r\n", "*1\r\n$8\r\nFLUSHALL\r\n" + marker, "$" + marker + "\r\n", marker + "' ; FLUSHALL ; '",
	"<script>alert('" + marker + "')</script>", "\"><img src=x onerror=" + marker + ">", "&lt;" + marker,
	marker + "%s%n%d%!v(PANIC=%[1]*d", "${" + marker + ":-jndi}", "`" + marker + "`", "\"" + marker + "\"", "'" + marker + "'",
	"\\" + marker + "\\n", "x script: f, on @user_script" + marker, "WRONGTYPE " + marker, "NOSCRIPT " + marker,
	marker + strings.Repeat("\n\x1b[31m", 1700), marker + strings.Repeat("x", 190), strings.Repeat("\x00", 201-32) + marker,
}

// hostileKey draws such a key, or one made of pieces of them.
func hostileKey() *rapid.Generator[string] {
	pieces := rapid.SampledFrom([]string{
		"\n", "\r\n", "\x1b[", "\x00", "\xff", "{", "}", "/", "%s", "%n", "%!", "<b>", "\"", "'", "\\", "*1\r\n", "$4\r\n", "=", " ",
		"\u202e", "tb1", "tl:", "ERR", "script: ", "long enough to be hashed, if there are some more of it; ",
	})
	return rapid.Custom(func(t *rapid.T) string {
		before := strings.Join(rapid.SliceOfN(pieces, 0, 8).Draw(t, "before"), "")
		return before + marker + rapid.String().Draw(t, "text") + string(rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "bytes"))
	})
}

// hostileRig is a limiter on a real Redis, and all that it says.
type hostileRig struct {
	t       testing.TB
	server  *redistest.Server
	admin   *redis.Client
	store   *remote.Redis
	group   *tiered.Group
	limiter *tiered.Limiter

	mu     sync.Mutex
	events []error // of Trace.Error and Trace.State
	logs   map[string]*lockedBuffer
	lines  *countingHandler
	panics int // in hooks
}

func newHostileRig(t testing.TB) *hostileRig {
	t.Helper()
	r := &hostileRig{t: t, server: redistest.Start(t), logs: map[string]*lockedBuffer{"text": {}, "json": {}}}
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
			State: func(e tiered.StateEvent) { note(e.Err) },
			Error: func(e tiered.ErrorEvent) { note(e.Err) },
			Lease: func(e tiered.LeaseEvent) { panic(e) },
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
	if r.limiter, err = r.group.Limiter(tiered.Policy{Name: "api", Limit: tiered.PerHour(100)}); err != nil {
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
	if err := r.admin.Do(r.t.Context(), words...).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// healed waits until Redis is asked again.
func (r *hostileRig) healed() {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // a real breaker
		r.limiter.Allow(r.t.Context(), fmt.Sprint("healed? ", time.Now()))
		closed := true
		for _, n := range r.group.Stats().Nodes {
			closed = closed && n.Breaker == "closed"
		}
		if closed {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the breaker stays open: %+v", r.group.Stats().Nodes)
		}
	}
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
	res := l.Reserve(ctx, key, 2)
	add(res.Err())
	res.Settle(3)
	res.Cancel()
	add(l.Do(ctx, key, func(context.Context) error { return nil }))
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

// checkErrors wants no piece of any key in any error, and nothing that a terminal or a parser would obey.
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

// checkLogs ends the limiter and wants as many lines in the logs as it wrote, each of them of one piece.
func (r *hostileRig) checkLogs() {
	r.t.Helper()
	closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
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

func TestHostileKeys(t *testing.T) {
	// What go-redis logs by itself goes somewhere too.
	var library lockedBuffer
	redis.SetLogger(&printer{&library})
	defer redis.SetLogger(silent{})

	r := newHostileRig(t)
	buckets := map[string]bool{} // by the names that package remote promises
	for _, key := range hostileKeys {
		checkErrors(t, key, r.abuse(key))
		if len(key) <= 200 {
			buckets["tl:{api/"+key+"}tb1"] = true
		}
	}
	t.Run("drawn", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			key := hostileKey().Draw(t, "key")
			checkErrors(t, key, r.abuse(key))
			if len(key) <= 200 {
				buckets["tl:{api/"+key+"}tb1"] = true
			}
		})
	})
	// Nothing of a key was a command or another key: what is in Redis are the names that the store gives, and digests.
	names, err := r.admin.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	digests := 0
	for _, name := range names {
		switch {
		case buckets[name]:
			delete(buckets, name)
		case strings.HasPrefix(name, "tl:{api/") && strings.HasSuffix(name, "}tb1h") && len(name) == len("tl:{api/}tb1h")+64:
			digests++
		case !strings.HasPrefix(name, "tl:{~"):
			t.Errorf("in Redis: %.300q", name)
		}
	}
	for name := range buckets {
		t.Errorf("not in Redis: %.300q", name)
	}
	if digests == 0 {
		t.Error("no key was long enough for a digest")
	}
	stats, err := r.admin.Info(t.Context(), "commandstats").Result()
	if err != nil || strings.Contains(stats, "cmdstat_flushall") {
		t.Errorf("a key became a command: %s, %v", stats, err)
	}

	// Redis quotes what it finds under a name, or does not: errors of one bucket, and of the whole server.
	poisoned := 0
	for i, key := range hostileKeys {
		if key = fmt.Sprint(i, key); len(key) > 200 {
			continue
		}
		poisoned++
		name := r.store.Key("api", key)
		var planted error
		switch i % 3 {
		case 0:
			planted = r.admin.Set(t.Context(), name, key, 0).Err()
		case 1:
			planted = r.admin.HSet(t.Context(), name, key, key).Err()
		default:
			planted = r.admin.HSet(t.Context(), name, "v", "tb1", "l", key, "t", key).Err()
		}
		if planted != nil {
			t.Fatal(planted)
		}
		checkErrors(t, key, r.abuse(key))
	}
	if s := r.group.Stats(); s.Policies["api"].Poisoned < int64(poisoned) {
		t.Errorf("poisoned: %+v", s.Policies)
	}
	user := "acl setuser " + r.server.User()
	for _, trouble := range [][2]string{ // and the end of it
		{user + " -pexpire", user + " +pexpire"}, {user + " -evalsha", user + " +evalsha"},
		{user + " resetkeys ~other:*", user + " ~*"}, {"config set maxmemory 1", "config set maxmemory 0"},
	} {
		r.do(trouble[0])
		for i, key := range hostileKeys[:6] {
			checkErrors(t, key, r.abuse(fmt.Sprint(trouble[0], i, key)))
		}
		r.do(trouble[1])
		r.healed()
	}
	r.server.Kill()
	for _, key := range hostileKeys {
		checkErrors(t, key, r.abuse(key))
	}
	r.checkLogs()
	seen := fmt.Sprint(r.events)
	for _, kind := range []string{"WRONGTYPE", "RLFOREIGN", "RLCORRUPT", "NOPERM", "can't run", "OOM", "connect: "} {
		if !strings.Contains(seen, kind) {
			t.Errorf("no error was %q", kind)
		}
	}
	if text := library.String(); strings.Contains(text, marker) {
		t.Errorf("go-redis logs %.300q", text)
	}
}

// Names and prefixes come from whoever configures the limiter, and are shown to him: quoted, and cut.
func TestHostileNames(t *testing.T) {
	g, err := tiered.NewGroup(remote.NewMemory(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(context.Background())
	check := func(t tester, name string) {
		_, err := g.Limiter(tiered.Policy{Name: name, Limit: tiered.PerSecond(1)})
		if err == nil {
			if !harmless(name) || len(name) > 64 {
				t.Errorf("%.100q is accepted", name)
			}
			if _, err = g.Limiter(tiered.Policy{Name: name, Limit: tiered.PerSecond(1)}); err == nil {
				t.Errorf("%q is accepted twice", name)
				return
			}
		}
		text := err.Error()
		formatted := strings.Contains(text, "%!") && !strings.Contains(name, "%!")
		if i := strings.Index(text, marker); !harmless(text) || formatted || len(text) > 700 || i >= 0 && !quoted(text, i) {
			t.Errorf("%.100q: %.700q", name, text)
		}
		_, err = remote.Open("redis://127.0.0.1:1", &remote.RedisOptions{Prefix: name})
		if err != nil && (strings.Contains(err.Error(), marker) || !harmless(err.Error())) {
			t.Errorf("prefix %.100q: %.700q", name, err)
		}
		memory := remote.NewMemory()
		_, err = memory.Presence(context.Background(), time.Second, remote.Node(name), "me", time.Second)
		if err == nil || !harmless(err.Error()) {
			t.Errorf("node %.100q: %v", name, err)
		}
	}
	for _, key := range hostileKeys {
		check(t, key)
	}
	t.Run("drawn", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { check(t, hostileKey().Draw(t, "name")) })
	})
}

// A hook that panics is logged; if the logger does so too there is nobody left to tell, and the next event has its turn.
func TestHooksAndLoggerThatPanic(t *testing.T) {
	calls := make(chan string, 3)
	g, err := tiered.NewGroup(remote.NewMemory(), &tiered.Options{
		Logger: slog.New(panickingHandler{slog.DiscardHandler}),
		Trace:  &tiered.Trace{Decision: func(d tiered.Decision) { calls <- d.Key; panic(d.Key) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := g.Limiter(tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if d := l.Allow(t.Context(), key); !d.Allowed {
			t.Errorf("%+v", d)
		}
		if got := <-calls; got != key {
			t.Errorf("the hook was called for %q", got)
		}
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

type panickingHandler struct{ slog.Handler }

func (panickingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (panickingHandler) Handle(context.Context, slog.Record) error { panic("no room on the disk") }

// lockedBuffer is what several goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
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
