package main_test

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// lines are what a server was sent.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, strings.Split(strings.TrimSpace(text), "\n")...)
}

func (l *lines) has(want string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, is := range l.all {
		if is == want {
			return true
		}
	}
	return false
}

// A process sends to statsd and to DogStatsD what their variables say, and the rest at its end.
func TestSendsStatistics(t *testing.T) {
	tcp := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer tcp.Close()
	port := tcp.Addr().(*net.TCPAddr).Port
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		t.Skip("the port is taken: ", err)
	}
	defer udp.Close()
	var statsd, dog lines
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			for all := bufio.NewScanner(conn); all.Scan(); {
				statsd.add(all.Text())
			}
			_ = conn.Close()
		}
	}()
	go func() {
		packet := make([]byte, 64<<10)
		for {
			n, _, err := udp.ReadFrom(packet)
			if err != nil {
				return
			}
			dog.add(string(packet[:n]))
		}
	}()
	p := start(t, limits, "USE_STATSD=true", "USE_DOG_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT="+strconv.Itoa(port),
		"STATS_FLUSH_INTERVAL=50ms", "EXTRA_TAGS=zone:a", "NEAR_LIMIT_RATIO=0.005", "USE_DOG_STATSD_MOGRIFIERS=HITS",
		`DOG_STATSD_MOGRIFIER_HITS_PATTERN=^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$`,
		"DOG_STATSD_MOGRIFIER_HITS_NAME=hits.$3", "DOG_STATSD_MOGRIFIER_HITS_TAGS=rule:$2")
	p.play(t, [2]string{"shop +3 | user=a", "OK | OK 97/100"})
	for _, c := range []struct {
		to   *lines
		want string
	}{
		{&statsd, "ratelimit.service.config_load_success.__zone=a:1|c"},
		{&statsd, "ratelimit.service.rate_limit.shop.user.near_limit.__zone=a:3|c"},
		{&statsd, "ratelimit_server.ShouldRateLimit.total_requests.__zone=a:1|c"},
		{&dog, "hits.total_hits:3|c|#zone:a,rule:user"},
	} {
		eventually(t, "it has sent "+c.want, func() bool { return c.to.has(c.want) })
	}
	p.play(t, [2]string{"shop +7 | user=a", "OK | OK 90/100"})
	p.terminate(t)
	eventually(t, "it has sent the rest", func() bool { return statsd.has("ratelimit.service.rate_limit.shop.user.total_hits.__zone=a:7|c") })
	if n := p.told("is ignored"); n != 0 {
		t.Errorf("%d variables are ignored: %s", n, p.log())
	}
}

// Nobody has to mind statsd, which envoyproxy/ratelimit asks for by default: that it is not there
// is no warning. With another outlet it is not asked for.
func TestStatsdByDefault(t *testing.T) {
	for env, want := range map[string]bool{"": true, "USE_PROMETHEUS=true": false, "USE_STATSD=false": false, "USE_STATSD=true USE_PROMETHEUS=true": true} {
		t.Run(env, func(t *testing.T) {
			for pair := range strings.FieldsSeq(env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			if is := fatal.Get(tieredd.ReadSettings())(t).SendsStatsd(); is != want {
				t.Errorf("%t", is)
			}
		})
	}
	p := start(t, limits, "STATSD_HOST=127.0.0.1", "STATSD_PORT=1", "STATS_FLUSH_INTERVAL=20ms", "LOG_LEVEL=info")
	eventually(t, "it is told", func() bool {
		return p.told("level=INFO msg=\"statistics cannot be sent: they are sent when it answers again\"") == 1
	})
	if code, _ := p.get("/readyz"); code != http.StatusOK || p.told("level=WARN msg=\"statistics") > 0 {
		t.Errorf("/readyz answers %d: %s", code, p.log())
	}
}

// What is wrong about statistics is told by its name.
func TestSettingsOfStatistics(t *testing.T) {
	for want, env := range map[string]string{
		"NEAR_LIMIT_RATIO is 0: must be more than 0 and at most 1":              "NEAR_LIMIT_RATIO=0",
		"NEAR_LIMIT_RATIO is NaN: must be":                                      "NEAR_LIMIT_RATIO=NaN",
		"STATS_FLUSH_INTERVAL is 0s: must be 10ms to 1h":                        "STATS_FLUSH_INTERVAL=0s",
		`PROMETHEUS_PATH is "metrics": must begin with /`:                       "PROMETHEUS_PATH=metrics",
		"DOG_STATSD_MOGRIFIER_A_PATTERN is empty: must be a regular expression": "USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A",
		`PROMETHEUS_ADDR is "256.0.0.1:x"`:                                      "USE_PROMETHEUS=true PROMETHEUS_ADDR=256.0.0.1:x",
		`TRACING_EXPORTER_PROTOCOL is "udp": must be http or grpc`:              "TRACING_ENABLED=true TRACING_EXPORTER_PROTOCOL=udp",
	} {
		out, err := tool(t, append(strings.Fields(env), "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0"))
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s", env, err, out)
		}
	}
}
