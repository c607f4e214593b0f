package exposition_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/exposition"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// count counts hits within a limit, and one over it.
func count(c *statistics.Counters, names ...string) {
	for _, name := range names {
		c.Add(c.Rule(name), statistics.Hit{Hits: 2, Limit: 10, Left: 8})
		c.Add(c.Rule(name), statistics.Hit{Hits: 1, Limit: 10, Over: true, Local: true})
	}
}

// series returns all series of a collector, in order, each with its value.
func series(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	r := prometheus.NewRegistry()
	fatal.If(t, r.Register(c))
	var all []string
	for _, family := range fatal.Get(r.Gather())(t) {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			line := family.GetName() + "{" + strings.Join(labels, ",") + "}"
			if h := m.GetHistogram(); h != nil {
				all = append(all, fmt.Sprintf("%s %d in %v", line, h.GetSampleCount(), h.GetSampleSum()))
				continue
			}
			all = append(all, fmt.Sprintf("%s %v", line, m.GetCounter().GetValue()))
		}
	}
	return strings.Join(all, "\n")
}

// A mapping file of an operator names the series, the tags are labels of all, and what two rules
// have in common is one series.
func TestMapperFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf.yaml")
	fatal.If(t, os.WriteFile(file, []byte(`mappings:
  - match: "ratelimit.service.rate_limit.*.*.total_hits"
    name: "hits"
    labels: {where: "$1"}
  - match: "ratelimit.service.rate_limit.*.*.over_limit"
    name: "x"
    action: drop
  - match: "ratelimit_server.*.response_time"
    name: "took"
    timer_type: histogram
    buckets: [1, 2]
`), 0o600))
	var log bytes.Buffer
	o := exposition.PrometheusOptions{MapperFile: file, Tags: map[string]string{"pod": "a"}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	play := func() string {
		p := fatal.Get(exposition.NewPrometheus(o))(t)
		c := statistics.New(&statistics.Options{Took: p.Took})
		p.Show(c)
		count(c, "shop.user", "shop.path")
		c.Call(statistics.ShouldRateLimit, 1500*time.Millisecond)
		return series(t, p)
	}
	// What the file does not name has its name of statsd.
	want := `hits{pod=a,where=shop} 6
ratelimit_server_ShouldRateLimit_total_requests{pod=a} 1
ratelimit_service_rate_limit_shop_path_within_limit{pod=a} 2
ratelimit_service_rate_limit_shop_user_within_limit{pod=a} 2
took{pod=a} 1 in 1500`
	if is := strings.ReplaceAll(play(), "\ntook{pod=a} 0 in 0", ""); is != want || log.Len() > 0 {
		t.Errorf("%s\nmust be\n%s\n%s", is, want, &log)
	}

	// One that is wrong ends nothing: it is told, and the names are the usual ones.
	fatal.If(t, os.WriteFile(file, []byte("mappings: ["), 0o600))
	is := play()
	if !strings.Contains(is, "ratelimit_service_rate_limit_total_hits{domain=shop,key1=user,pod=a} 3\n") ||
		!strings.Contains(is, "ratelimit_service_response_time_seconds{grpc_method=ShouldRateLimit,pod=a} 1 in 1.5") {
		t.Errorf("%s", is)
	}
	if n := strings.Count(log.String(), "PROMETHEUS_MAPPER_YAML is not used"); n != 1 {
		t.Errorf("%s", &log)
	}
	o.MapperFile, o.Milliseconds = "", true
	if is := play(); !strings.Contains(is, "response_time_seconds{grpc_method=ShouldRateLimit,pod=a} 1 in 1500") {
		t.Errorf("%s", is)
	}
}

// Local refusals have a series of their own if they are asked for. A mapping of the usual kind
// would count them twice as over the limit.
func TestLocalCache(t *testing.T) {
	for _, local := range []bool{false, true} {
		p := fatal.Get(exposition.NewPrometheus(exposition.PrometheusOptions{Logger: slog.New(slog.DiscardHandler)}))(t)
		c := statistics.New(&statistics.Options{Local: local})
		p.Show(c)
		count(c, "shop.user.path")
		is := series(t, p)
		if has := strings.Contains(is, "ratelimit_service_rate_limit_over_limit_with_local_cache{domain=shop,key1=user,key2=path} 1"); has != local {
			t.Errorf("%s", is)
		}
	}
}

// Statsd gets what is new, with the tags in the names, and what was counted while it was away. The
// log says once that it is away.
func TestStatsd(t *testing.T) {
	at := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := at.Addr().String()
	fatal.If(t, at.Close())
	var log bytes.Buffer
	c := statistics.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	s := exposition.NewStatsd(c, exposition.StatsdOptions{
		Address: address, Tags: map[string]string{"b": "1.2", "a": "x"}, Every: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	count(c, "shop.user")
	for range 3 {
		if s.Send() == nil {
			t.Error("it sends to nobody")
		}
	}
	at = fatal.Get(net.Listen("tcp", address))(t)
	defer at.Close()
	receive := func() []string {
		conn := fatal.Get(at.Accept())(t)
		defer conn.Close()
		var all []string
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			all = append(all, lines.Text())
		}
		slices.Sort(all)
		return all
	}
	done := make(chan struct{})
	send := func() {
		go func() { defer func() { done <- struct{}{} }(); _ = s.Send() }()
	}
	for i, want := range []string{
		`ratelimit.service.rate_limit.shop.user.over_limit.__a=x.__b=1_2:1|c
ratelimit.service.rate_limit.shop.user.total_hits.__a=x.__b=1_2:3|c
ratelimit.service.rate_limit.shop.user.within_limit.__a=x.__b=1_2:2|c`,
		"", "ratelimit.service.config_load_success.__a=x.__b=1_2:1|c",
	} {
		if i == 2 {
			c.Loaded(nil)
		}
		send()
		if is := strings.Join(receive(), "\n"); is != want {
			t.Errorf("%s\nmust be\n%s", is, want)
		}
		<-done
	}

	// The end of the process sends the rest.
	c.Loaded(nil)
	go func() { s.Run(ctx); done <- struct{}{} }()
	cancel()
	if is := receive(); len(is) != 1 {
		t.Errorf("%v", is)
	}
	<-done
	fatal.If(t, at.Close())
	ended, stop := context.WithCancel(context.Background())
	stop()
	s.Run(ended)
	s.Run(ended)
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "statistics cannot be sent") {
		t.Errorf("%s", &log)
	}
}

// DogStatsD gets tags, and the names and tags that mogrifiers make.
func TestDogStatsD(t *testing.T) {
	at := fatal.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer at.Close()
	variables := map[string]string{
		"DOG_STATSD_MOGRIFIER_HITS_PATTERN": `^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$`,
		"DOG_STATSD_MOGRIFIER_HITS_NAME":    "ratelimit.$3",
		"DOG_STATSD_MOGRIFIER_HITS_TAGS":    "domain:$1,descriptor:$2,rest:$7",
	}
	get := func(name string) string { return variables[name] }
	m := fatal.Get(exposition.NewMogrifier("HITS", get))(t)
	c := statistics.New(nil)
	count(c, "shop.user.path")
	c.Loaded(nil)
	s := exposition.NewStatsd(c, exposition.StatsdOptions{
		Address: at.LocalAddr().String(), Dog: true, Tags: map[string]string{"pod": "a"}, Mogrifiers: []exposition.Mogrifier{m},
		Every: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	fatal.If(t, s.Send())
	packet := make([]byte, 64<<10)
	_ = at.SetReadDeadline(time.Now().Add(time.Minute))
	var lines []string
	for len(lines) < 4 {
		n, _, err := at.ReadFrom(packet)
		fatal.If(t, err)
		lines = append(lines, strings.Split(strings.TrimSpace(string(packet[:n])), "\n")...)
	}
	slices.Sort(lines)
	want := `ratelimit.over_limit:1|c|#pod:a,descriptor:user.path,domain:shop,rest:$7
ratelimit.service.config_load_success:1|c|#pod:a
ratelimit.total_hits:3|c|#pod:a,descriptor:user.path,domain:shop,rest:$7
ratelimit.within_limit:2|c|#pod:a,descriptor:user.path,domain:shop,rest:$7`
	if is := strings.Join(lines, "\n"); is != want {
		t.Errorf("%s\nmust be\n%s", is, want)
	}
	for name, wrong := range map[string]string{
		"DOG_STATSD_MOGRIFIER_HITS_PATTERN": "(", "DOG_STATSD_MOGRIFIER_HITS_NAME": "", "DOG_STATSD_MOGRIFIER_HITS_TAGS": "domain",
	} {
		right := variables[name]
		variables[name] = wrong
		if _, err := exposition.NewMogrifier("HITS", get); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		variables[name] = right
	}
}
