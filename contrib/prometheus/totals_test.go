package promlimit_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	promlimit "github.com/tiered-limiter/tiered-limiter/contrib/prometheus"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A scrape of totals does not grow with the policies.
func TestTotals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := map[int]int{}
		for _, n := range []int{1, 1000} {
			g := newGroup(t, remote.NewMemory())
			for i := range n {
				fatal.Get(g.NewLimiter(tiered.Policy{Name: fmt.Sprint("rule", i), Limit: tiered.PerHour(10)}))(t)
				testgroup.Of(t, g, fmt.Sprint("rule", i)).AllowN(t.Context(), "key-ann", 3)
			}
			passed := 0
			text := scrapeText(t, register(t, promlimit.NewTotalsCollector(g, func(all map[string]tiered.PolicyStats) { passed = len(all) })))
			if want := fmt.Sprintf("tiered_requested_tokens_total{policy=\"all\",reason=\"granted\"} %d\n", 3*n); !strings.Contains(text, want) || passed != n {
				t.Errorf("%d policies: %d were passed on, and the text lacks %s", n, passed, want)
			}
			lines[n] = strings.Count(text, "\n")
		}
		if lines[1] != lines[1000] {
			t.Errorf("%v lines", lines)
		}
	})
	if err := prometheus.NewRegistry().Register(promlimit.NewTotalsCollector(nil, nil)); err == nil {
		t.Error("a nil Group is accepted")
	}
}
