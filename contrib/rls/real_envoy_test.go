package rls

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// place sets an address to 127.0.0.1 and a port.
func place(at *core.Address, port int) {
	at.GetSocketAddress().Address = "127.0.0.1"
	at.GetSocketAddress().PortSpecifier = &core.SocketAddress_PortValue{PortValue: uint32(port)}
}

// local returns envoy/envoy.yaml for ports of this machine.
func local(t *testing.T, envoy, service, upstream int) *bootstrap.Bootstrap {
	t.Helper()
	b := readBootstrap(t)
	place(b.GetStaticResources().GetListeners()[0].GetAddress(), envoy)
	for i, port := range []int{service, upstream} {
		c := b.GetStaticResources().GetClusters()[i]
		place(c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress(), port)
	}
	validate(t, b)
	return b
}

// portOf returns the port of "127.0.0.1:port".
func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A real Envoy with the configuration of envoy/envoy.yaml lets through exactly what the rules of the manifests allow.
func TestRealEnvoy(t *testing.T) {
	rules := strings.ReplaceAll(rulesOfManifest(t), "unit: minute", "unit: year") // which does not end during the test
	s := newService(t, remote.NewMemory(), rules, &Options{Headers: &DefaultHeaders})
	server := grpc.NewServer(ServerOption())
	pb.RegisterRateLimitServiceServer(server, s)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(at)
	}()
	defer func() { server.Stop(); <-served }()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	port := redistest.FreePort(t)
	service, behind := portOf(t, at.Addr().String()), portOf(t, upstream.Listener.Addr().String())
	config, err := protojson.Marshal(local(t, port, service, behind))
	if err != nil {
		t.Fatal(err)
	}
	binary, err := exec.LookPath("envoy")
	if err != nil {
		t.Skip("there is no envoy in PATH: its configuration is checked, but no Envoy asks the service")
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // or Envoy would die with the thread
	defer runtime.UnlockOSThread()
	ctx, stop := context.WithCancel(t.Context())
	envoy := exec.CommandContext(ctx, binary, "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warn")
	envoy.Stdout, envoy.Stderr, envoy.SysProcAttr = t.Output(), t.Output(), redistest.DieWithParent()
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stop(); _ = envoy.Wait() }()

	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	ask := func(path string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(port)+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("x-api-key", "ann")
		answer, err := client.Do(r)
		if err != nil {
			return nil
		}
		_ = answer.Body.Close()
		return answer
	}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) { // until Envoy has found the service and counts
		if r := ask("/"); r != nil && r.Header.Get("RateLimit-Limit") != "" {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("Envoy does not ask the service within a minute")
		}
	}
	const limit, requests = 10, 25
	statuses := map[int]int{}
	for range requests {
		r := ask("/checkout")
		if r == nil {
			t.Fatal("no answer")
		}
		statuses[r.StatusCode]++
		if r.StatusCode == http.StatusTooManyRequests && (r.Header.Get("RateLimit-Remaining") != "0" ||
			r.Header.Get("x-envoy-ratelimited") != "true") {
			t.Errorf("the headers of a refusal: %v", r.Header)
		}
	}
	if statuses[http.StatusOK] != limit || statuses[http.StatusTooManyRequests] != requests-limit {
		t.Errorf("%v, want %d answers 200 and the others 429", statuses, limit)
	}
}
