package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// Each variable sets the option of the service that it names.
func TestServiceOptions(t *testing.T) {
	for env, want := range map[string]rls.Options{
		"":                     {},
		"SHADOW_MODE=true":     {Shadow: true},
		"QUOTA_MODE=true":      {Quota: true},
		"TIERED_TOGETHER=true": {Together: true},
		"TIERED_STANDING=1/2":  {Standing: 1. / 2},
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true": {OnlyOver: true},
		"TIERED_HASH_KEY=sixteen-bytes-16":             {MaxDescriptors: 1000, HashKey: []byte("sixteen-bytes-16")},
		"RESPONSE_DYNAMIC_METADATA=true":               {Metadata: true},
		"TIERED_MAX_DESCRIPTORS=7":                     {MaxDescriptors: 7},
		"LIMIT_RESPONSE_HEADERS_ENABLED=true":          {Headers: &rls.DefaultHeaders},
		"LIMIT_LIMIT_HEADER=L":                         {},
		"LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=L LIMIT_REMAINING_HEADER=M LIMIT_RESET_HEADER=R": {
			Headers: &rls.Headers{Limit: "L", Remaining: "M", Reset: "R"},
		},
	} {
		t.Run(env, func(t *testing.T) {
			for _, pair := range strings.Fields(env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			s, err := tieredd.ReadSettings()
			if want.MaxDescriptors == 0 {
				want.MaxDescriptors = 1000
			}
			if got := s.ServiceOptions(); err != nil || !reflect.DeepEqual(*got, want) {
				t.Errorf("%+v, %v: want %+v", got, err, want)
			}
		})
	}
}

// A server can be made with the least and the greatest value of each setting, and the values beyond
// are refused.
func TestRanges(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://127.0.0.1:1")
	for _, c := range []struct{ name, least, most, below, above string }{
		{"TIERED_PROCESSES", "1", "1048576", "0", "1048577"},
		{"TIERED_MAX_STREAMS", "1", "1000000", "0", "1000001"},
		{"TIERED_MAX_MESSAGE", "1024", "16777216", "1023", "16777217"},
		{"TIERED_MAX_DESCRIPTORS", "1", "10000", "0", "10001"},
		{"TIERED_MAX_KEYS", "1", "1073741824", "0", "1073741825"},
		{"TIERED_BUDGET", "1ms", "5s", "999us", "5001ms"},
		{"TIERED_DRAIN", "0s", "1h", "-1s", "3601s"},
		{"TIERED_DRAIN_DELAY", "0s", "1h", "-1s", "3601s"},
	} {
		for _, value := range []string{c.least, c.most} {
			t.Run(c.name+"="+value, func(t *testing.T) {
				t.Setenv(c.name, value)
				s := fatal.Get(tieredd.ReadSettings())(t)
				v := fatal.Get(tieredd.NewServer(s, slog.New(slog.DiscardHandler), nil))(t)
				defer v.Close()
				fatal.If(t, v.Handlers())
			})
		}
		for _, value := range []string{c.below, c.above} {
			t.Run(c.name+"="+value, func(t *testing.T) {
				t.Setenv(c.name, value)
				_, err := tieredd.ReadSettings()
				if err == nil || !strings.Contains(err.Error(), c.name+" is ") || !strings.Contains(err.Error(), ": must be ") {
					t.Errorf("%v: want it to name %s and its range", err, c.name)
				}
			})
		}
	}
}

// A request that is too long is refused on both ports, one that is just short enough is answered,
// and what /json cannot read is a bad request. None takes anything.
func TestWhatCannotBeRead(t *testing.T) {
	p := start(t, limits, "TIERED_MAX_MESSAGE=1024")
	ask := behavior.Request("shop | user=a")
	for want, long := range map[codes.Code]int{codes.ResourceExhausted: 1024, codes.OK: 1024 - 100} {
		ask.GetDescriptors()[0].GetEntries()[0].Value = strings.Repeat("v", long)
		if _, err := p.client.ShouldRateLimit(t.Context(), ask); status.Code(err) != want {
			t.Errorf("gRPC answers %v to %d bytes, want %v", err, long, want)
		}
	}
	for _, path := range []string{"/json", "/v1/allow"} {
		for want, long := range map[int]int{http.StatusRequestEntityTooLarge: 1025, http.StatusBadRequest: 1024} {
			if code := p.post(path, strings.Repeat("v", long), ""); code != want {
				t.Errorf("%s answers %d to %d bytes, want %d", path, code, long, want)
			}
		}
	}
	for name, body := range map[string]string{
		"nothing":                  "",
		"negative hits":            `{"domain": "d", "hitsAddend": -1}`,
		"negative hits of one":     `{"domain": "d", "descriptors": [{"hitsAddend": "-1"}]}`,
		"too many hits":            `{"domain": "d", "hitsAddend": 4294967296}`,
		"text that is not UTF-8":   "{\"domain\": \"\xff\"}",
		"half a surrogate pair":    `{"domain": "\ud800"}`,
		"a field twice":            `{"domain": "d", "domain": "e"}`,
		"a field that is not ours": `{"domain": "d", "hits": 1}`,
	} {
		r := fatal.Get(p.http.Post(p.public+"/json", "application/json", strings.NewReader(body)))(t)
		_ = r.Body.Close()
		if r.StatusCode != http.StatusBadRequest || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %s", name, r.Status)
		}
	}
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
}

// services asks a process by reflection which services it has.
func (p *process) services(t *testing.T) (string, error) {
	t.Helper()
	conn := fatal.Get(grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	stream := fatal.Get(reflectpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context()))(t)
	_ = stream.Send(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}})
	answer, err := stream.Recv()
	return fmt.Sprint(answer), err
}

// Each variable does what it says: CACHE_KEY_PREFIX begins each key in Redis, TIERED_MAX_KEYS
// bounds what a process keeps, TIERED_BUDGET is how long a call waits for Redis, and with
// TIERED_REFLECTION a client can ask which services there are.
func TestSettingsOfAProcess(t *testing.T) {
	redis := redistest.StartOpen(t)
	p := start(t, limits, "REDIS_URL="+redis.URL(), "CACHE_KEY_PREFIX=edge:", "TIERED_MAX_KEYS=100", "TIERED_BUDGET=700ms",
		"TIERED_REFLECTION=true")
	for i := range 400 {
		fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request(fmt.Sprint("shop | user=", i))))(t)
	}
	client := redis.Client()
	defer client.Close()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) < 400 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, "edge:") {
			t.Errorf("%q does not begin with the prefix", key)
		}
	}
	eventually(t, "it keeps at most 100 keys", func() bool { n := p.metric(t, "tiered_keys"); return n > 0 && n <= 100 })
	if all, err := p.services(t); err != nil || !strings.Contains(all, "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("%v, %v", all, err)
	}
	if _, body := p.get("/rlconfig"); !strings.HasPrefix(body, "shop.user: ") {
		t.Errorf("with a Redis: %.500s", body)
	}
	if n := p.metric(t, "tieredd_without_redis"); n != 0 {
		t.Errorf("with a Redis tieredd_without_redis is %v", n)
	}
	redis.Pause()
	defer redis.Resume()
	begin := time.Now()
	fatal.Get(p.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=b")))(t)
	if took := time.Since(begin); took < 600*time.Millisecond {
		t.Errorf("it waited %v, want 700 ms", took)
	}
}

// Without a Redis it says so whatever LOG_LEVEL is, and where operators look. By default nobody can
// ask which services it has.
func TestWithoutRedis(t *testing.T) {
	p := start(t, limits, "LOG_LEVEL=fatal")
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	if !strings.Contains(p.log(), "level=WARN msg=\"REDIS_URL is not set: each process counts by itself") {
		t.Error(p.log())
	}
	if _, body := p.get("/rlconfig"); !strings.HasPrefix(body, "REDIS_URL is not set: this process counts by itself\nshop.user: ") {
		t.Errorf("%.500s", body)
	}
	if _, body := p.get("/debug/limiter"); !strings.Contains(body, `<th scope="row">memory</th>`) {
		t.Errorf("the debug page does not name the memory: %.3000s", body)
	}
	if n := p.metric(t, "tieredd_without_redis"); n != 1 {
		t.Errorf("tieredd_without_redis is %v", n)
	}
	if all, err := p.services(t); status.Code(err) != codes.Unimplemented {
		t.Errorf("without TIERED_REFLECTION: %v, %v", all, err)
	}
}

// With LOG_FORMAT=json each line is a JSON object, also what the libraries log, and the error of a
// start that fails.
func TestJSONLog(t *testing.T) {
	ours := newAuthority(t, "ours")
	cert, key := ours.issue(t, "tieredd", time.Now().Add(time.Hour))
	s := newSecret(t, map[string][]byte{"tls.crt": cert, "tls.key": key})
	redis := redistest.Start(t)
	env := []string{
		"LOG_FORMAT=json", "LOG_LEVEL=debug", "REDIS_URL=" + redis.URL(), "GRPC_SERVER_USE_TLS=true", "TIERED_HTTP_TLS=true",
		"GRPC_SERVER_TLS_CERT=" + s.path("tls.crt"), "GRPC_SERVER_TLS_KEY=" + s.path("tls.key"),
	}
	p := startTLS(t, newCaller(t, ours, nil, nil).config, limits, env...)
	p.write(t, "domain: 7 7: no")
	eventually(t, "a mistake is logged", func() bool { return strings.Contains(p.log(), "the configuration is not used") })
	plain := *p
	plain.public = strings.Replace(p.public, "https", "http", 1)
	plain.get("/readyz") // net/http logs that it is no TLS
	redis.Kill()
	for i := range 100 {
		p.post("/json", strings.Replace(askByHTTP, `"a"`, fmt.Sprintf(`"%d"`, i), 1), "")
		time.Sleep(5 * time.Millisecond)
	}
	p.terminateAnyhow(t)
	p.env = append(p.env, "LOG_LEVEL=loud")
	p.launch(t)
	if err := p.Wait(); err == nil {
		t.Error("it starts with LOG_LEVEL=loud")
	}
	lines := 0
	for line := range strings.Lines(p.log()) {
		lines++
		var is struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &is); err != nil || is.Time == "" || is.Level == "" || is.Msg == "" {
			t.Errorf("%v: %s", err, line)
		}
	}
	for _, want := range []string{"TLS handshake error", "draining", "LOG_LEVEL is", "connection refused"} {
		if !bytes.Contains([]byte(p.log()), []byte(want)) {
			t.Errorf("no line of %d has %q", lines, want)
		}
	}
}

// What a variable asks for and does not get is said with why and what to do, by the log at the
// start and by check; what it asks for by its harmless value is nothing. The page has the same.
func TestIgnored(t *testing.T) {
	all, _ := page(t, "")
	rows := 0
	for name, c := range map[string]struct{ env, harmless string }{
		"PROMETHEUS_ADDR":             {"PROMETHEUS_ADDR=:19001", "PROMETHEUS_ADDR=:19001 USE_PROMETHEUS=true"},
		"STATSD_PORT":                 {"STATSD_PORT=1 USE_STATSD=false", "STATSD_PORT=1"},
		"STATSD_HOST":                 {"STATSD_HOST=a USE_PROMETHEUS=true", "STATSD_HOST=a USE_DOG_STATSD=true USE_STATSD=false"},
		"STATS_FLUSH_INTERVAL":        {"STATS_FLUSH_INTERVAL=1s DISABLE_STATS=true", "STATS_FLUSH_INTERVAL=1s"},
		"USE_DOG_STATSD_MOGRIFIERS":   {"USE_DOG_STATSD_MOGRIFIERS=A", "USE_DOG_STATSD_MOGRIFIERS=A USE_DOG_STATSD=true"},
		"TRACING_SERVICE_NAME":        {"TRACING_SERVICE_NAME=a", "TRACING_SERVICE_NAME=a TRACING_ENABLED=true"},
		"OTEL_EXPORTER_OTLP_ENDPOINT": {"OTEL_EXPORTER_OTLP_ENDPOINT=a", "OTEL_EXPORTER_OTLP_ENDPOINT=a TRACING_ENABLED=true"},
		"REDIS_TIMEOUT":               {"REDIS_TIMEOUT=1s", ""}, "REDIS_PIPELINE_WINDOW": {"REDIS_PIPELINE_WINDOW=1s", ""},
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": {"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=false"},
		"REDIS_STARTUP_MAX_INTERVAL":           {"REDIS_STARTUP_MAX_INTERVAL=1s", ""}, "REDIS_PERSECOND": {"REDIS_PERSECOND=true", "REDIS_PERSECOND=false"},
		"REDIS_PERSECOND_URL": {"REDIS_PERSECOND=true REDIS_PERSECOND_URL=a", "REDIS_PERSECOND_URL=a"},
		"REDIS_TLS_CACERT":    {"REDIS_TLS_CACERT=/a", ""}, "RUNTIME_WATCH_ROOT": {"RUNTIME_WATCH_ROOT=true", "RUNTIME_WATCH_ROOT=false"},
		"EXPIRATION_JITTER_MAX_SECONDS": {"EXPIRATION_JITTER_MAX_SECONDS=1", ""}, "MEMCACHE_SRV": {"MEMCACHE_SRV=a", ""},
		"GRPC_SERVER_TLS_CA_CERT": {"GRPC_SERVER_TLS_CA_CERT=/a", ""}, "GRPC_PORT": {"GRPC_PORT=1 GRPC_UDS=/a", "GRPC_PORT=1"},
		"XDS_CLIENT_BACKOFF_JITTER": {"XDS_CLIENT_BACKOFF_JITTER=false", "XDS_CLIENT_BACKOFF_JITTER=false CONFIG_TYPE=GRPC_XDS_SOTW"},
		"TIERED_BUGDET":             {"TIERED_BUGDET=1s", "TIERED_BUDGET=1s"},
	} {
		t.Run(name, func(t *testing.T) {
			for i, env := range []string{c.env, c.harmless} {
				for pair := range strings.FieldsSeq(env) {
					name, value, _ := strings.Cut(pair, "=")
					t.Setenv(name, value)
				}
				told := false
				for _, line := range fatal.Get(tieredd.ReadSettings())(t).Ignores() {
					told = told || strings.HasPrefix(line, name+" is ignored: ") && strings.Contains(line, "; ")
				}
				if env != "" && told != (i == 0) {
					t.Errorf("%s: told is %t", env, told)
				}
				for pair := range strings.FieldsSeq(env) {
					name, _, _ := strings.Cut(pair, "=")
					t.Setenv(name, "")
					fatal.If(t, os.Unsetenv(name))
				}
			}
		})
	}
	families := regexp.MustCompile("`([A-Z_]+_)\\*`").FindAllStringSubmatch(all, -1)
	for _, names := range tieredd.IgnoredNames() {
		rows++
		for pattern := range strings.FieldsSeq(names) {
			pattern, _, _ = strings.Cut(pattern, "=")
			if !strings.Contains(all, "`"+pattern+"`") && !slices.ContainsFunc(families, func(f []string) bool { return strings.HasPrefix(pattern, f[1]) }) {
				t.Errorf("the page has not %s", pattern)
			}
		}
	}
	if rows < 15 {
		t.Errorf("%d rows", rows)
	}
	p := start(t, limits, "REDIS_STARTUP_MAX_INTERVAL=1s", "LOG_LEVEL=WARN")
	if n := p.told("REDIS_STARTUP_MAX_INTERVAL is ignored: a replica asks Redis until it has answered once, and is ready then; take it out"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// The gRPC port may be a unix socket, also one that a killed process left. What is no such is
// refused.
func TestUnixSocket(t *testing.T) {
	at := filepath.Join(t.TempDir(), "rls.sock")
	p := start(t, limits, "GRPC_UDS="+at)
	conn := fatal.Get(grpc.NewClient("unix://"+at, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	p.client = pb.NewRateLimitServiceClient(conn)
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	out, err := tool(t, append(p.env, "PORT=0", "DEBUG_PORT=0"))
	if err == nil || !strings.Contains(out, fmt.Sprintf("GRPC_UDS is %q: must be of no other process, and one answers there", at)) {
		t.Errorf("%v: %s", err, out)
	}
	fatal.If(t, p.Process.Kill())
	_ = p.Wait()
	p.run(t)
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	p.terminate(t)
	fatal.If(t, os.WriteFile(at, []byte("mine"), 0o600))
	if out, err := tool(t, p.env); err == nil || !strings.Contains(out, "must be a socket, or a file that is not there") {
		t.Errorf("%v: %s", err, out)
	}
}

// TLS to Redis with an authority, a client certificate and a skipped host name, as the variables of
// envoyproxy/ratelimit say. What is wrong is told by its name.
func TestTLSToRedis(t *testing.T) {
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	dir := t.TempDir()
	put := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		fatal.If(t, os.WriteFile(path, text, 0o600))
		return path
	}
	soon := time.Now().Add(time.Hour)
	pair := func(a authority, name string) (cert, key string) {
		c, k := a.issue(t, name, soon)
		return put(name+".crt", c), put(name+".key", k)
	}
	ca, otherCA := put("ca.crt", ours.pem()), put("other.crt", others.pem())
	serverCert, serverKey := pair(ours, "redis")
	clientCert, clientKey := pair(ours, "client")
	port := redistest.FreePort(t)
	redistest.StartOpen(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "yes", "--tls-cert-file", serverCert,
		"--tls-key-file", serverKey, "--tls-ca-cert-file", ca)
	good := []string{
		patient, "REDIS_SOCKET_TYPE=tcp", "REDIS_TLS=true", "REDIS_TLS_CACERT=" + ca, "REDIS_TLS_CLIENT_CERT=" + clientCert, "REDIS_TLS_CLIENT_KEY=" + clientKey,
		fmt.Sprintf("REDIS_URL=127.0.0.1:%d", port),
	}
	p := start(t, limits, good...)
	p.play(t, [2]string{"shop | user=a", "OK | OK 99/100"})
	p.terminate(t)
	good = p.env
	name := fmt.Sprintf("REDIS_URL=localhost:%d", port) // the certificate is for redis and 127.0.0.1
	for _, c := range []struct {
		env   []string
		ready bool
		log   string
	}{
		{[]string{name, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"}, true, ""},
		{[]string{name}, false, "not localhost"},
		{[]string{name, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true", "REDIS_TLS_CACERT=" + otherCA}, false, "unknown authority"},
		{[]string{"REDIS_TLS_CACERT=" + otherCA}, false, "unknown authority"},
		{[]string{"REDIS_TLS_CLIENT_CERT=", "REDIS_TLS_CLIENT_KEY="}, false, "certificate required"},
	} {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			p.env = slices.Concat(good, c.env)
			fatal.If(t, p.logFile.Truncate(0))
			fatal.Get(p.logFile.Seek(0, io.SeekStart))(t)
			p.launch(t)
			eventually(t, "it has asked Redis", func() bool {
				code, _ := p.get("/readyz")
				return code == http.StatusOK || strings.Contains(p.log(), "not ready until it does")
			})
			if code, _ := p.get("/readyz"); code == http.StatusOK != c.ready || !strings.Contains(p.log(), c.log) {
				t.Errorf("/readyz answers %d; %s", code, p.log())
			}
			p.terminateAnyhow(t)
		})
	}
	for want, env := range map[string]string{
		"REDIS_TLS_CACERT: open /none":                              "REDIS_TLS_CACERT=/none",
		"must have a certificate in PEM":                            "REDIS_TLS_CACERT=" + clientKey,
		"REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY: tls: fail": "REDIS_TLS_CLIENT_CERT=" + clientKey,
	} {
		if out, err := tool(t, append(slices.Clone(good), env)); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s", env, err, out)
		}
	}
}
