package main_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// unread returns what a client sends that makes n calls, each on a stream of its own, and allows no
// bytes of an answer.
func unread(t *testing.T, n int) []byte {
	t.Helper()
	message := fatal.Get(proto.Marshal(behavior.Request("shop | user=slow")))(t)
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	var out, headers bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, fields := http2.NewFramer(&out, nil), hpack.NewEncoder(&headers)
	all := []error{framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})}
	for i := range n {
		headers.Reset()
		for _, h := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
			{":authority", "a"},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
		} {
			all = append(all, fields.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
		}
		stream := uint32(2*i + 1)
		all = append(all,
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers.Bytes(), EndHeaders: true}),
			framer.WriteData(stream, true, body))
	}
	for _, err := range all {
		if err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// connect returns a connection that ends with the test.
func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	conn := fatal.Get(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// memory returns the bytes that a process uses after a garbage collection, in its heap and its
// stacks.
func (p *process) memory(t *testing.T) (sum int64) {
	t.Helper()
	p.get("/debug/pprof/heap?gc=1")
	for _, name := range []string{"go_memstats_alloc_bytes", "go_memstats_stack_inuse_bytes"} {
		sum += int64(p.metric(t, name))
	}
	return sum
}

// postJSON begins a request, and needs the length of the body.
const postJSON = "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" + endOfHeader

const endOfHeader = "\r\n"

// crowd sends what clients do that make 5000 calls each and never read an answer, by gRPC and by
// HTTP. Slow ones send a byte now and then: of the body of a request, or of what begins a gRPC
// connection.
func crowd(t *testing.T, p *process, unreading, slow int) {
	t.Helper()
	text, public := unread(t, 5000), strings.TrimPrefix(p.public, "http://")
	pages := []byte(strings.Repeat("GET /v1/openapi.yaml HTTP/1.1\r\nHost: a\r\n\r\n", 5000))
	for range unreading {
		calls, requests := connect(t, p.address), connect(t, public)
		go func() { _, _ = calls.Write(text) }()
		go func() { _, _ = requests.Write(pages) }()
	}
	for i := range slow {
		address, text, every := p.address, http2.ClientPreface, 2*time.Second
		if i%2 == 0 {
			address, text, every = public, strings.Repeat(" ", 999), time.Second
		}
		conn := connect(t, address)
		if i%2 == 0 {
			fatal.Get(fmt.Fprintf(conn, postJSON, len(text)))(t)
		}
		go func() {
			for _, b := range []byte(text) {
				if _, err := conn.Write([]byte{b}); err != nil {
					return // the server or the test has closed it
				}
				time.Sleep(every)
			}
		}()
	}
}

// connections returns how many connections a process serves on its gRPC and HTTP ports.
func (p *process) connections() int {
	_, goroutines := p.get("/debug/pprof/goroutine?debug=2")
	sum := 0
	for _, serve := range []string{"grpc.(*Server).Serve", "grpc.(*Server).handleRawConn", "http.(*Server).Serve"} {
		sum += strings.Count(goroutines, serve+" in goroutine") // a line "created by"
	}
	return sum
}

// A crowd takes a bounded memory, and others are served meanwhile. The server lets it go.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	t.Parallel()                           // it waits, as the other parallel tests do
	const clients, streams = 20, 20 * 1000 // that are open: a connection has TIERED_MAX_STREAMS
	p := start(t, limits)
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	before := p.memory(t)
	crowd(t, p, clients, 200)
	var most, others int64
	var longest time.Duration
	eventually(t, "the crowd is gone", func() bool {
		asked := time.Now()
		fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=other")))(t)
		longest, others = max(longest, time.Since(asked)), others+1
		if code, _ := p.get("/readyz"); code != http.StatusOK {
			t.Fatalf("/readyz: %d", code)
		}
		most = max(most, p.memory(t)-before)
		return p.connections() < clients/2
	})
	t.Logf("%d calls of others, the longest took %v; %d MB for %d streams", others, longest, most>>20, streams)
	if most > streams*16<<10 {
		t.Errorf("%d bytes for %d streams: want at most 16 kB each", most, streams)
	}
}

// At SIGTERM, those who watch its health see that it takes no more calls. A call under way is
// answered. A crowd does not keep it for longer than TIERED_DRAIN.
func TestDrain(t *testing.T) {
	t.Parallel()
	p := start(t, limits, "TIERED_DRAIN=4s")
	crowd(t, p, 3, 10)
	conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	watches := map[string]grpc.ServerStreamingClient[healthpb.HealthCheckResponse]{}
	for _, name := range []string{"", "ratelimit", pb.RateLimitService_ServiceDesc.ServiceName} {
		watch := fatal.Get(healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: name}))(t)
		if is, err := watch.Recv(); err != nil || is.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("%q before: %v, %v", name, is, err)
		}
		watches[name] = watch
	}
	call := connect(t, strings.TrimPrefix(p.public, "http://"))
	header := strings.TrimSuffix(postJSON, endOfHeader) + "Expect: 100-continue\r\n" + endOfHeader
	fatal.Get(fmt.Fprintf(call, header, len(askByHTTP)))(t)
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n" // the call is under way, and reads its body
	answer := make([]byte, len(goOn))
	if _, err := io.ReadFull(call, answer); err != nil || string(answer) != goOn {
		t.Fatalf("%q, %v", answer, err)
	}
	begin := time.Now()
	fatal.If(t, p.Process.Signal(syscall.SIGTERM))
	for name, watch := range watches {
		if is, err := watch.Recv(); err != nil || is.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("%q after: %v, %v", name, is, err)
		}
	}
	fatal.Get(call.Write([]byte(askByHTTP)))(t)
	answer = answer[:15]
	if _, err := io.ReadFull(call, answer); err != nil || string(answer) != "HTTP/1.1 200 OK" {
		t.Errorf("the call under way: %q, %v", answer, err)
	}
	err := p.Wait()
	took := time.Since(begin)
	t.Logf("it took %v to end", took)
	if err != nil || took < 4*time.Second || took > 20*time.Second {
		t.Errorf("%v, after %v: want 4 s, and some for a busy machine", err, took)
	}
}

// At SIGTERM health fails at once, and all is answered as before on new connections, until
// TIERED_DRAIN_DELAY is over: proxies have not heard yet that the process ends. A second SIGTERM
// ends it at once, and its leases go back.
func TestDrainDelay(t *testing.T) {
	p := start(t, limits, "TIERED_DRAIN=30m", "TIERED_DRAIN_DELAY=20m")
	fatal.If(t, p.Process.Signal(syscall.SIGTERM))
	eventually(t, "it is not ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusServiceUnavailable })
	for i := range 20 {
		conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")); err != nil {
			t.Errorf("call %d on a new connection: %v", i, err)
		}
		is, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || is.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health: %v, %v", is, err)
		}
		_ = conn.Close()
		p.http.CloseIdleConnections()
		if code := p.post("/json", askByHTTP, ""); code != http.StatusOK {
			t.Errorf("HTTP call %d on a new connection: %d", i, code)
		}
	}
	p.terminate(t)
}

// An Envoy that opens 20 000 streams has TIERED_MAX_STREAMS of them: the others wait at the client.
// The log says so once, others are answered, and so is it when it has let them go.
func TestTwentyThousandStreams(t *testing.T) {
	p := start(t, limits)
	conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var open atomic.Int64
	var all sync.WaitGroup
	for range 20_000 {
		all.Go(func() { // a call without its request
			if _, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, pb.RateLimitService_ShouldRateLimit_FullMethodName); err == nil {
				open.Add(1)
			}
		})
	}
	const told = "a connection has as many calls open as TIERED_MAX_STREAMS"
	eventually(t, "the log says so", func() bool { return p.told(told) > 0 })
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	if n := open.Load(); n > 1100 { // a client may open 100 before it hears of the bound
		t.Errorf("%d streams are open", n)
	}
	cancel()
	all.Wait()
	q := *p
	q.client = pb.NewRateLimitServiceClient(conn)
	q.play(t, [2]string{"shop | user=a", "OK | OK 98/100"})
	if n := p.told(told); n != 1 {
		t.Errorf("it is told %d times", n)
	}
}
