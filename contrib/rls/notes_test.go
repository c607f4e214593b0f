package rls_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

const notedRules = `domain: shop
descriptors:
  - key: header_match
    descriptors:
      - {key: PATH, value: /api, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: PATH, value: /free}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
`

// notedLog returns what is logged without the time, and the logger.
func notedLog(level slog.Level) (*bytes.Buffer, *slog.Logger) {
	var log bytes.Buffer
	return &log, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
		Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// A descriptor that meets no rule is counted, and a line tells its keys and those of the nearest
// rules, once a minute for each list of keys. No line has a value.
func TestWhyNoLimitCounts(t *testing.T) {
	for _, c := range []struct{ name, request, want string }{
		{"one entry less", "shop | PATH=secret", `level=WARN msg="no limit counts: a descriptor meets no rule" domain=shop keys=(PATH) ` +
			`because="the rules begin with \"header_match\", \"user\", not with \"PATH\""`},
		{"another case", "shop | header_match=secret path=/api", `level=WARN msg="no limit counts: a descriptor meets no rule" domain=shop ` +
			`keys="(header_match, path)" because="after (header_match) the rules go on with \"PATH\", not with \"path\""`},
		{"one entry too few at the end", "shop | header_match=secret", `level=WARN msg="no limit counts: a descriptor meets no rule" ` +
			`domain=shop keys=(header_match) because="after these keys the rules go on with \"PATH\""`},
		{"one entry too many", "shop | user=secret PATH=x", `level=WARN msg="no limit counts: a descriptor meets no rule" domain=shop ` +
			`keys="(user, PATH)" because="the rules end after (user)"`},
		{"another domain", "Shop | user=secret", `level=WARN msg="no limit counts: the domain is not configured" domain=Shop configured="\"shop\""`},
		{"another value", "shop | header_match=x PATH=/api?secret=1", `level=INFO msg="no limit counts: a descriptor meets no rule" domain=shop ` +
			`keys="(header_match, PATH)" because="the rules with these keys have other values"`},
		{"a value that is free", "shop | header_match=x PATH=/free", ""},
		{"a rule", "shop | user=secret", ""},
		{"a descriptor of nothing", "shop | ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, logger := notedLog(slog.LevelInfo)
				s := newService(t, remote.NewMemory(), notedRules, &rls.Options{Logger: logger})
				for range 600 { // a minute
					fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(c.request)))(t)
					time.Sleep(100 * time.Millisecond)
				}
				if got := strings.TrimSpace(log.String()); got != c.want {
					t.Errorf("after a minute:\n%s, want\n%s", got, c.want)
				}
				_, _ = s.ShouldRateLimit(t.Context(), behavior.Request(c.request))
				if lines := strings.Count(log.String(), "\n"); c.want != "" && lines != 2 {
					t.Errorf("%d lines in more than a minute, want 2", lines)
				}
				n := s.Calls().Unmatched
				domain, _, _ := strings.Cut(c.request, " ")
				if domain == "Shop" {
					domain = ""
				}
				if want := uint64(601); c.want == "" && c.name != "a descriptor of nothing" && n[domain] != 0 || c.want != "" && n[domain] != want {
					t.Errorf("unmatched: %v", n)
				}
			})
		})
	}
}

// However many lists of keys come, the lines and the memory for them are bounded.
func TestNotesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logger := notedLog(slog.LevelWarn)
		s := newService(t, remote.NewMemory(), notedRules, &rls.Options{Logger: logger})
		for i := range 500 {
			fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(fmt.Sprintf("shop | key%d=a", i))))(t)
			time.Sleep(100 * time.Millisecond)
		}
		if lines := strings.Count(log.String(), "\n"); lines != rls.MostTold || rls.Told(s) != rls.MostTold {
			t.Errorf("%d lines, %d lists are known, want %d", lines, rls.Told(s), rls.MostTold)
		}
	})
}

// At LevelDebug, and only there, a line for each descriptor tells who was refused by which rule,
// and why. With HashKey it has no value.
func TestRequestLog(t *testing.T) {
	play := func(o *rls.Options) string {
		log, logger := notedLog(slog.LevelDebug)
		o.Logger = logger
		s := newService(t, remote.NewMemory(), behavior.Config, o)
		fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request("shop | user=ann +4 | admin=ann | user=ann limit=5/day | cheap=a | dear=a | quota= | tenant=a route=/a1")))(t)
		var all []string
		for line := range strings.Lines(log.String()) {
			if rest, ok := strings.CutPrefix(line, `level=DEBUG msg="a descriptor" domain=shop `); ok {
				all = append(all, regexp.MustCompile(`reset=[0-9hms]+\n`).ReplaceAllString(rest, "reset=…\n"))
			}
		}
		return strings.Join(all, "")
	}
	want := `descriptor="user=ann" rule=user hits=4 code=OVER_LIMIT limit="3 per year" left=0 because="exceeds burst" decided=none reset=…
descriptor="admin=ann" rule=unlimited hits=1 code=OK
descriptor="user=ann" rule="the limit that came with it" hits=1 code=OK limit="5 per day" left=4 because=granted decided=remote reset=…
descriptor="cheap=a" rule="replaced by another" hits=1 code=OK
descriptor="dear=a" rule=dear hits=1 code=OK limit="4 per year" left=3 because=granted decided=remote reset=…
descriptor="quota=" rule=quota hits=1 code=OK limit="1 per year" left=0 because=granted decided=remote reset=…
descriptor="tenant=a, route=/a1" rule=tenant.route_/a* hits=1 code=OK limit="2 per year" left=1 because=granted decided=remote reset=…
`
	if is := play(&rls.Options{}); is != want {
		t.Errorf("%s\nmust be\n%s", is, want)
	}
	is := play(&rls.Options{HashKey: []byte("0123456789abcdef")})
	if strings.Contains(is, "ann") || !strings.Contains(is, `descriptor="user=hmac:`) {
		t.Errorf("%s", is)
	}
}

// Each call is counted once, by what Envoy hears: also those that gRPC refuses before they reach
// the service. The log tells of them.
func TestCallsAreCounted(t *testing.T) {
	log, logger := notedLog(slog.LevelWarn)
	s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{MaxDescriptors: 3, Logger: logger})
	server := grpc.NewServer(rls.ServerOption(), grpc.StatsHandler(s.StatsHandler()), grpc.MaxRecvMsgSize(1000))
	pb.RegisterRateLimitServiceServer(server, s)
	at := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(at) }()
	conn := fatal.Get(grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	for _, request := range []string{
		"shop | user=a", "shop | user=a +9", "shop | user=b", "shop | a=1 | a=2 | a=3 | a=4", "shop", "", "shop | user=" + strings.Repeat("x", 2000),
	} {
		_, _ = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), behavior.Request(request))
	}
	// The client hears of a call before the server counts it, and only the first of a kind is told
	// within a minute.
	for end := time.Now().Add(10 * time.Second); s.Calls().Failed[codes.ResourceExhausted] == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	text := []byte("\x0a\xff")
	_ = conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, &text, new([]byte), grpc.ForceCodec(raw{}))
	_ = conn.Close()
	server.GracefulStop()
	<-done
	c := s.Calls()
	want := map[codes.Code]uint64{codes.InvalidArgument: 2, codes.ResourceExhausted: 1, codes.Internal: 1}
	if c.OK != 2 || c.OverLimit != 1 || c.BadForm != 1 || fmt.Sprint(c.Failed) != fmt.Sprint(want) {
		t.Errorf("%+v, want 2 OK, 1 over the limit, 1 of a bad form, and %v", c, want)
	}
	if !strings.Contains(log.String(), "received message larger than max (2021 vs. 1000)") {
		t.Errorf("the log does not tell of the call that is too long:\n%s", log)
	}
}
