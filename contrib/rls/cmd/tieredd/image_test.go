package main_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/controlplane"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// ofEnvoyGateway is what Envoy Gateway sets for a rate limit service (its package
// internal/infrastructure/kubernetes/ratelimit), with statistics and traces asked for. Only the
// addresses are those of the test: in a pod they are envoy-gateway:18001, the URL of Redis, and the
// ports 8080, 8081 and 6070.
func ofEnvoyGateway(plane, redis string) []string {
	return []string{
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_SERVER_URL=" + plane, "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/certs/tls.crt", "GRPC_SERVER_TLS_KEY=/certs/tls.key", "GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis,
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
		"TRACING_ENABLED=true", "TRACING_SERVICE_NAME=envoy-ratelimit", "TRACING_SERVICE_NAMESPACE=envoy-gateway-system",
		"TRACING_SERVICE_INSTANCE_ID=pod", "TRACING_SAMPLING_RATE=1.0", "OTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318",
	}
}

// Each variable that Envoy Gateway knows has a test that plays it. make gateway compares the list
// with the source from which Envoy Gateway was built.
func TestGatewayEnvironment(t *testing.T) {
	tests := map[string]string{"TestImageUnderEnvoyGateway": strings.Join(ofEnvoyGateway("", ""), "\n")}
	files, err := parser.ParseDir(token.NewFileSet(), ".", func(f os.FileInfo) bool { return strings.HasSuffix(f.Name(), "_test.go") }, 0) //nolint:staticcheck // one package, without build tags
	fatal.If(t, err)
	for _, p := range files {
		for name, f := range p.Files {
			text := string(fatal.Get(os.ReadFile(name))(t))
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && tests[d.Name.Name] == "" {
					tests[d.Name.Name] = text[d.Pos()-f.FileStart : d.End()-f.FileStart]
				}
			}
		}
	}
	const list = "testdata/gateway/environment.txt"
	known := map[string]bool{}
	for line := range strings.Lines(string(fatal.Get(os.ReadFile(list))(t))) {
		name, test, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[name] = true
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(tests[test]) {
			t.Errorf("%s does not play %s", test, name)
		}
	}
	if os.Getenv("TIERED_TEST_GATEWAY") == "" {
		return
	}
	version := regexp.MustCompile(`\nversion=(\S+)\n`).FindSubmatch(fatal.Get(os.ReadFile("../../../../scripts/install-gateway.sh"))(t))[1]
	c := exec.Command("go", "mod", "download", "-json", "github.com/envoyproxy/gateway@"+string(version))
	c.Dir = t.TempDir()
	var module struct{ Dir string }
	fatal.If(t, json.Unmarshal(fatal.Get(c.Output())(t), &module))
	source := fatal.Get(os.ReadFile(filepath.Join(module.Dir, "internal/infrastructure/kubernetes/ratelimit/resource.go")))(t)
	for _, m := range regexp.MustCompile(`"([A-Z]+_[A-Z_]+)"`).FindAllSubmatch(source, -1) {
		if name := string(m[1]); !known[name] && name != "GRPC_XDS_SOTW" {
			t.Errorf("%s is not in %s", name, list)
		}
	}
}

// image is the folder with what the image has. It is made once.
func image(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the image's program")
	}
	program(t)
	dir := filepath.Join(programs, "image")
	if _, err := os.Stat(dir); err != nil {
		if out, err := exec.Command("sh", "../../../../scripts/image-layout.sh", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

// The program of the image runs under Envoy Gateway as envoyproxy/ratelimit does: by its command,
// environment, files, user and probes, in a root of its own. Its probes succeed though Redis and
// the control plane are away, because they restart the pod, and it does its work when these come.
func TestImageUnderEnvoyGateway(t *testing.T) {
	root := image(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can give a process a root of its own")
	}
	authority, soon := newAuthority(t, "envoy-gateway"), time.Now().Add(time.Hour)
	put := func(name string, text []byte) {
		path := filepath.Join(root, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o755))
		fatal.If(t, os.WriteFile(path, text, 0o644)) // as the Secret's mode
	}
	cert, key := authority.issue(t, "envoy-ratelimit.envoy-gateway-system.svc.cluster.local", soon)
	put("certs/tls.crt", cert)
	put("certs/tls.key", key)
	put("certs/ca.crt", authority.pem())
	put("etc/hosts", []byte("127.0.0.1 envoy-gateway redis.redis-system.svc\n"))
	put("etc/statsd-exporter/conf.yaml", []byte(`mappings:
  - match: "ratelimit.service.rate_limit.*.*.over_limit"
    name: "ratelimit_service_rate_limit_over_limit"
    timer_type: "histogram"
    labels: {domain: "$1", key1: "$2"}
`))
	var spans atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && bytes.Contains(body, []byte("envoy-ratelimit")) {
			spans.Add(int64(bytes.Count(body, []byte("RateLimitService/ShouldRateLimit"))))
		}
	}))
	defer collector.Close()
	redis := redistest.StartOpen(t)
	redis.Kill()
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	planeCert, planeKey := authority.issue(t, "envoy-gateway", soon)
	pair := fatal.Get(tls.X509KeyPair(planeCert, planeKey))(t)
	plane := controlplane.Start(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	})))
	plane.SetFor(t, "envoy-ratelimit", "1", ofUsers(3))
	plane.Kill()

	port := func() string { return strconv.Itoa(redistest.FreePort(t)) }
	public, at, debug, prometheus := port(), port(), port(), port()
	local := func(address string) string { return address[strings.LastIndex(address, ":"):] }
	p := &process{public: "http://127.0.0.1:" + public, debug: "http://127.0.0.1:" + debug, address: "127.0.0.1:" + at, http: &http.Client{Timeout: time.Second}}
	p.logFile = fatal.Get(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	t.Cleanup(func() { _ = p.logFile.Close() })
	c := exec.Command("/bin/ratelimit")
	c.Path, c.Err, c.Stderr = "/bin/ratelimit", nil, p.logFile
	c.Env = append(ofEnvoyGateway("envoy-gateway"+local(plane.Address), "redis.redis-system.svc"+local(redis.Addr)),
		"PORT="+public, "GRPC_PORT="+at, "DEBUG_PORT="+debug, "PROMETHEUS_ADDR=:"+prometheus, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	c.SysProcAttr = redistest.DieWithParent()
	c.SysProcAttr.Chroot, c.Dir = root, "/"
	c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	fatal.If(t, c.Start())
	p.Cmd = c
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Log(p.log())
		}
	})
	probe := func() int { code, _ := p.get("/healthcheck"); return code }
	eventually(t, "the probe succeeds", func() bool { return probe() == http.StatusOK })
	if code, _ := p.get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("without Redis /readyz answers %d", code)
	}
	redis.Restart()
	plane.Restart(t)
	envoy := &tls.Config{RootCAs: roots, ServerName: "envoy-ratelimit.envoy-gateway-system.svc.cluster.local"}
	conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(credentials.NewTLS(envoy))))(t)
	defer conn.Close()
	p.client = pb.NewRateLimitServiceClient(conn)
	eventually(t, "it has its configuration", func() bool { return p.limitOf(t, "b") == 3 })
	eventually(t, "it is ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	for _, want := range []string{"OK | OK 2/3", "OK | OK 1/3", "OK | OK 0/3", "OVER | OVER 0/3"} {
		p.play(t, [2]string{"shop | user=a", want})
	}
	answer := fatal.Get(p.http.Get("http://127.0.0.1:" + prometheus + "/metrics"))(t)
	series := fatal.Get(io.ReadAll(answer.Body))(t)
	_ = answer.Body.Close()
	if !bytes.Contains(series, []byte("\nratelimit_service_rate_limit_over_limit{domain=\"shop\",key1=\"user\"} 1\n")) {
		t.Errorf("no series of its dashboard in %s", series)
	}
	redis.Kill()
	plane.Kill()
	for range 20 {
		if code := probe(); code != http.StatusOK {
			t.Fatalf("in an outage the probe answers %d: it restarts the pod", code)
		}
		time.Sleep(100 * time.Millisecond)
	}
	redis.Restart()
	fatal.If(t, c.Process.Signal(syscall.SIGTERM))
	eventually(t, "it says that it ends", func() bool { return probe() == http.StatusServiceUnavailable })
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
		if spans.Load() == 0 {
			t.Error("the collector has no span")
		}
	case <-ctx.Done():
		t.Error("it has not ended within its grace period")
	}
}

// The image has nothing else, and starts what Envoy Gateway and a Deployment of
// envoyproxy/ratelimit name as the command.
func TestImage(t *testing.T) {
	root := image(t)
	text := string(fatal.Get(os.ReadFile("../../Dockerfile"))(t))
	for _, line := range []string{"FROM gcr.io/distroless/static:nonroot", "USER nonroot", `ENTRYPOINT ["/bin/ratelimit"]`} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the Dockerfile has no line %s", line)
		}
	}
	dir := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(limits), 0o600))
	out, err := exec.Command(filepath.Join(root, "bin/ratelimit"), "check", dir).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "1 domains, 1 limits\n") {
		t.Errorf("%v: %s", err, out)
	}
}
