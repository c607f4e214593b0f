package main_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// loading is a server in this process whose configuration takes as long to load as the test wants.
type loading struct {
	*process
	health healthpb.HealthClient
	begun  chan struct{} // a load has begun, and waits
	goOn   chan struct{} // lets it end
	ended  chan error    // of serve
	stop   context.CancelFunc
}

func startLoading(t *testing.T) *loading {
	t.Helper()
	port := func() uint16 { return uint16(redistest.FreePort(t)) }
	s := tieredd.Settings{
		Host: "127.0.0.1", Port: port(), DebugHost: "127.0.0.1", DebugPort: port(), GRPCHost: "127.0.0.1", GRPCPort: port(),
		MaxMessage: 1 << 20, MaxStreams: 1000, Drain: time.Second, LogLevel: "error", LogFormat: "text",
	}
	l := &loading{begun: make(chan struct{}), goOn: make(chan struct{}), ended: make(chan error, 1)}
	loads := 0
	v := newServer(t, s, nil, func() ([]rls.File, error) {
		l.begun <- struct{}{}
		<-l.goOn
		loads++
		return []rls.File{{Name: "limits.yaml", Text: fmt.Appendf(nil, "%s# %d", limits, (loads+1)/2)}}, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	go func() {
		l.ended <- v.Serve(ctx)
		v.Close()
	}()
	l.process = &process{
		address: fmt.Sprint("127.0.0.1:", s.GRPCPort), public: fmt.Sprint("http://127.0.0.1:", s.Port), http: &http.Client{},
	}
	t.Cleanup(l.http.CloseIdleConnections)
	conn := fatal.Get(grpc.NewClient(l.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	l.client, l.health = pb.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	return l
}

// ends stops the server while a load waits, and demands that it does not wait for it.
func (l *loading) ends(t *testing.T) {
	t.Helper()
	l.stop()
	select {
	case err := <-l.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it does not end while a configuration loads")
	}
	close(l.goOn)
}

// While the first configuration loads, a liveness probe is answered, and nothing says that the
// server is ready. It ends when it is told to.
func TestFirstLoad(t *testing.T) {
	for _, ends := range []bool{true, false} {
		l := startLoading(t)
		<-l.begun
		eventually(t, "it is alive", func() bool { code, _ := l.get("/healthz"); return code == http.StatusOK })
		if code, _ := l.get("/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz answers %d", code)
		}
		for path, body := range map[string]string{
			"/json": askByHTTP, "/v1/allow": `{"uses":[{"policy":"shop.user.year","key":"1:a"}]}`,
		} {
			if code := l.post(path, body, ""); code != http.StatusServiceUnavailable {
				t.Errorf("%s answers %d, want 503", path, code)
			}
		}
		wait := grpc.WaitForReady(true)
		if _, err := l.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a"), wait); status.Code(err) != codes.Unavailable {
			t.Errorf("ShouldRateLimit: %v, want Unavailable", err)
		}
		is, err := l.health.Check(t.Context(), &healthpb.HealthCheckRequest{}, wait)
		if err != nil || is.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health: %v, %v", is, err)
		}
		if ends {
			l.ends(t)
			continue
		}
		l.goOn <- struct{}{}
		<-l.begun // the second reading
		l.goOn <- struct{}{}
		eventually(t, "it is ready", func() bool { code, _ := l.get("/readyz"); return code == http.StatusOK })
		l.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
		<-l.begun // the next one
		l.play(t, [2]string{"shop | user=a", "OK | OK 98/100"})
		l.ends(t)
	}
}

// rules is how many rules TestLargeConfiguration has. docs/service-operate.md names it.
const rules = 20_000

// A process with many rules is alive while it loads them, gets ready, and answers calls while it
// loads them anew. It ends in time although it loads.
func TestLargeConfiguration(t *testing.T) {
	if page, err := os.ReadFile("../../../../docs/service-operate.md"); err != nil ||
		!strings.Contains(strings.Join(strings.Fields(string(page)), " "), "20 000 rules") {
		t.Errorf("the page does not say that %d rules are tested: %v", rules, err)
	}
	if testing.Short() {
		t.Skip("a minute of real time")
	}
	config := func(limit int) string {
		var b strings.Builder
		b.WriteString(limits)
		for i := range rules - 1 {
			fmt.Fprintf(&b, "  - {key: user, value: u%d, rate_limit: {unit: minute, requests_per_unit: %d}}\n", i, limit)
		}
		return b.String()
	}
	p := start(t, limits, "TIERED_DRAIN=1s", "REDIS_URL="+redistest.Start(t).URL())
	p.terminate(t)
	p.write(t, config(1))
	p.launch(t)
	begin := time.Now()
	eventually(t, "it is alive", func() bool { code, _ := p.get("/healthz"); return code == http.StatusOK })
	alive := time.Since(begin)
	eventually(t, "it is ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	t.Logf("alive after %v, ready after %v with %d rules and %d MB", alive, time.Since(begin), rules, p.memory(t)>>20)

	p.write(t, config(2))
	begin = time.Now()
	var longest time.Duration
	eventually(t, "the new rules count", func() bool {
		asked := time.Now()
		answer, err := p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=u7 +0"), grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(asked))
		return answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 2
	})
	t.Logf("new rules after %v, and the longest call took %v", time.Since(begin), longest)

	p.write(t, config(3))
	time.Sleep(2200 * time.Millisecond) // it loads
	begin = time.Now()
	p.terminate(t)
	took := time.Since(begin)
	t.Logf("it ended %v after SIGTERM", took)
	if took > 10*time.Second {
		t.Error("want at most 1 s for the calls and 5 s for the leases, and some for a busy machine")
	}
}
