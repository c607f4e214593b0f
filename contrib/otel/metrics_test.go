package otellimit

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var update = flag.Bool("update", false, "write testdata")

// varying are metrics whose values or attributes change with the scripts, or with when a report is sent, which is
// chance.
var varying = map[string]bool{
	"tiered.build_info": true, "tiered.standing.share_expiry": true, "tiered.outage": true, "tiered.redis.calls": true,
	"tiered.unrecorded_presence_reports": true,
}

// The metrics of a service that had an outage are testdata/metrics.txt.
func TestText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store,
			tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)},
			tiered.Policy{Name: "per-user", Limit: tiered.PerHour(100), Standing: tiered.StandingOn},
		)
		for range 12 {
			limiter(t, g, "login").Allow(t.Context(), "key-ann")
		}
		store.Fail(errRefused)
		for range 12 {
			limiter(t, g, "login").Allow(t.Context(), "key-bob")
			time.Sleep(250 * time.Millisecond)
		}
		store.Fail(nil)
		time.Sleep(3 * time.Second)
		var b strings.Builder
		for _, m := range collect(t, registered(t, g)) {
			kind, list := points(t, m)
			fmt.Fprintf(&b, "%s %s %q %s\n", m.Name, kind, m.Unit, m.Description)
			var lines []string
			for _, p := range list {
				if describe := describe(p.Attributes); strings.Contains(describe, "key-") {
					t.Errorf("%s: a key is in %s", m.Name, describe)
				} else if !varying[m.Name] {
					lines = append(lines, fmt.Sprintf("  %s %v\n", describe, p.Value))
				} else if m.Name != "tiered.build_info" {
					lines = append(lines, fmt.Sprintf("  %s varies\n", describe))
				}
			}
			slices.Sort(lines)
			b.WriteString(strings.Join(lines, ""))
		}
		if *update {
			if err := os.WriteFile("testdata/metrics.txt", []byte(b.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile("testdata/metrics.txt")
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("run go test -update, and look at what changes in testdata/metrics.txt:\n%s", b.String())
		}
	})
}

// An outage moves the metrics that the runbook looks at.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		limit := tiered.PerSecond(20)
		g := newGroup(t, store,
			tiered.Policy{Name: "local", Limit: limit},
			tiered.Policy{Name: "closed", Limit: limit, FailMode: tiered.FailClosed},
		)
		reader := registered(t, g)
		play := func(d time.Duration) map[string]float64 {
			for range d / (100 * time.Millisecond) {
				limiter(t, g, "local").Allow(t.Context(), "key-ann")
				limiter(t, g, "closed").Allow(t.Context(), "key-ann")
				time.Sleep(100 * time.Millisecond)
			}
			return values(t, reader)
		}
		before := play(time.Minute)
		store.Fail(errRefused)
		during := play(time.Minute)
		store.Fail(nil)
		after := play(time.Minute)
		for _, c := range []struct {
			series   string
			from, to float64 // of what it rises by in the outage
		}{
			{`tiered.outages{server.address="memory"}`, 1, 1},
			{`tiered.outage{server.address="memory"}`, 58, 60},
			{`tiered.redis.calls{error.type="other failure", server.address="memory"}`, 3, 1000},
			{`tiered.redis.calls{error.type="misconfigured", server.address="memory"}`, 0, 0},
			{decisions("local", "shared", "failover"), 570, 600},
			{decisions("closed", "unavailable", "failover"), 570, 600},
			{decisions("local", "open", "failover"), 0, 0},
			{`tiered.breaker_state{ratelimit.breaker.state="closed", server.address="memory"}`, -1, -1},
			{`tiered.breaker_state{ratelimit.breaker.state="open", server.address="memory"}`, 0, 1},
		} {
			if _, ok := before[c.series]; !ok {
				t.Errorf("no %s", c.series)
			}
			if n := during[c.series] - before[c.series]; n < c.from || n > c.to {
				t.Errorf("%s rises by %v in the outage, want %v to %v", c.series, n, c.from, c.to)
			}
		}
		for _, policy := range []string{"local", "closed"} {
			sum := after[`tiered.held_tokens{ratelimit.policy="`+policy+`"}`]
			for _, outcome := range []string{"spent", "returned", "burnt"} {
				sum += after[`tiered.leased_tokens{ratelimit.outcome="`+outcome+`", ratelimit.policy="`+policy+`"}`]
			}
			granted := after[`tiered.granted_tokens{ratelimit.policy="`+policy+`"}`]
			if granted == 0 || granted != sum {
				t.Errorf("%s: %v granted, and %v spent, returned, burnt and held", policy, granted, sum)
			}
		}
	})
}

// decisions returns the series of the decisions of a policy.
func decisions(policy, reason, tier string) string {
	return fmt.Sprintf("tiered.decisions{ratelimit.policy=%q, ratelimit.reason=%q, ratelimit.tier=%q}",
		policy, reason, tier)
}

// notExported are the figures that have no series.
var notExported = map[string]string{
	"Recent":    "events, with keys",
	"Top":       "keys",
	"Policies":  "a map: each entry has series",
	"Nodes":     "a map: each entry has series",
	"Standing":  "its fields have series",
	"Requests":  "its fields have series",
	"Direct":    "a setting",
	"RoundTrip": "a quantile of RoundTrips",
}

// Every figure of Stats changes a series, or stands in notExported.
func TestEveryFigure(t *testing.T) {
	// A figure that is the rest of others needs them to be less.
	fresh := func() figures {
		return figures{standing: true, Stats: tiered.Stats{
			Policies: map[string]tiered.PolicyStats{"p": {Requests: tiered.Requests{Granted: 1000, Limited: 1000}}},
			Nodes:    map[string]tiered.NodeStats{"n": {Calls: 1000, Failures: 500, Breaker: "closed"}},
		}}
	}
	f := fresh()
	before, checked := values(t, invented(t, &f)), 0
	check := func(name string, of func(*figures, *tiered.PolicyStats, *tiered.NodeStats) any) {
		fields := reflect.TypeOf(of(&figures{}, &tiered.PolicyStats{}, &tiered.NodeStats{})).Elem()
		for i := range fields.NumField() {
			field := fields.Field(i).Name
			if _, ok := notExported[field]; ok || name == "NodeStats" && field == "Settled" { // policies have it
				continue
			}
			f := fresh()
			policy, node := f.Policies["p"], f.Nodes["n"]
			increase(t, reflect.ValueOf(of(&f, &policy, &node)).Elem().Field(i), field)
			f.Policies["p"], f.Nodes["n"] = policy, node
			if after := values(t, invented(t, &f)); maps.Equal(before, after) {
				t.Errorf("%s.%s changes no series", name, field)
			}
			checked++
		}
	}
	check("Stats", func(f *figures, _ *tiered.PolicyStats, _ *tiered.NodeStats) any { return &f.Stats })
	check("StandingStats", func(f *figures, _ *tiered.PolicyStats, _ *tiered.NodeStats) any { return &f.Standing })
	check("PolicyStats", func(_ *figures, p *tiered.PolicyStats, _ *tiered.NodeStats) any { return p })
	check("Requests", func(_ *figures, p *tiered.PolicyStats, _ *tiered.NodeStats) any { return &p.Requests })
	check("NodeStats", func(_ *figures, _ *tiered.PolicyStats, n *tiered.NodeStats) any { return n })
	if checked < 60 {
		t.Errorf("only %d figures", checked)
	}
}

func increase(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *tiered.Histogram:
		*x = tiered.Histogram{Sum: time.Second, Buckets: []int64{1, 0}}
	case *string:
		*x = "open" // a state of Breaker, and new to the others
	case *bool:
		*x = true
	default:
		switch {
		case v.CanInt():
			v.SetInt(v.Int() + 7)
		case v.CanUint():
			v.SetUint(v.Uint() + 7)
		case v.CanFloat():
			v.SetFloat(v.Float() + 0.5)
		default:
			t.Fatalf("%s is a %v", name, v.Type())
		}
	}
}

func eachMetric(f func(name, unit string, k kind)) {
	for _, m := range groupFigures {
		f(m.name, m.unit, m.kind)
	}
	for _, m := range policyFigures {
		f(m.name, m.unit, m.kind)
	}
	for _, m := range nodeFigures {
		f(m.name, m.unit, m.kind)
	}
}

// Each metric of contrib/prometheus is here too: with dots instead of some underscores, and its unit apart.
func TestSameMetricsAsPrometheus(t *testing.T) {
	scrape, err := os.ReadFile("../prometheus/testdata/scrape.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{}
	kinds := map[kind]string{counter: "counter", upDown: "gauge", gauge: "gauge"}
	// OpenTelemetry's name in Prometheus is made by the same rule.
	eachMetric(func(name, unit string, k kind) {
		name = strings.ReplaceAll(name, ".", "_")
		switch unit {
		case "s":
			name += "_seconds"
		case "1":
			name += "_ratio"
		}
		if k == counter {
			name += "_total"
		}
		ours[name] = kinds[k]
	})
	// What has another name here: the counters of a histogram, and a second metric of one thing.
	for theirs, list := range map[string][]string{
		"tiered_redis_wait_seconds": {"tiered_redis_wait_bucket_total", "tiered_redis_wait_time_seconds_total"},
		"tiered_redis_round_trip_seconds": {
			"tiered_redis_round_trip_bucket_total", "tiered_redis_round_trip_time_seconds_total",
		},
		"tiered_wait_calls_seconds_total": {"tiered_wait_calls_time_seconds_total"},
	} {
		for _, name := range list {
			if ours[name] != "counter" {
				t.Errorf("no counter %s", name)
			}
			delete(ours, name)
		}
		ours[theirs] = "histogram"
		if strings.HasSuffix(theirs, "_total") {
			ours[theirs] = "counter"
		}
	}
	theirs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(string(scrape), -1) {
		theirs[m[1]] = m[2]
	}
	if !maps.Equal(ours, theirs) || len(theirs) < 40 {
		for name := range theirs {
			if ours[name] != theirs[name] {
				t.Errorf("%s is a %s in contrib/prometheus, and %q here", name, theirs[name], ours[name])
			}
			delete(ours, name)
		}
		t.Errorf("%d metrics in contrib/prometheus; only here: %v", len(theirs), ours)
	}
}

// docs/opentelemetry.md has each metric, with its kind and unit, and no other.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/opentelemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[kind]string{counter: "counter", upDown: "up-down", gauge: "gauge"}
	var want []string
	eachMetric(func(name, unit string, k kind) {
		if unit != "" {
			unit = "`" + unit + "`"
		}
		want = append(want, strings.ReplaceAll(fmt.Sprintf("| `%s` | %s | %s |", name, kinds[k], unit), "|  |", "| |"))
	})
	got := regexp.MustCompile("(?m)^\\| `tiered\\.[^|]*\\|[^|]*\\|[^|]*\\|").FindAllString(string(page), -1)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the page has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A histogram's counters are cumulative, as histogram_quantile expects, and end at the bounds of its buckets.
func TestBuckets(t *testing.T) {
	h := tiered.Histogram{Sum: 3 * time.Second, Buckets: make([]int64, 66)}
	h.Buckets[0], h.Buckets[1], h.Buckets[4], h.Buckets[65] = 1, 2, 4, 8
	f := figures{Stats: tiered.Stats{Policies: map[string]tiered.PolicyStats{"p": {Waits: h}}}}
	got := values(t, invented(t, &f))
	series := func(le string) string { return `tiered.redis.wait.bucket{le="` + le + `", ratelimit.policy="p"}` }
	for le, want := range map[string]float64{"6.1035e-05": 1, "0.00012207": 7, "0.25": 7, "4": 7, "+Inf": 15} {
		if n, ok := got[series(le)]; n != want || !ok {
			t.Errorf("%s is %v, want %v", series(le), n, want)
		}
	}
	n := 0
	for name := range got {
		if bound, ok := strings.CutPrefix(name, `tiered.redis.wait.bucket{le="`); ok {
			n++
			bound, _, _ = strings.Cut(bound, `"`)
			if _, err := strconv.ParseFloat(bound, 64); err != nil {
				t.Error(err)
			}
		}
	}
	if n != 18 {
		t.Errorf("%d buckets, want 18", n)
	}
	if sum := got[`tiered.redis.wait.time{ratelimit.policy="p"}`]; sum != 3 {
		t.Errorf("the sum is %v s", sum)
	}
}
