package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	otellimit "github.com/tiered-limiter/tiered-limiter/contrib/otel"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// eventsOf returns the events of a span that f has as the span of its context, one line each.
func eventsOf(t *testing.T, f func(context.Context)) []string {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)).Tracer("test")
	ctx, span := tracer.Start(t.Context(), "request")
	f(ctx)
	span.End()
	var lines []string
	for _, s := range exporter.GetSpans() {
		if s.Status.Code != 0 {
			t.Errorf("the span has status %v", s.Status)
		}
		for _, e := range s.Events {
			line := e.Name + describe(attribute.NewSet(e.Attributes...))
			if strings.Contains(line, "key-") || strings.Contains(line, "10.0.0.7") {
				t.Errorf("a key is in %s", line)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func equalLines(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s has the events\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A refusal is an event, an admission is none.
func TestRecord(t *testing.T) {
	refused := func(d tiered.Decision) tiered.Decision {
		d.Policy, d.Key = "p", "key-ann"
		return d
	}
	for _, c := range []struct {
		name string
		d    tiered.Decision
		want []string
	}{
		{"granted", tiered.Decision{Allowed: true, Reason: tiered.Granted}, nil},
		{"shadowed", tiered.Decision{Allowed: true, Reason: tiered.Shadowed}, nil},
		{"zero", tiered.Decision{}, []string{
			`ratelimit.refused{ratelimit.policy="", ratelimit.reason="unknown", ratelimit.tier="none"}`,
		}},
		{"limited", refused(tiered.Decision{
			Reason: tiered.Limited, Tier: tiered.Local, RetryAfter: 1500 * time.Millisecond,
			LimitNumber: 2, Burst: 10, Remaining: 3,
		}), []string{
			`ratelimit.refused{ratelimit.limit_number="2", ratelimit.policy="p", ratelimit.reason="limited", ` +
				`ratelimit.retry_after="1.5", ratelimit.tier="local"}`,
		}},
		{"unavailable", refused(tiered.Decision{Reason: tiered.Unavailable, Tier: tiered.Failover}), []string{
			`ratelimit.refused{ratelimit.policy="p", ratelimit.reason="unavailable", ratelimit.tier="failover"}`,
		}},
		{"hostile", tiered.Decision{Policy: "a\xffb", Reason: tiered.InvalidKey}, []string{
			`ratelimit.refused{ratelimit.policy="a?b", ratelimit.reason="invalid key", ratelimit.tier="none"}`,
		}},
	} {
		equalLines(t, c.name, eventsOf(t, func(ctx context.Context) { otellimit.Record(ctx, c.d) }), c.want...)
	}
}

// A wait is an event: how long, and why it ended without tokens.
func TestWaitN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store,
			tiered.Policy{Name: "p", Limit: tiered.PerSecond(2).WithBurst(2)},
			tiered.Policy{Name: "closed", Limit: tiered.PerSecond(2), FailMode: tiered.FailClosed},
		)
		l := testgroup.Of(t, g, "p")
		wait := func(ctx context.Context, n int64, want error) {
			t.Helper()
			if err := otellimit.WaitN(ctx, l, "key-ann", n); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		equalLines(t, "no wait", eventsOf(t, func(ctx context.Context) { wait(ctx, 2, nil) }))
		equalLines(t, "a wait", eventsOf(t, func(ctx context.Context) { wait(ctx, 1, nil) }),
			`ratelimit.wait{ratelimit.policy="p", ratelimit.wait.duration="0.5"}`)
		equalLines(t, "a wait in vain", eventsOf(t, func(ctx context.Context) {
			if err := otellimit.WaitN(ctx, l, "key-ann", 3); !errors.As(err, new(*tiered.LimitedError)) {
				t.Errorf("%v, want a refusal", err)
			}
		}),
			`ratelimit.wait{ratelimit.policy="p", ratelimit.reason="exceeds burst", ratelimit.tier="none", `+
				`ratelimit.wait.duration="0"}`)
		equalLines(t, "a wait beyond the deadline", eventsOf(t, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			wait(ctx, 2, context.DeadlineExceeded)
		}), `ratelimit.wait{ratelimit.policy="p", ratelimit.reason="limited", ratelimit.retry_after="1", `+
			`ratelimit.tier="local", ratelimit.wait.duration="0"}`)
		equalLines(t, "a wait given up", eventsOf(t, func(ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, cancel)
			wait(ctx, 2, context.Canceled)
		}), `ratelimit.wait{ratelimit.policy="p", ratelimit.reason="canceled", ratelimit.wait.duration="0.1"}`)
		several := tiered.All(l.For("key-bob"), testgroup.Of(t, g, "closed").For("key-bob").N(2))
		lines := eventsOf(t, func(ctx context.Context) {
			for range 2 { // the second one waits
				if err := otellimit.Wait(ctx, several); err != nil {
					t.Error(err)
				}
			}
		})
		if len(lines) != 1 || !strings.HasPrefix(lines[0], `ratelimit.wait{ratelimit.wait.duration="1.`) {
			t.Errorf("several keys: the events are %q", lines)
		}
		store.Fail(errRefused)
		l = testgroup.Of(t, g, "closed")
		equalLines(t, "a wait without Redis", eventsOf(t, func(ctx context.Context) {
			wait(ctx, 1, tiered.ErrUnavailable)
		}), `ratelimit.wait{ratelimit.policy="closed", ratelimit.reason="unavailable", ratelimit.tier="failover", `+
			`ratelimit.wait.duration="0"}`)
	})
}

// Without a recording span, neither an event nor an allocation is made.
func TestNotRecording(t *testing.T) {
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(1_000_000)})
	l := testgroup.Of(t, g, "p")
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	sampled, span := never.Start(t.Context(), "request")
	defer span.End()
	ended, span := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "request")
	span.End()
	d := tiered.Decision{Policy: "p", Reason: tiered.Limited, RetryAfter: time.Second}
	for name, ctx := range map[string]context.Context{"no span": t.Context(), "not sampled": sampled, "ended": ended} {
		if n := testing.AllocsPerRun(100, func() { otellimit.Record(ctx, d) }); n != 0 {
			t.Errorf("%s: Record makes %v allocations", name, n)
		}
		const tooMany = 1 << 30 // refused at once: other goroutines would allocate for a call to Redis
		plain := testing.AllocsPerRun(100, func() { _ = l.WaitN(ctx, "key-ann", tooMany) })
		if n := testing.AllocsPerRun(100, func() { _ = otellimit.WaitN(ctx, l, "key-ann", tooMany) }); n > plain {
			t.Errorf("%s: WaitN makes %v allocations, and without events %v", name, n, plain)
		}
	}
	d.Allowed = true
	equalLines(t, "an admission", eventsOf(t, func(ctx context.Context) {
		if n := testing.AllocsPerRun(100, func() { otellimit.Record(ctx, d) }); n != 0 {
			t.Errorf("an admission makes %v allocations", n)
		}
	}))
	otellimit.Record(nil, tiered.Decision{}) //nolint:staticcheck // a nil context has no span
}

// Refusals of httplimit are events, and its answers stay as they are.
func TestHTTP(t *testing.T) {
	answer := func(ctx context.Context, o *httplimit.Options, l *tiered.Limiter, from string) string {
		limit, err := httplimit.New([]httplimit.Rule{{Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse}}, o)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })).ServeHTTP(w, r)
		return fmt.Sprintf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(1)})
	l := testgroup.Of(t, g, "p")
	equalLines(t, "an admission", eventsOf(t, func(ctx context.Context) {
		answer(ctx, &httplimit.Options{Refused: otellimit.Record}, l, "10.0.0.7:1")
	}))
	for from, want := range map[string]string{
		"10.0.0.7:1": `ratelimit.refused{ratelimit.policy="p", ratelimit.reason="limited", ratelimit.retry_after=`,
		"nowhere":    `ratelimit.refused{ratelimit.policy="p", ratelimit.reason="invalid key", ratelimit.tier="none"}`,
	} {
		plain := answer(t.Context(), &httplimit.Options{Problem: true}, l, from)
		lines := eventsOf(t, func(ctx context.Context) {
			if got := answer(ctx, &httplimit.Options{Problem: true, Refused: otellimit.Record}, l, from); got != plain {
				t.Errorf("%s\nis the answer with Refused, and without it\n%s", got, plain)
			}
		})
		if len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
			t.Errorf("the events of %s are %q", from, lines)
		}
	}
}

// Refusals of grpclimit are events, and its answers stay as they are.
func TestGRPC(t *testing.T) {
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(1)})
	limit := fatal.Get(grpclimit.New(
		[]grpclimit.Rule{{Limiter: testgroup.Of(t, g, "p"), Key: grpclimit.Metadata("user"), Missing: grpclimit.Refuse}},
		&grpclimit.Options{Refused: otellimit.Record}))(t)
	call := func(ctx context.Context) codes.Code {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("user", "key-ann"))
		_, err := limit.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"},
			func(context.Context, any) (any, error) { return "served", nil })
		return status.Code(err)
	}
	for _, c := range []struct {
		code  codes.Code
		lines int
	}{{codes.OK, 0}, {codes.ResourceExhausted, 1}} {
		lines := eventsOf(t, func(ctx context.Context) {
			if code := call(ctx); code != c.code {
				t.Errorf("the code is %v, want %v", code, c.code)
			}
		})
		if len(lines) != c.lines {
			t.Errorf("%v: the events are %q", c.code, lines)
		}
	}
}
