package promlimit_test

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
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

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var update = flag.Bool("update", false, "write testdata")

// varying is a series whose value or labels change with the scripts, or with when a report is sent,
// which is chance.
var varying = regexp.MustCompile(`(?m)^(tiered_(?:build_info|standing_share_expiry_seconds|outage_seconds_total` +
	`|redis_calls_total|breaker_changes_total|unrecorded_presence_reports_total))[{ ].*$`)

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

// The text of a scrape of a service that had an outage is testdata/scrape.txt, and Prometheus'
// linter finds nothing in it.
func TestText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store,
			tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)},
			tiered.Policy{Name: "per-user", Limit: tiered.PerHour(100), Standing: 1.0 / 8},
		)
		for range 12 {
			testgroup.Of(t, g, "login").Allow(t.Context(), "key-ann")
		}
		store.Fail(errRefused)
		for range 12 {
			testgroup.Of(t, g, "login").Allow(t.Context(), "key-bob")
			time.Sleep(time.Second) // the breaker opens without a second request
		}
		store.Fail(nil)
		time.Sleep(3 * time.Second)
		r := register(t, promlimit.NewCollector(g))
		text := scrapeText(t, r)
		got := varying.ReplaceAllString(text, "$1 varies")
		if *update {
			fatal.If(t, os.WriteFile("testdata/scrape.txt", []byte(got), 0o600))
		}
		want := fatal.Get(os.ReadFile("testdata/scrape.txt"))(t)
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

// The number of series is that of policies and nodes times what docs/metrics.md says.
func TestCardinality(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := newGroup(t, store)
		lines := func() (n int) {
			for line := range strings.Lines(scrapeText(t, register(t, promlimit.NewCollector(g)))) {
				if !strings.HasPrefix(line, "#") {
					n++
				}
			}
			return n
		}
		const process, policy, node = 10, 67, 42
		if n := lines(); n != process+node {
			t.Errorf("%d series without a policy, want %d", n, process+node)
		}
		for i, name := range []string{"a", "b"} {
			fatal.Get(g.NewLimiter(tiered.Policy{Name: name, Limit: tiered.PerHour(10)}))(t)
			if n, want := lines(), process+policy*(i+1)+node; n != want {
				t.Errorf("%d series with %d policies, want %d", n, i+1, want)
			}
		}
		store.Fail(errRefused)
		for i := range 12 {
			testgroup.Of(t, g, "a").Allow(t.Context(), strconv.Itoa(i))
			time.Sleep(250 * time.Millisecond)
		}
		if n, want := lines(), process+2*policy+node+1; n != want {
			t.Errorf("%d series with the cause of an outage, want %d", n, want)
		}
		p := tiered.Policy{Name: "s", Limit: tiered.PerHour(100), Standing: 1.0 / 8}
		fatal.Get(g.NewLimiter(p))(t)
		if n, want := lines(), process+4+3*policy+node+1; n != want {
			t.Errorf("%d series with standing shares, want %d", n, want)
		}
	})
}

// A Collector without a Group says so when it is registered.
func TestBadInput(t *testing.T) {
	for _, c := range []*promlimit.Collector{promlimit.NewCollector(nil), promlimit.NewGroupsCollector(nil)} {
		if err := prometheus.NewRegistry().Register(c); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%v", err)
		}
		c.Collect(nil)
	}
}

// Scrapes are concurrent with decisions, with each other and with Close, and still work after it.
func TestConcurrentScrapes(t *testing.T) {
	g := newGroup(t, remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)})
	l := testgroup.Of(t, g, "api")
	r := register(t, promlimit.NewCollector(g))
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
	fatal.If(t, g.Close(t.Context()))
	// One that has scraped before may be ahead by what was under way then: a counter never falls.
	if n := decisions(t, r); n < 4000 || n > 4010 {
		t.Errorf("%v decisions after Close, want 4000", n)
	}
	if n := decisions(t, register(t, promlimit.NewCollector(g))); n != 4000 {
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
