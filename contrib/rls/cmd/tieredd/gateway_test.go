package main_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/controlplane"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// gateway is a real Envoy Gateway without Kubernetes: it reads its resources from files, and starts
// its Envoy itself. Its own ports are fixed: 18000 to 18002 and 19000 to 19003.
type gateway struct {
	*exec.Cmd
	program, dir, log string
	port              int // of the listener
}

const gatewayConfig = `apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [DIR/resources]}}
    infrastructure: {type: Host, host: {configHome: DIR/home, dataHome: DIR/data, stateHome: DIR/state, runtimeDir: DIR/run}}
# tieredd is told the real Redis. A call that fails is a request that fails, and a busy machine is no outage.
rateLimit: {backend: {type: Redis, redis: {url: "localhost:6379"}}, failClosed: true, timeout: 10s}
extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true, enableLua: true}
`

func newGateway(t *testing.T, upstream string, service int) *gateway {
	t.Helper()
	g := &gateway{program: os.Getenv("TIERED_TEST_GATEWAY"), port: redistest.FreePort(t)}
	if g.program == "" {
		t.Skip("TIERED_TEST_GATEWAY names no Envoy Gateway: make gateway builds one")
	}
	g.dir = t.TempDir()
	g.log = filepath.Join(g.dir, "log")
	g.write(t, "config.yaml", strings.ReplaceAll(gatewayConfig, "DIR", g.dir))
	_, port, _ := strings.Cut(upstream, ":")
	text := string(fatal.Get(os.ReadFile("testdata/gateway/gateway.yaml"))(t))
	g.write(t, "resources/gateway.yaml", strings.NewReplacer("port: GATEWAY", "port: "+strconv.Itoa(g.port), "port: UPSTREAM", "port: "+port,
		"value: SERVICE", "value: "+strconv.Itoa(service)).Replace(text))
	envoy := filepath.Join(g.dir, "data/envoy-versions/1.40.0/bin/envoy") // where it would be downloaded
	fatal.If(t, os.MkdirAll(filepath.Dir(envoy), 0o700))
	fatal.If(t, os.Symlink(fatal.Get(filepath.Abs(envoytest.Program(t)))(t), envoy))
	if out, err := exec.Command(g.program, "certgen", "--local", "--config-home", filepath.Join(g.dir, "home")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return g
}

func (g *gateway) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(g.dir, name)
	fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
	next := filepath.Join(g.dir, "next")
	fatal.If(t, os.WriteFile(next, []byte(text), 0o600))
	fatal.If(t, os.Rename(next, path))
}

// policies writes the policies, with a limit for each user, and without those of one name.
func (g *gateway) policies(t *testing.T, users int, without string) {
	t.Helper()
	text := string(fatal.Get(os.ReadFile("testdata/gateway/policies.yaml"))(t))
	var all []string
	for _, p := range strings.Split(strings.ReplaceAll(text, "requests: USERS", "requests: "+strconv.Itoa(users)), "\n---\n") {
		if without == "" || !strings.Contains(p, "metadata: {name: "+without+",") {
			all = append(all, p)
		}
	}
	g.write(t, "resources/policies.yaml", strings.Join(all, "\n---\n"))
}

func (g *gateway) start(t *testing.T) {
	t.Helper()
	log := fatal.Get(os.Create(g.log))(t)
	t.Cleanup(func() { _ = log.Close() })
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	g.Cmd = exec.Command(g.program, "server", "--config-path", filepath.Join(g.dir, "config.yaml"))
	g.Stdout, g.Stderr, g.SysProcAttr = log, log, redistest.DieWithParent()
	fatal.If(t, g.Start())
	c := g.Cmd
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt) // it ends its Envoy
		_ = c.Wait()
		if text, _ := os.ReadFile(g.log); t.Failed() {
			t.Logf("%.8000s", text)
		}
	})
	eventually(t, "its Envoy answers", func() bool { code, _ := g.ask("/free"); return code == http.StatusOK })
}

// end ends it, and with it its Envoy.
func (g *gateway) end(t *testing.T) {
	t.Helper()
	fatal.If(t, g.Process.Signal(os.Interrupt))
	_ = g.Wait()
	eventually(t, "its Envoy is gone", func() bool { code, _ := g.ask("/free"); return code == 0 })
}

var gatewayClient = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (g *gateway) ask(path string, headers ...string) (status int, h http.Header) {
	r, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", g.port, path), nil)
	if err != nil {
		return 0, nil
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := gatewayClient.Do(r)
	if err != nil {
		return 0, nil
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Header
}

// admits demands that want of n requests are admitted, and the others are over the limit.
func (g *gateway) admits(t *testing.T, want, n int, path string, headers ...string) {
	t.Helper()
	all := map[int]int{}
	for range n {
		status, _ := g.ask(path, headers...)
		all[status]++
	}
	if all[http.StatusOK] != want || all[http.StatusTooManyRequests] != n-want {
		t.Errorf("%s %q: %v, want %d of %d admitted", path, headers, all, want, n)
	}
}

func (g *gateway) certificate(name string) string {
	return filepath.Join(g.dir, "home/certs/envoy-rate-limit", name)
}

// snapshot returns what the Envoy Gateway sends to a rate limit service, as JSON.
func (g *gateway) snapshot(t *testing.T) []byte {
	t.Helper()
	pair := fatal.Get(tls.LoadX509KeyPair(g.certificate("tls.crt"), g.certificate("tls.key")))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(fatal.Get(os.ReadFile(g.certificate("ca.crt")))(t))
	conn := fatal.Get(grpc.NewClient("127.0.0.1:18001", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "envoy-gateway",
	}))))(t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := fatal.Get(discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx))(t)
	fatal.If(t, stream.Send(&discovery.DiscoveryRequest{Node: &core.Node{Id: "envoy-ratelimit"}, TypeUrl: response("", "").GetTypeUrl()}))
	r := fatal.Get(stream.Recv())(t)
	r.VersionInfo, r.Nonce, r.ControlPlane = "", "", nil
	var out bytes.Buffer
	fatal.If(t, json.Indent(&out, fatal.Get(protojson.Marshal(r))(t), "", " "))
	return append(out.Bytes(), '\n')
}

// A real Envoy Gateway configures a real Envoy and tieredd, and each policy limits what it says:
// also one that changes under load, one that goes and comes back, and while Envoy Gateway is away.
// With TIERED_TEST_RECORD what it sends is written for TestRecordedGateway.
func TestGateway(t *testing.T) {
	if os.Getenv("TIERED_TEST_GATEWAY") == "" {
		t.Skip("TIERED_TEST_GATEWAY names no Envoy Gateway: make gateway builds one")
	}
	redis := redistest.StartOpen(t)
	service := redistest.FreePort(t)
	g := newGateway(t, envoytest.Upstream(t), service)
	g.policies(t, 5, "")
	// It starts before there is a control plane.
	p := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=localhost:18001", "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+g.certificate("tls.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+g.certificate("tls.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+g.certificate("ca.crt"), "CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway",
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=1s", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr, patient, fmt.Sprintf("GRPC_PORT=%d", service))
	g.start(t)
	eventually(t, "it has the rules", func() bool { _, all := p.get("/rlconfig"); return strings.Contains(all, "5 per month") })
	record := func(name string) {
		if os.Getenv("TIERED_TEST_RECORD") != "" {
			fatal.If(t, os.WriteFile("testdata/gateway/"+name+".json", g.snapshot(t), 0o644))
		}
	}
	record("all")

	g.admits(t, 5, 8, "/users", "x-user", "ann")
	g.admits(t, 5, 8, "/users", "x-user", "bob")
	g.admits(t, 3, 5, "/users", "x-user", "vip")
	g.admits(t, 4, 4, "/users")
	g.admits(t, 4, 6, "/addresses")
	g.admits(t, 4, 4, "/shared/a", "x-all", "ann")
	g.admits(t, 2, 4, "/shared/b", "x-all", "ann")
	g.admits(t, 6, 8, "/shared/a", "x-own", "ann")
	g.admits(t, 6, 8, "/shared/b", "x-own", "ann")
	g.admits(t, 9, 9, "/free", "x-user", "ann")
	g.admits(t, 5, 8, "/contracts", "x-user", "ann")
	g.admits(t, 8, 10, "/contracts", "x-user", "bob", "x-contract", "8")
	g.admits(t, 0, 2, "/contracts", "x-user", "bob")
	g.admits(t, 3, 5, "/contracts", "x-user", "cid", "x-contract", "3")
	g.admits(t, 2, 4, "/contracts", "x-user", "cid") // it counts with the rule
	// An answer costs 1 before and 30 after: the fourth is admitted with 93 of 100.
	admitted := 0
	for range 8 {
		if status, _ := g.ask("/costs", "x-user", "ann", "x-costs", "30"); status == http.StatusOK {
			admitted++
		}
		time.Sleep(100 * time.Millisecond) // Envoy tells the cost when the answer has ended
	}
	if admitted != 4 {
		t.Errorf("%d answers of 31 are admitted with 100", admitted)
	}

	// A policy changes under load: no request fails, and what was counted stays.
	var asked, strange, ofLoad atomic.Int64
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch status, _ := g.ask("/users", "x-user", "load"); status {
			case http.StatusOK:
				ofLoad.Add(1)
			case http.StatusTooManyRequests:
			default:
				strange.Add(1)
			}
			asked.Add(1)
		}
	}()
	g.policies(t, 7, "")
	eventually(t, "the new limit counts", func() bool { _, all := p.get("/rlconfig"); return strings.Contains(all, "7 per month") })
	close(stop)
	<-ended
	if asked.Load() == 0 || strange.Load() > 0 {
		t.Errorf("%d of %d requests failed while a policy changed", strange.Load(), asked.Load())
	}
	record("raised")
	g.admits(t, 2, 5, "/users", "x-user", "ann")
	eventually(t, "the load has what the new limit has more", func() bool { // a call under way at the change refuses for up to a second
		if status, _ := g.ask("/users", "x-user", "load"); status == http.StatusOK {
			ofLoad.Add(1)
		}
		return ofLoad.Load() >= 7
	})
	g.admits(t, 0, 3, "/users", "x-user", "load")

	// A policy goes, and comes back: what was counted stays.
	g.policies(t, 7, "addresses")
	eventually(t, "the policy is gone", func() bool { status, _ := g.ask("/addresses"); return status == http.StatusOK })
	eventually(t, "the rule is gone", func() bool { _, all := p.get("/rlconfig"); return !strings.Contains(all, "remote_address") })
	record("without")
	g.admits(t, 6, 6, "/addresses")
	g.policies(t, 7, "")
	eventually(t, "the policy is back", func() bool { status, _ := g.ask("/addresses"); return status == http.StatusTooManyRequests })
	g.admits(t, 0, 3, "/addresses")

	// Envoy Gateway is gone, and comes back with another limit.
	g.end(t)
	eventually(t, "the log says so", func() bool { return p.told("the control plane does not answer: the last configuration stays") > 0 })
	if _, all := p.get("/rlconfig"); !strings.Contains(all, "7 per month") {
		t.Error("the last configuration is gone")
	}
	g.policies(t, 9, "")
	g.start(t)
	eventually(t, "the next limit counts", func() bool { _, all := p.get("/rlconfig"); return strings.Contains(all, "9 per month") })
	g.admits(t, 2, 5, "/users", "x-user", "ann")
	g.admits(t, 0, 3, "/addresses")
	p.terminate(t)
	t.Logf("%d requests under load", asked.Load())
}

// recorded is a snapshot that a real Envoy Gateway has sent.
func recorded(t *testing.T, name string) (all []*config.RateLimitConfig) {
	t.Helper()
	var r discovery.DiscoveryResponse
	fatal.If(t, protojson.Unmarshal(fatal.Get(os.ReadFile("testdata/gateway/"+name+".json"))(t), &r))
	for _, a := range r.GetResources() {
		c := &config.RateLimitConfig{}
		fatal.If(t, a.UnmarshalTo(c))
		all = append(all, c)
	}
	return all
}

// What a real Envoy Gateway has sent is used, and the requests that its Envoy makes meet their
// rules. TestGateway records it.
func TestRecordedGateway(t *testing.T) {
	redis := redistest.Start(t)
	plane := controlplane.Start(t)
	plane.Set(t, "1", recorded(t, "all")...)
	p := start(t, "", ofPlane(plane.Address, "REDIS_URL="+redis.URL(), patient)...)
	eventually(t, "it is accepted", func() bool { return plane.Acked("1") })
	of := func(route, more string) string {
		key := "httproute/default/" + route + "/match/0/*"
		return "default/eg/http | " + key + "=" + key + " " + more
	}
	ann, address := of("users/rule/0", "rule-1-match-0=ann"), of("addresses/rule/0", "masked_remote_address=0.0.0.0/0 remote_address=10.0.0.1")
	p.play(t,
		[2]string{ann + " +5", "OK | OK 0/5"}, [2]string{ann, "OVER | OVER 0/5"},
		[2]string{of("users/rule/0", "rule-0-match-0=rule-0-match-0"), "OK | OK 2/3"},
		[2]string{address + " +4", "OK | OK 0/4"}, [2]string{address, "OVER | OVER 0/4"},
		[2]string{of("shared/rule/0", "rule-1-match-0=x") + " +6", "OK | OK"}, // the shared rule is in a domain of its own
		[2]string{"default/shared | default/shared/rule/0=default/shared/rule/0 rule-0-match-0=ann +6", "OK | OK 0/6"},
		[2]string{of("shared/rule/0", "rule-0-match-0=ann") + " +6", "OK | OK 0/6"},
		[2]string{of("shared/rule/1", "rule-0-match-0=ann"), "OK | OK 5/6"},
		[2]string{of("costs/rule/0", "rule-0-match-0=ann"), "OK | OK 99/100"},
		[2]string{of("contracts/rule/0", "rule-0-match-0=ann limit=8/month +7"), "OK | OK 1/8"},
	)
	plane.Set(t, "2", recorded(t, "raised")...)
	eventually(t, "it is accepted", func() bool { return plane.Acked("2") })
	p.play(t, [2]string{ann, "OK | OK 1/7"})
	plane.Set(t, "3", recorded(t, "without")...)
	eventually(t, "it is accepted", func() bool { return plane.Acked("3") })
	p.play(t, [2]string{address, "OK | OK"})
	plane.Set(t, "4", recorded(t, "raised")...)
	eventually(t, "it is accepted", func() bool { return plane.Acked("4") })
	p.play(t, [2]string{address, "OVER | OVER 0/4"}, [2]string{ann, "OK | OK 0/7"})
	p.terminate(t)
	out := fatal.Get(tool(t, nil, "check", "testdata/gateway/all.json"))(t)
	if !strings.HasPrefix(out, "2 domains, 8 limits\n") || strings.Contains(out, "warning") {
		t.Errorf("check says %s", out)
	}
}
