package main_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// measured is a service in this process whose metrics are read.
type measured struct {
	*testing.T
	group   *tiered.Group
	service *rls.Service
	*prometheus.Registry
}

func measure(t *testing.T, most int) measured {
	t.Helper()
	g := fatal.Get(tiered.NewGroup(remote.NewMemory(), &tiered.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	s := fatal.Get(rls.New(g, &rls.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
	m := measured{t, g, s, prometheus.NewRegistry()}
	m.MustRegister(tieredd.NewCollector(g, s, most))
	return m
}

func (m measured) use(config string) {
	m.Helper()
	c, err := rls.Parse(rls.File{Name: "a.yaml", Text: []byte(config)})
	if err == nil {
		err = m.service.Use(c)
	}
	if err != nil {
		m.Fatal(err)
	}
}

func (m measured) ask(requests ...string) {
	m.Helper()
	for _, r := range requests {
		fatal.Get(m.service.ShouldRateLimit(m.Context(), behavior.Request(r)))(m)
	}
}

// series returns all series of the metrics of tieredd, and how many others there are.
func (m measured) series() (ours map[string]float64, others int) {
	m.Helper()
	all := fatal.Get(m.Gather())(m)
	ours = map[string]float64{}
	for _, family := range all {
		for _, is := range family.GetMetric() {
			if !strings.HasPrefix(family.GetName(), "tieredd_") {
				others++
				continue
			}
			var labels []string
			for _, l := range is.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			name := family.GetName() + "{" + strings.Join(labels, ",") + "}"
			ours[name] = is.GetCounter().GetValue() + is.GetGauge().GetValue()
		}
	}
	return ours, others
}

// A rule that was asked has series that a person finds by its domain and its path, and they are
// right. A reload changes nothing of it.
func TestMetricsOfARule(t *testing.T) {
	const config = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10}
    descriptors: [{key: path, value: "/pay", rate_limit: {unit: year, requests_per_unit: 3}, shadow_mode: true}]
  - {key: ip, rate_limit: {unit: year, requests_per_unit: 10}}
`
	m := measure(t, 1000)
	m.use(config)
	m.ask("shop | user=a +9", "shop | user=a", "shop | user=a", "shop | user=a +11", "shop | user=a path=/pay +3", "shop | user=a path=/pay",
		"shop | user=b limit=5/2hour", "shop | what=b")
	for range 2 {
		got, others := m.series()
		want := map[string]float64{
			"tieredd_rule_hits_total{shop,within limit,user}": 10, "tieredd_rule_hits_total{shop,over limit,user}": 2,
			"tieredd_rule_requests_total{shop,user}": 4, "tieredd_rule_shadowed_hits_total{shop,user}": 0,
			"tieredd_rule_near_limit_hits_total{shop,user}":             10,
			"tieredd_rule_hits_total{shop,within limit,user.path_/pay}": 3, "tieredd_rule_hits_total{shop,over limit,user.path_/pay}": 1,
			"tieredd_rule_shadowed_hits_total{shop,user.path_/pay}":                                       1,
			"tieredd_rule_requests_total{shop,a limit that comes with the request, per 2 hours}":          1,
			"tieredd_rule_hits_total{shop,within limit,a limit that comes with the request, per 2 hours}": 1,
			"tieredd_rules{}": 4, "tieredd_asked_rules{}": 3, "tieredd_shown_rules{}": 3,
		}
		for name, n := range want {
			if v, ok := got[name]; !ok || v != n {
				t.Errorf("%s is %v, want %v", name, v, n)
			}
		}
		if n := len(got) - 3; n != 3*tieredd.SeriesOfRule || tieredd.SeriesOfRule > 10 {
			t.Errorf("%d series of 3 rules, want %d of each, and at most 10: %q", n, tieredd.SeriesOfRule, slices.Sorted(maps.Keys(got)))
		}
		if others > 200 {
			t.Errorf("%d other series", others)
		}
		m.use(config + "  - {key: more, rate_limit: {unit: day, requests_per_unit: 1}}\n")
		m.use(config)
	}
}

// A rule whose policy began anew between two scrapes begins at 0.
func TestMetricsOfARuleThatBeganAnew(t *testing.T) {
	m := measure(t, 1000)
	m.use("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 10}}]\n")
	for want := 3; want > 0; want-- {
		for r := range m.service.Rules() {
			l, _ := m.group.Limiter(r.Policy)
			for range want {
				l.Allow(t.Context(), "a")
			}
		}
		if got, _ := m.series(); got["tieredd_rule_requests_total{shop,user}"] != float64(want) {
			t.Errorf("%v requests, want %d", got["tieredd_rule_requests_total{shop,user}"], want)
		}
		for r := range m.service.Rules() {
			l, _ := m.group.Limiter(r.Policy)
			p := l.Policy()
			p.Limit = tiered.Limit{Tokens: 10, Per: time.Duration(want) * time.Minute} // of a window: not that of before
			fatal.If(t, m.group.SetPolicies(nil))
			fatal.If(t, m.group.SetPolicies([]tiered.Policy{p}))
		}
	}
}

// A scrape grows with the rules that are asked, up to a bound, and the same ones stay. The sums
// have all of them.
func TestMetricsOfManyRules(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: many\ndescriptors:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "- {key: path, value: /%d, rate_limit: {unit: day, requests_per_unit: 9}}\n", i)
	}
	m := measure(t, 5)
	m.use(b.String())
	none, others := m.series()
	if len(none) != 3 {
		t.Errorf("%d series without a request: %v", len(none), none)
	}
	first := map[string]bool{}
	for i := range 40 {
		m.ask(fmt.Sprintf("many | path=/%d", 900-i))
		got, now := m.series()
		if n := len(got) - 3; n != min(i+1, 5)*tieredd.SeriesOfRule || now != others {
			t.Fatalf("%d series of %d rules that were asked, and %d others: want at most 5 rules, and %d", n, i+1, now, others)
		}
		for name := range first {
			if _, ok := got[name]; !ok {
				t.Fatalf("%s is gone", name)
			}
		}
		for name := range got {
			first[name] = true
		}
		if got["tieredd_asked_rules{}"] != float64(i+1) {
			t.Errorf("%v rules were asked, want %d", got["tieredd_asked_rules{}"], i+1)
		}
	}
	m = measure(t, 0)
	m.use(b.String())
	m.ask("many | path=/1")
	if got, _ := m.series(); len(got) != 3 {
		t.Errorf("%v, want none of a rule", got)
	}
}

// Whatever the names of domains, keys and values are, a scrape is valid, and two rules are two
// series.
func TestMetricsOfAnyName(t *testing.T) {
	long := strings.Repeat("é", 200)
	m := measure(t, 1000)
	m.use("domain: \"d\\u0000\\\"\"\ndescriptors:\n" +
		"- {key: a.b, rate_limit: {unit: day, requests_per_unit: 9}}\n" +
		"- {key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 9}}]}\n" +
		"- {key: \"x\\ny\", rate_limit: {unit: day, requests_per_unit: 9}}\n" +
		"- {key: \"x\\ty\", rate_limit: {unit: day, requests_per_unit: 9}}\n" +
		"- {key: " + long + ", rate_limit: {unit: day, requests_per_unit: 9}}\n" +
		"- {key: " + long + "x, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	domain := "d\x00\""
	for _, entries := range [][]string{{"a.b"}, {"a", "b"}, {"x\ny"}, {"x\ty"}, {long}, {long + "x"}} {
		r := behavior.Request("x | " + strings.TrimSuffix(strings.Repeat("k=v ", len(entries)), " "))
		r.Domain = domain
		for i, key := range entries {
			r.Descriptors[0].Entries[i].Key = key
		}
		fatal.Get(m.service.ShouldRateLimit(t.Context(), r))(t)
	}
	got, _ := m.series()
	if n := len(got) - 3; n != 6*tieredd.SeriesOfRule {
		t.Errorf("%d series of 6 rules: %q", n, slices.Sorted(maps.Keys(got)))
	}
	for name := range got {
		if !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\n\t") || len(name) > 400 {
			t.Errorf("%q", name)
		}
	}
}

// A process with as many rules as the page says takes little memory, also for scrapes of both
// ports, and keeps to GOMEMLIMIT. A scrape is bounded when all rules are asked.
func TestMemoryOfManyRules(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	var b strings.Builder
	b.WriteString(limits)
	for i := range rules - 1 {
		fmt.Fprintf(&b, "  - {key: path, value: /api/v1/resource/%d, rate_limit: {unit: minute, requests_per_unit: 100}}\n", i)
	}
	theirs := "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t))
	p := start(t, limits, "GOMEMLIMIT=115MiB", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+theirs, "REDIS_URL="+redistest.Start(t).URL(), patient)
	p.terminate(t)
	p.write(t, b.String())
	p.run(t)
	scrape := func(most int) {
		for range 3 {
			if _, text := p.get("/metrics"); len(text) > most {
				t.Errorf("a scrape has %d bytes", len(text))
			}
			answer := fatal.Get(p.http.Get("http://" + theirs + "/metrics"))(t)
			text := fatal.Get(io.ReadAll(answer.Body))(t)
			_ = answer.Body.Close()
			if len(text) > 2*most || !strings.Contains(string(text), "\nratelimit_service_config_load_success 1\n") {
				t.Errorf("a scrape of theirs has %d bytes", len(text))
			}
		}
	}
	p.play(t, [2]string{"shop | path=/api/v1/resource/7 +0", "OK | OK 100/100"})
	scrape(100_000)
	peak := p.peak(t)
	t.Logf("at most %d MB resident with %d rules and three scrapes of both ports", peak/1e6, rules)
	if peak > 150e6 {
		t.Error("want at most 150 MB")
	}
	for i := 0; i < rules-1; i += 100 { // now all of them are asked
		r := behavior.Request("shop")
		for k := range 100 {
			r.Descriptors = append(r.Descriptors, behavior.Request(fmt.Sprintf("shop | path=/api/v1/resource/%d", i+k)).GetDescriptors()...)
		}
		fatal.Get(p.client.ShouldRateLimit(t.Context(), r))(t)
	}
	scrape(2_000_000)
	if n := p.told("there are more names of statistics than TIERED_METRIC_RULES"); n != 1 {
		t.Errorf("that there are more is told %d times", n)
	}
	t.Logf("at most %d MB when all of them are asked", p.peak(t)/1e6)
}
