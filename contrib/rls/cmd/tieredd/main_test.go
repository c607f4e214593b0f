package main_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// process is a tieredd that runs, or that can be started again.
type process struct {
	*exec.Cmd
	client              pb.RateLimitServiceClient
	address             string // of the gRPC port
	public, debug, file string
	env                 []string
	logFile             *os.File
	http                *http.Client
}

// programs is where tieredd is built, once for all tests.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "tieredd"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "tieredd")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// program returns tieredd, for tests that start it. They run without the race detector, because it
// would watch them and not the process.
func program(t *testing.T) string {
	t.Helper()
	if race.On {
		t.Skip("it starts processes, which the race detector does not watch: go test without -race")
	}
	return fatal.Get(build())(t)
}

// start starts tieredd with further variables in its environment. It ends with the test.
func start(t *testing.T, config string, env ...string) *process {
	t.Helper()
	return startTLS(t, nil, config, env...)
}

// startTLS is start for a process whose HTTP port has TLS, if config is not nil.
func startTLS(t *testing.T, config *tls.Config, limits string, env ...string) *process {
	t.Helper()
	program(t)
	root := t.TempDir()
	p := &process{file: filepath.Join(root, "config", "limits.yaml")}
	fatal.If(t, os.Mkdir(filepath.Dir(p.file), 0o700))
	p.write(t, limits)
	port := func() string { return strconv.Itoa(redistest.FreePort(t)) }
	at, public, debug := port(), port(), port()
	p.address, p.public, p.debug = "127.0.0.1:"+at, "http://127.0.0.1:"+public, "http://127.0.0.1:"+debug
	p.http = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	t.Cleanup(p.http.CloseIdleConnections)
	if config != nil {
		p.public = "https" + strings.TrimPrefix(p.public, "http")
	}
	var err error
	if p.logFile, err = os.Create(filepath.Join(root, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.logFile.Close() })
	p.env = append(os.Environ(), "RUNTIME_ROOT="+root, "GRPC_HOST=127.0.0.1", "GRPC_PORT="+at, "HOST=127.0.0.1",
		"PORT="+public, "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+debug, "LOG_LEVEL=info", "TIERED_DRAIN_DELAY=0")
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "REDIS_") }) {
		p.env = append(p.env, patient) // memory never fails: only a busy machine is late
	}
	p.env = append(p.env, env...)
	runtime.LockOSThread() // or the process would die with the thread
	t.Cleanup(runtime.UnlockOSThread)
	p.run(t)
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Log(p.log())
		}
	})
	conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	p.client = pb.NewRateLimitServiceClient(conn)
	return p
}

// launch starts the process.
func (p *process) launch(t *testing.T) {
	t.Helper()
	path := program(t)
	p.Cmd = exec.Command(path)
	p.Stderr, p.Env, p.SysProcAttr = p.logFile, p.env, redistest.DieWithParent()
	fatal.If(t, p.Start())
}

// tool runs tieredd to its end, and returns what it writes.
func tool(t *testing.T, env []string, args ...string) (out string, err error) {
	t.Helper()
	path := program(t)
	c := exec.CommandContext(t.Context(), path, args...)
	c.Env = append(os.Environ(), env...)
	text, err := c.CombinedOutput()
	return string(text), err
}

// run starts the process, at the same addresses each time, and returns when it is ready.
func (p *process) run(t *testing.T) {
	t.Helper()
	p.launch(t)
	eventually(t, "it is ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
}

// terminate ends the process as Kubernetes does, and waits for its end.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	fatal.If(t, p.Process.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil || strings.Contains(p.log(), "given back") {
		t.Errorf("%v\n%s", err, p.log())
	}
}

// terminateAnyhow ends the process, which may not be able to give its leases back.
func (p *process) terminateAnyhow(t *testing.T) {
	t.Helper()
	fatal.If(t, errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()))
}

// hangUp sends SIGHUP, which must end the process in order. A program that nohup started ignores it.
func (p *process) hangUp(t *testing.T) {
	t.Helper()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("nohup started the test, so SIGHUP ends nothing")
	}
	if err := errors.Join(p.Process.Signal(syscall.SIGHUP), p.Wait()); err != nil || !strings.Contains(p.log(), "draining") {
		t.Errorf("%v\n%s", err, p.log())
	}
}

// metric returns the value of a metric without labels.
func (p *process) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, metrics := p.get("/metrics")
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(metrics)
	if m == nil {
		t.Errorf("no %s in %.200s", name, metrics)
		return -1
	}
	n := fatal.Get(strconv.ParseFloat(m[1], 64))(t)
	return n
}

// log returns what it has logged.
func (p *process) log() string {
	text, _ := os.ReadFile(p.logFile.Name())
	return string(text)
}

// write replaces the configuration at once.
func (p *process) write(t *testing.T, config string) {
	t.Helper()
	next := p.file + ".next"
	err := os.WriteFile(next, []byte(config), 0o600)
	if err == nil {
		err = os.Rename(next, p.file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *process) get(path string) (code int, body string) {
	base := p.public
	if strings.HasPrefix(path, "/metrics") || strings.HasPrefix(path, "/debug") || path == "/rlconfig" {
		base = p.debug
	}
	r, err := p.http.Get(base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

func (p *process) post(path, body, token string) int {
	r, err := http.NewRequest(http.MethodPost, p.public+path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := p.http.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// play asks for steps of request and answer.
func (p *process) play(t *testing.T, steps ...[2]string) {
	t.Helper()
	fatal.If(t, (behavior.Row{Steps: steps}).Play(t.Context(), p.client, false))
}

// eventually waits for what must come soon, however busy the machine is.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// patient is the longest TIERED_BUDGET: a busy machine is no outage.
const patient = "TIERED_BUDGET=5s"

const limits = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 100}
`

// The whole life of a process: it serves, takes a new configuration, keeps it when the next one is
// wrong, shows what it does, and gives its leases back at the end.
func TestLife(t *testing.T) {
	redis := redistest.Start(t)
	p := start(t, limits, "REDIS_URL="+redis.URL(), patient)
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})

	p.write(t, strings.Replace(limits, "100", "200", 1))
	eventually(t, "the new limit counts", func() bool {
		answer, err := p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=b +0"))
		return err == nil && answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 200
	})
	p.write(t, "domain: shop\nlimits: 7")
	eventually(t, "the mistake is logged", func() bool {
		return strings.Contains(p.log(), `limits.yaml:2:1: \"limits\" is not a field here`)
	})
	p.play(t, [2]string{"shop | user=a", "OK | OK 198/200"})

	const ask = `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"c"}],"hitsAddend":"150"}]}`
	if one, two := p.post("/json", ask, ""), p.post("/json", ask, ""); one != 200 || two != 429 {
		t.Errorf("/json answers %d and %d, want 200 and 429", one, two)
	}
	if code := p.post("/json", "no", ""); code != 400 {
		t.Errorf("/json answers %d, want 400", code)
	}
	if code := p.post("/v1/allow", `{"uses":[{"policy":"shop.user.year","key":"1:c","cost":51}]}`, ""); code != 429 {
		t.Errorf("/v1/allow answers %d, want 429: the key has 50 left", code)
	}
	for _, path := range []string{"/healthz", "/healthcheck", "/debug/limiter", "/v1/openapi.yaml"} {
		if code, body := p.get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if _, body := p.get("/rlconfig"); !strings.Contains(body, "shop.user: ") {
		t.Errorf("%.500s", body)
	}
	if _, body := p.get("/metrics"); !strings.Contains(body, `tieredd_rule_hits_total{domain="shop",outcome="within limit",rule="user"}`) {
		t.Errorf("%.500s", body)
	}

	for range 2000 { // so that it has a lease
		fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=hot")))(t)
	}
	p.terminate(t)
}

// It is ready when Redis has answered once, and stays so in an outage.
func TestReadiness(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := start(t, limits, "REDIS_URL="+redis.URL())
	p.terminate(t)
	redis.Kill()
	p.launch(t)
	status := func(path string) int { code, _ := p.get(path); return code }
	eventually(t, "it is alive", func() bool { return status("/healthz") == http.StatusOK })
	time.Sleep(1500 * time.Millisecond) // it has asked again
	if code := status("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("without Redis /readyz answers %d", code)
	}
	redis.Restart()
	eventually(t, "it is ready", func() bool { return status("/readyz") == http.StatusOK })
	redis.Kill()
	time.Sleep(1500 * time.Millisecond)
	if code := status("/readyz"); code != http.StatusOK {
		t.Errorf("in a later outage /readyz answers %d", code)
	}
}

// With a token, only who has it may ask, as the page makes Envoy send it. Health needs none.
func TestToken(t *testing.T) {
	p := start(t, limits, "TIERED_TOKEN=secret")
	ask := behavior.Request("shop | user=a")
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer wrong": codes.Unauthenticated, tokenOfPage(t): codes.OK} {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
		}
		if _, err := p.client.ShouldRateLimit(ctx, ask); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", token, err, want)
		}
	}
	for token, want := range map[string]int{"": 401, "wrong": 401, "secret": 200} {
		if code := p.post("/v1/allow", `{"uses":[{"policy":"shop.user.year","key":"k"}]}`, token); code != want {
			t.Errorf("%q: %d, want %d", token, code, want)
		}
	}
}

// With a secret for keys, gRPC and HTTP count the same key, whatever it is stored as. SIGHUP ends
// it as SIGTERM does.
func TestSecretOfKeys(t *testing.T) {
	p := start(t, limits, "TIERED_HASH_KEY=sixteen bytes 16", "TIERED_DRAIN=1s")
	p.play(t, [2]string{"shop | user=ann +60", "OK | OK 40/100"})
	body := `{"uses":[{"policy":"shop.user.year","key":"3:ann","cost":%d}]}`
	if over, within := p.post("/v1/allow", fmt.Sprintf(body, 41), ""), p.post("/v1/allow", fmt.Sprintf(body, 40), ""); over != 429 || within != 200 {
		t.Errorf("41 of 40: %d, and 40: %d", over, within)
	}
	p.play(t, [2]string{"shop | user=ann", "OVER | OVER 0/100"})
	p.hangUp(t)
}

func TestSettings(t *testing.T) {
	clear := func(t *testing.T) {
		for _, name := range []string{"REDIS_URL", "REDIS_TYPE", "LOG_LEVEL"} {
			t.Setenv(name, "")
			_ = os.Unsetenv(name)
		}
	}
	for _, c := range []struct {
		env  map[string]string
		want string // the URL, or of the error
	}{
		{map[string]string{}, ""},
		{map[string]string{"REDIS_URL": "redis://h:1/2"}, "redis://h:1/2"},
		{map[string]string{"REDIS_URL": "h:1", "REDIS_SOCKET_TYPE": "tcp"}, "redis://h:1?pool_size=10"},
		{map[string]string{"REDIS_URL": "/s.sock", "REDIS_AUTH": "p"}, "unix://:p@/s.sock?pool_size=10"},
		{map[string]string{"REDIS_URL": "h:1", "REDIS_SOCKET_TYPE": "tls", "REDIS_AUTH": "u:p/"}, "rediss://u:p%2F@h:1?pool_size=10"},
		{
			map[string]string{"REDIS_URL": "main,a:1,b:2", "REDIS_TYPE": "SENTINEL", "REDIS_AUTH": "p"},
			"redis+sentinel://a:1?addr=b%3A2&master_name=main&password=p&pool_size=10",
		},
		{map[string]string{"REDIS_URL": "a:1,b:2", "REDIS_TYPE": "cluster", "REDIS_TLS": "true"}, "rediss+cluster://a:1?addr=b%3A2&pool_size=10"},
		{
			map[string]string{"REDIS_URL": "m,a:1", "REDIS_TYPE": "SENTINEL", "REDIS_AUTH": "u:p", "REDIS_SENTINEL_AUTH": "q"},
			"redis+sentinel://:q@a:1?master_name=m&password=p&pool_size=10&username=u",
		},
		{ // of a Deployment of envoyproxy/ratelimit
			map[string]string{
				"USE_STATSD": "false", "LOG_LEVEL": "trace", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "redis:6379", "HOST": "::",
				"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_WATCH_ROOT": "false",
				"RUNTIME_IGNOREDOTFILES": "true", "GRPC_HOST": "::", "GRPC_MAX_CONNECTION_AGE": "30m", "BACKEND_TYPE": "redis",
			},
			"redis://redis:6379?pool_size=10",
		},
		{map[string]string{"BACKEND_TYPE": "memcache"}, `BACKEND_TYPE is "memcache": must be redis`},
		{map[string]string{"CONFIG_TYPE": "HTTP"}, `CONFIG_TYPE is "HTTP": must be FILE or GRPC_XDS_SOTW`},
		{map[string]string{"CONFIG_TYPE": "grpc_xds_sotw"}, ""},
		{ofXDS("CONFIG_GRPC_XDS_SERVER_URL", "http://a:1"), `CONFIG_GRPC_XDS_SERVER_URL is "http://a:1": must be a host and a port`},
		{ofXDS("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c"), `CONFIG_GRPC_XDS_NODE_METADATA has "c": must be name=value`},
		{ofXDS("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a b:c"), `ADDITIONAL_HEADERS has the name "a b": must be a header`},
		{ofXDS("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "grpc-a:c"), `ADDITIONAL_HEADERS has the name "grpc-a": must be a header`},
		{ofXDS("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/a"), `CONFIG_GRPC_XDS_CLIENT_TLS_CERT is "/a" and CONFIG_GRPC_XDS_CLIENT_TLS_KEY is "": must be set both`},
		{ofXDS("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca"), `CONFIG_GRPC_XDS_SERVER_USE_TLS is false, and "/ca" is set for TLS: must be true`},
		{ofXDS("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "2m"), "XDS_CLIENT_BACKOFF_MAX_INTERVAL is 1m0s: must be 2m0s to 24h0m0s"},
		{ofXDS("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "NaN"), "XDS_CLIENT_BACKOFF_RANDOM_FACTOR is NaN: must be 0 to 100"},
		{ofXDS("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "0"), "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL is 0s: must be 10ms to 1h0m0s"},
		{ofXDS("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "7"), "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES is 7: must be 0, for 4 MiB, or 1024 to 1073741824"},
		{map[string]string{"REDIS_URL": "rediss://h:1", "REDIS_TLS_CLIENT_CERT": "/c"}, `REDIS_TLS_CLIENT_CERT is "/c" and REDIS_TLS_CLIENT_KEY is "": must be set both`},
		{map[string]string{"GRPC_UDS": "/" + strings.Repeat("a", 107)}, "GRPC_UDS has 108 bytes: must have at most 107"},
		{ // without TLS it asks for nothing
			map[string]string{"REDIS_URL": "redis://h:1", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true", "REDIS_TLS_CACERT": "/ca"},
			"redis://h:1",
		},
		{map[string]string{"LOG_FORMAT": "JSON"}, ""},
		{map[string]string{"LOG_FORMAT": "logfmt"}, ""}, // as text
		{map[string]string{"BACKEND_TYPE": "redis", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "false"}, ""},
		{map[string]string{"REDIS_URL": "main", "REDIS_TYPE": "SENTINEL"}, "REDIS_URL has no comma"},
		{map[string]string{"REDIS_URL": "h", "REDIS_TYPE": "RING"}, `REDIS_TYPE is "RING": must be SINGLE, SENTINEL or CLUSTER`},
		{map[string]string{"REDIS_URL": "h", "REDIS_SOCKET_TYPE": "udp"}, `REDIS_SOCKET_TYPE is "udp"`},
		{map[string]string{"LOG_LEVEL": "loud"}, `LOG_LEVEL is "loud"`},
		{map[string]string{"GRPC_SERVER_USE_TLS": "true"}, "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must be set"},
		{map[string]string{"TIERED_HTTP_TLS": "true"}, "TIERED_HTTP_TLS is true: GRPC_SERVER_USE_TLS must be true"},
		{map[string]string{"GRPC_PORT": "70000"}, "GRPCPort"},
		{map[string]string{"TIERED_MAX_MESSAGE": "1", "TIERED_DRAIN": "2h"}, "TIERED_MAX_MESSAGE is 1"},
		{map[string]string{"TIERED_MAX_MESSAGE": "1", "TIERED_DRAIN": "2h"}, "TIERED_DRAIN is 2h0m0s"},
		{map[string]string{"TIERED_HASH_KEY": "short"}, "TIERED_HASH_KEY has 5 bytes: must have 16 or more"},
		{map[string]string{"TIERED_PROCESSES": "3"}, "TIERED_PROCESSES is 3, and REDIS_URL is not set: must be 1"},
		{map[string]string{"TIERED_PROCESSES": "3", "REDIS_URL": "redis://h:1"}, "redis://h:1"},
	} {
		t.Run(c.want, func(t *testing.T) {
			clear(t)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			s, err := tieredd.ReadSettings()
			got, _ := s.Redis()
			if err != nil {
				got = err.Error()
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
				t.Errorf("%v: %s, want %s", c.env, got, c.want)
			}
		})
	}
}

// ofXDS is an environment with a control plane, in which one variable is wrong.
func ofXDS(name, value string) map[string]string {
	return map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", name: value}
}

// check lists the rules as they are understood, and warns of those that can never be met. What else
// it is told to do is wrong.
func TestArguments(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) { fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	write("a.yaml", limits+"  - {key: path, value: /part1/.*, rate_limit: {unit: minute, requests_per_unit: 3}}\n")
	out := fatal.Get(tool(t, nil, "check", dir))(t)
	for _, line := range []string{
		"1 domains, 2 limits\n", "shop.user: 100 per year, fixed window, fail-local, policy shop.user.year\n",
		"warning: " + filepath.Join(dir, "a.yaml") + `:5:24: value looks like a regular expression: it is compared as text`,
	} {
		if !strings.Contains(out, line) {
			t.Errorf("%s\nwant %s", out, line)
		}
	}
	one := filepath.Join(dir, "a.yaml")
	if out := fatal.Get(tool(t, nil, "check", one))(t); !strings.HasPrefix(out, "1 domains, 2 limits\n") {
		t.Errorf("check of a file: %s", out)
	}
	js := t.TempDir()
	const resource = `{"name": "r", "domain": "d", "descriptors": [{"key": "a", "value": "10.0.0.0/8", "rateLimit": {"unit": "DAY", "requestsPerUnit": 3}}]}`
	for name, text := range map[string]string{
		"one.json": resource, "two.json": "[" + resource + "]", "three.json": `{"versionInfo": "7", "resources": [` +
			strings.Replace(resource, "{", `{"@type": "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig", `, 1) + "]}",
		"field.json": `{"domain": "d", "what": 1}`, "type.json": `{"@type": "x"}`, "list.json": "[" + resource + ", 7]",
	} {
		fatal.If(t, os.WriteFile(filepath.Join(js, name), []byte(text), 0o600))
	}
	for _, name := range []string{"one.json", "two.json", "three.json"} { // what a control plane sends
		out := fatal.Get(tool(t, []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "REDIS_TIMEOUT=1s"}, "check", filepath.Join(js, name)))(t)
		want := "1 domains, 1 limits\nd.a_10.0.0.0/8: 3 per day, fixed window, fail-local, policy "
		if !strings.HasPrefix(out, want) || !strings.Contains(out, `warning: r: descriptors[0], key "a": value is a range of addresses`) ||
			!strings.Contains(out, "warning: REDIS_TIMEOUT is ignored: a request waits for TIERED_BUDGET, and then its fail mode decides; set TIERED_BUDGET\n") {
			t.Errorf("%s: %s", name, out)
		}
	}
	write("b.yaml", "domain: other")
	write("c.yaml", "domain: other")
	fatal.Get(tool(t, []string{"MERGE_DOMAIN_CONFIG=true"}, "check", dir))(t)
	for want, args := range map[string][]string{
		"another file or place has it":           {"check", dir},
		"no such file":                           {"check", filepath.Join(dir, "none")},
		"must be none, or check and a directory": {"what"},
		"is no RateLimitConfig: ":                {"check", filepath.Join(js, "field.json")},
		"has the type \"x\": must have type.":    {"check", filepath.Join(js, "type.json")},
		"resources[1] is no object of JSON":      {"check", filepath.Join(js, "list.json")},
	} {
		if out, err := tool(t, nil, args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	// The compose file of envoyproxy/ratelimit names the program once more, as the image's command.
	if out, err := tool(t, []string{"PORT=x"}, "/bin/ratelimit"); err == nil || !strings.Contains(out, "Port") {
		t.Errorf("it does not serve: %v, %s", err, out)
	}
}
