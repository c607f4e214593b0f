package promlimit_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The simulated outage: a service is asked ten times a second and scraped every 15 s. Its Redis is
// gone for 3 minutes.
const (
	scrapeEvery = 15 * time.Second
	healthy     = 10 * time.Minute
	gone        = 3 * time.Minute
	recovered   = 10 * time.Minute
)

// played is what the scrapes of an outage showed: the value of each series.
type played struct{ scrapes []map[string]float64 }

// at returns the scrape at a time.
func (p played) at(when time.Duration) map[string]float64 { return p.scrapes[when/scrapeEvery] }

// rise returns by how much the value of a series grew between two times.
func (p played) rise(series string, from, to time.Duration) float64 {
	return p.at(to)[series] - p.at(from)[series]
}

// play plays the outage. One policy of each fail mode is asked.
func play(t *testing.T) (p played) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		limit := tiered.PerSecond(20)
		g := newGroup(t, store,
			tiered.Policy{Name: "local", Limit: limit, FailMode: tiered.FailLocal},
			tiered.Policy{Name: "closed", Limit: limit, FailMode: tiered.FailClosed},
		)
		r := register(t, promlimit.NewCollector(g))
		for now := time.Duration(0); now <= healthy+gone+recovered; now += 100 * time.Millisecond {
			if now == healthy {
				store.Fail(errRefused)
			}
			if now == healthy+gone {
				store.Fail(nil)
			}
			if now%scrapeEvery == 0 {
				p.scrapes = append(p.scrapes, scrape(t, r))
			}
			testgroup.Of(t, g, "local").Allow(t.Context(), "key-ann")
			testgroup.Of(t, g, "closed").Allow(t.Context(), "key-ann")
			time.Sleep(100 * time.Millisecond)
		}
	})
	return p
}

// An outage moves the series that the runbook looks at, and nothing of it moves before.
func TestOutage(t *testing.T) {
	p := play(t)
	end := healthy + gone + recovered
	for _, c := range []struct {
		series           string
		before           float64 // within ten healthy minutes
		during, duringTo float64 // within the outage, from and to
	}{
		{`tiered_outages_total{node="memory"}`, 0, 1, 1},
		{`tiered_outage_seconds_total{node="memory"}`, 0, gone.Seconds() - 15, gone.Seconds() + 15},
		{`tiered_decisions_total{policy="local",reason="fallback",tier="failover"}`, 0, 1700, 1815},
		{`tiered_decisions_total{policy="closed",reason="unavailable",tier="failover"}`, 0, 1700, 1815},
		{`tiered_decisions_total{policy="local",reason="open",tier="failover"}`, 0, 0, 0},
		{`tiered_redis_calls_total{node="memory",outcome="other failure"}`, 0, 3, 2000},
		{`tiered_redis_calls_total{node="memory",outcome="misconfigured"}`, 0, 0, 0},
	} {
		if n := p.rise(c.series, 0, healthy); n != c.before {
			t.Errorf("%s rises by %v before the outage, want %v", c.series, n, c.before)
		}
		if n := p.rise(c.series, healthy, healthy+gone+scrapeEvery); n < c.during || n > c.duringTo {
			t.Errorf("%s rises by %v in the outage, want %v to %v", c.series, n, c.during, c.duringTo)
		}
		if n := p.rise(c.series, healthy+gone+time.Minute, end); n != 0 {
			t.Errorf("%s rises by %v after the outage", c.series, n)
		}
	}
	for when, open := range map[time.Duration]bool{healthy: false, healthy + gone/2: true, end: false} {
		s := p.at(when)
		closed, sum := s[`tiered_breaker_state{node="memory",state="closed"}`], 0.0
		for _, state := range []string{"closed", "open", "probing"} {
			sum += s[`tiered_breaker_state{node="memory",state="`+state+`"}`]
		}
		if sum != 1 || (closed == 0) != open {
			t.Errorf("after %v: %v closed, %v in sum", when, closed, sum)
		}
	}
	if p.at(end)[`tiered_last_outage_info{cause="unreachable",node="memory"}`] != 1 {
		t.Error("the cause is not named")
	}
	shared := p.at(end)[`tiered_requested_tokens_total{policy="local",reason="fallback"}`]
	reported := p.at(end)[`tiered_reported_tokens_total{policy="local"}`]
	if reported == 0 || reported > shared {
		t.Errorf("%v tokens were reported, %v admitted", reported, shared)
	}
	for _, policy := range []string{"local", "closed"} {
		s := p.at(end)
		sum := s[`tiered_held_tokens{policy="`+policy+`"}`]
		for _, outcome := range []string{"spent", "returned", "burnt"} {
			sum += s[`tiered_leased_tokens_total{outcome="`+outcome+`",policy="`+policy+`"}`]
		}
		if granted := s[`tiered_granted_tokens_total{policy="`+policy+`"}`]; granted != sum || granted == 0 {
			t.Errorf("%s: %v granted, and %v spent, returned, burnt and held", policy, granted, sum)
		}
	}
}

// The rules fire in the simulated outage, and at no other time.
func TestPromtoolOutage(t *testing.T) {
	p := play(t)
	rules := fatal.Get(filepath.Abs("alerts.yaml"))(t)
	text := fatal.Get(os.ReadFile(rules))(t)
	var test strings.Builder
	fmt.Fprintf(&test, "rule_files: [%q]\nevaluation_interval: 15s\ntests:\n  - interval: 15s\n    input_series:\n", rules)
	for _, series := range slices.Sorted(maps.Keys(p.scrapes[len(p.scrapes)-1])) {
		var values []string
		for _, s := range p.scrapes {
			value := "_"
			if v, ok := s[series]; ok {
				value = fmt.Sprint(v)
			}
			values = append(values, value)
		}
		name, labels, _ := strings.Cut(series, "{")
		labels = strings.TrimSuffix(`job="api",`+strings.TrimSuffix(labels, "}"), ",")
		fmt.Fprintf(&test, "      - {series: '%s{%s}', values: '%s'}\n", name, labels, strings.Join(values, " "))
	}
	test.WriteString("    alert_rule_test:\n")
	names := alertName.FindAllStringSubmatch(string(text), -1)
	for _, when := range []time.Duration{healthy, healthy + gone - scrapeEvery, healthy + gone + recovered} {
		for _, m := range names {
			fmt.Fprintf(&test, "      - eval_time: %v\n        alertname: %s\n", when, m[1])
			labels := map[string]string{
				"LimiterWithoutRedis":           `node: memory, severity: ticket`,
				"LimiterRefusesAllWithoutRedis": `policy: closed, severity: page`,
			}[m[1]]
			if labels == "" || when != healthy+gone-scrapeEvery {
				test.WriteString("        exp_alerts: []\n")
				continue
			}
			summary := map[string]string{
				"LimiterWithoutRedis": "api does not get answers from Redis memory: the fail modes decide.",
				"LimiterRefusesAllWithoutRedis": "api refuses all requests of policy closed: " +
					"Redis does not answer, and it fails closed.",
			}[m[1]]
			fmt.Fprintf(&test, "        exp_alerts:\n          - exp_labels: {job: api, runbook: \"1\", %s}\n", labels)
			fmt.Fprintf(&test, "            exp_annotations: {summary: %q}\n", summary)
		}
	}
	file := filepath.Join(t.TempDir(), "outage.yaml")
	fatal.If(t, os.WriteFile(file, []byte(test.String()), 0o600))
	promtool(t, "test", "rules", file)
}
