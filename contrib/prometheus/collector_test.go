package promlimit

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var update = flag.Bool("update", false, "write testdata")

// varying is a series whose value or labels change with the scripts, or with when a report is sent, which is chance.
var varying = regexp.MustCompile(`(?m)^(tiered_(?:build_info|standing_share_expiry_seconds|outage_seconds_total` +
	`|redis_calls_total|unrecorded_presence_reports_total))[{ ].*$`)

// scrapeText returns what a scrape answers.
func scrapeText(t *testing.T, g prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// The text of a scrape of a service that had an outage is testdata/scrape.txt, and Prometheus' linter finds nothing in
// it.
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
		r := register(t, NewCollector(g))
		text := scrapeText(t, r)
		got := varying.ReplaceAllString(text, "$1 varies")
		if *update {
			if err := os.WriteFile("testdata/scrape.txt", []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile("testdata/scrape.txt")
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("run go test -update, and look at what changes in testdata/scrape.txt:\n%s", got)
		}
		problems, err := testutil.GatherAndLint(r)
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
		if strings.Contains(text, "key-") {
			t.Error("a key is in the metrics")
		}
	})
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
	"Settled":   "of a node: that of the policies has series",
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
	before := scrape(t, register(t, invent(fresh())))
	checked := 0
	check := func(set func(f *figures) reflect.Value, skip string) {
		f := fresh()
		of := set(&f).Type()
		for i := range of.NumField() {
			field := of.Field(i)
			if _, ok := notExported[field.Name]; ok && field.Name != skip {
				continue
			}
			f := fresh()
			policy, node := f.Policies["p"], f.Nodes["n"]
			var v reflect.Value
			switch of {
			case reflect.TypeFor[tiered.PolicyStats]():
				v = reflect.ValueOf(&policy)
			case reflect.TypeFor[tiered.Requests]():
				v = reflect.ValueOf(&policy.Requests)
			case reflect.TypeFor[tiered.NodeStats]():
				v = reflect.ValueOf(&node)
			case reflect.TypeFor[tiered.StandingStats]():
				v = reflect.ValueOf(&f.Standing)
			default:
				v = reflect.ValueOf(&f.Stats)
			}
			increase(t, v.Elem().Field(i), field.Name)
			f.Policies["p"], f.Nodes["n"] = policy, node
			if after := scrape(t, register(t, invent(f))); reflect.DeepEqual(before, after) {
				t.Errorf("%v.%s changes no series", of, field.Name)
			}
			checked++
		}
	}
	check(func(f *figures) reflect.Value { return reflect.ValueOf(f.Stats) }, "")
	check(func(f *figures) reflect.Value { return reflect.ValueOf(f.Standing) }, "")
	check(func(f *figures) reflect.Value { return reflect.ValueOf(f.Policies["p"]) }, "Settled")
	check(func(f *figures) reflect.Value { return reflect.ValueOf(f.Policies["p"].Requests) }, "")
	check(func(f *figures) reflect.Value { return reflect.ValueOf(f.Nodes["n"]) }, "")
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

// The number of series is that of policies and nodes times what docs/metrics.md says.
func TestCardinality(t *testing.T) {
	for _, c := range []struct{ policies, nodes, want int }{
		{0, 0, 11}, {1, 0, 11 + 64}, {0, 1, 11 + 40}, {5, 3, 11 + 5*64 + 3*40},
	} {
		f := figures{standing: true, Stats: tiered.Stats{
			Policies: map[string]tiered.PolicyStats{}, Nodes: map[string]tiered.NodeStats{},
		}}
		for i := range c.policies {
			f.Policies[strconv.Itoa(i)] = tiered.PolicyStats{
				Waits: tiered.Histogram{Buckets: make([]int64, 66)}, Top: make([]tiered.RefusedKey, 20),
			}
		}
		for i := range c.nodes {
			f.Nodes[strconv.Itoa(i)] = tiered.NodeStats{
				RoundTrips: tiered.Histogram{Buckets: make([]int64, 66)}, Cause: "unreachable",
			}
		}
		n := 0
		for line := range strings.Lines(scrapeText(t, register(t, invent(f)))) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%d policies and %d nodes have %d series, want %d", c.policies, c.nodes, n, c.want)
		}
	}
}

// Names that no policy can have, and a node might, are valid labels, and two of them stay two series.
func TestHostileNames(t *testing.T) {
	long := strings.Repeat("é", 1000)
	names := []string{
		"", "}", "a\nb", "a\\b", `a"b`, "\xff", "\xfe", "\xff\xfe", "a\x00b", "\u2028", long, long + "x",
		strings.Repeat("\xff", 200),
	}
	f := figures{Stats: tiered.Stats{Policies: map[string]tiered.PolicyStats{}, Nodes: map[string]tiered.NodeStats{}}}
	for _, name := range names {
		f.Policies[name] = tiered.PolicyStats{Held: 1}
		f.Nodes[name] = tiered.NodeStats{Cause: name}
	}
	f.Format, f.Script = "\xff", long
	r := register(t, invent(f))
	text := scrapeText(t, r)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if families, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil || len(families) < 40 {
		t.Errorf("%d metrics are read, %v", len(families), err)
	}
	for _, metric := range []string{"tiered_held_tokens", "tiered_outages_total"} {
		if n, err := testutil.GatherAndCount(r, metric); n != len(names) || err != nil {
			t.Errorf("%d series of %s, want %d; %v", n, metric, len(names), err)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "tiered_held_tokens") && len(line) > 200 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

// A counter never falls: Prometheus would take that for a restart.
func TestCountersNeverFall(t *testing.T) {
	c := invent(figures{Stats: tiered.Stats{Policies: map[string]tiered.PolicyStats{"p": {Spent: 10, Held: 10}}}})
	r := register(t, c)
	for _, step := range []struct{ spent, want int64 }{{10, 10}, {7, 10}, {9, 10}, {12, 12}} {
		c.figures.Policies["p"] = tiered.PolicyStats{Spent: step.spent, Held: step.spent}
		got := scrape(t, r)
		if n := got[`tiered_leased_tokens_total{outcome="spent",policy="p"}`]; n != float64(step.want) {
			t.Errorf("%v spent, want %d", n, step.want)
		}
		if n := got[`tiered_held_tokens{policy="p"}`]; n != float64(step.spent) {
			t.Errorf("%v held, want %d", n, step.spent)
		}
	}
}

// Each Group has a label with its name, and one Collector works for all.
func TestSeveralGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := tiered.Policy{Name: "api", Limit: tiered.PerHour(10)}
		users, jobs := newGroup(t, remote.NewMemory(), policy), newGroup(t, remote.NewMemory(), policy)
		r := register(t, NewGroupsCollector(map[string]*tiered.Group{"users": users, "jobs": jobs}))
		limiter(t, users, "api").AllowN(t.Context(), "key-ann", 3)
		limiter(t, jobs, "api").AllowN(t.Context(), "key-ann", 4)
		got := scrape(t, r)
		for group, want := range map[string]float64{"users": 3, "jobs": 4} {
			series := `tiered_requested_tokens_total{group="` + group + `",policy="api",reason="granted"}`
			if got[series] != want {
				t.Errorf("%s is %v, want %v", series, got[series], want)
			}
		}
		if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

func TestBadInput(t *testing.T) {
	g := newGroup(t, remote.NewMemory())
	for _, c := range []struct {
		collector *Collector
		want      string
	}{
		{NewCollector(nil), "promlimit: the Group is nil: must be set"},
		{NewGroupsCollector(nil), "there are 0 Groups: must be 1 or more"},
		{NewGroupsCollector(map[string]*tiered.Group{"jobs": nil}), `the Group "jobs" is nil: must be set`},
		{NewGroupsCollector(map[string]*tiered.Group{"": g}), `the name of a Group is "": must be 1 to 128 bytes`},
		{NewGroupsCollector(map[string]*tiered.Group{"\xff": g}), `the name of a Group is "\xff": must be 1 to 128 bytes`},
		{
			NewGroupsCollector(map[string]*tiered.Group{strings.Repeat("x", 129): g}),
			"must be 1 to 128 bytes of printable UTF-8",
		},
	} {
		err := prometheus.NewRegistry().Register(c.collector)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
		c.collector.Collect(nil)
	}
}

// Scrapes are concurrent with decisions, with each other and with Close, and still work after it.
func TestConcurrentScrapes(t *testing.T) {
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)})
	l := limiter(t, g, "api")
	r := register(t, NewCollector(g))
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for range 20 {
				if _, err := r.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
		work.Go(func() {
			for range 1000 {
				l.Allow(context.Background(), "key-ann")
			}
		})
	}
	work.Wait()
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// One that has scraped before may be ahead by what was under way then: a counter never falls.
	if n := decisions(t, r); n < 4000 || n > 4010 {
		t.Errorf("%v decisions after Close, want 4000", n)
	}
	if n := decisions(t, register(t, NewCollector(g))); n != 4000 {
		t.Errorf("%v decisions after Close, want 4000", n)
	}
}

func decisions(t *testing.T, g prometheus.Gatherer) (sum float64) {
	t.Helper()
	for series, n := range scrape(t, g) {
		if strings.HasPrefix(series, "tiered_decisions_total") {
			sum += n
		}
	}
	return sum
}
