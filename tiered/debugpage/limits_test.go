package debugpage_test

import (
	"context"
	"html"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
)

// The page says of each policy how it counts, and nothing that its algorithm does not have: no
// burst of a window, no lease of a log.
func TestPageSaysHowEachPolicyCounts(t *testing.T) {
	minute, hour := tiered.PerMinute(100), tiered.Limit{Tokens: 1000, Per: time.Hour}
	plan := func(string) tiered.Limit { return tiered.PerMinute(5) }
	for name, c := range map[string]struct {
		policy       tiered.Policy
		limit, lease string
	}{
		"bucket": {tiered.Policy{Limit: minute}, "100 per minute, bursts of 100", "by demand"},
		"burst": {
			tiered.Policy{Limit: minute.WithBurst(8), Lease: tiered.Lease{Size: 2}},
			"100 per minute, bursts of 8", "of 2",
		},
		"several": {
			tiered.Policy{Limit: minute.WithBurst(8).And(hour)},
			"100 per minute, bursts of 8 and 1 000 per hour, bursts of 1 000", "by demand",
		},
		"direct": {
			tiered.Policy{Limit: minute, Lease: tiered.Lease{Size: tiered.NoLease}},
			"100 per minute, bursts of 100", "none: each token from Redis",
		},
		"fixed": {tiered.Policy{Limit: minute, Algorithm: tiered.FixedWindow}, "100 per minute by fixed window", "by demand"},
		"calendar": {
			tiered.Policy{Limit: tiered.PerDay(9), Algorithm: tiered.FixedWindow, Calendar: true},
			"9 per day by fixed window of the calendar", "by demand",
		},
		"log": {
			tiered.Policy{Limit: hour, Algorithm: tiered.SlidingLog},
			"1 000 per hour by sliding log",
			"none: each token from Redis",
		},
		"sliding": {
			tiered.Policy{Limit: minute.And(hour), Algorithm: tiered.SlidingWindow},
			"100 per minute and 1 000 per hour by sliding window", "by demand",
		},
		"short": {tiered.Policy{
			Limit:     tiered.Limit{Tokens: 5, Per: 100 * time.Millisecond},
			Algorithm: tiered.SlidingWindow,
		}, "5 per 100ms by sliding window", "none: each token from Redis"},
		"plans": {
			tiered.Policy{Limit: minute, PerKey: plan},
			"100 per minute, bursts of 100, or what the key has", "by demand",
		},
		"unlimited":   {tiered.Policy{Limit: tiered.Unlimited()}, "unlimited", "by demand"},
		"only-plans":  {tiered.Policy{Limit: tiered.Blocked(), PerKey: plan}, "blocked, or what the key has", "by demand"},
		"blocked-all": {tiered.Policy{Limit: tiered.Blocked(), Algorithm: tiered.SlidingWindow}, "blocked", "by demand"},
		"trial": {
			tiered.Policy{Limit: minute, Shadow: true},
			"100 per minute, bursts of 100 tried out, refuses nobody", "by demand",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := testgroup.New(t, remote.NewMemory(), &tiered.Options{Budget: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
			c.policy.Name = name
			fatal.Get(g.NewLimiter(c.policy))(t)
			_, page := get(t, g, nil, http.MethodGet, "/")
			if limit, lease := cell(page, "Limit"), cell(page, "Leases"); limit != c.limit || lease != c.lease {
				t.Errorf("%s: limit %q, leases %q, want %q and %q", name, limit, lease, c.limit, c.lease)
			}
		})
	}
}

// cell is the text of the first cell of a column, with plain spaces.
func cell(page, column string) string {
	_, text, _ := strings.Cut(page, `data-of="`+column+`">`)
	text, _, _ = strings.Cut(text, "</td>")
	text = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(text, "")
	return strings.ReplaceAll(html.UnescapeString(text), "\u202f", " ")
}

// Of a refused key the page says by which limit of several, and whether it is blocked.
func TestPageSaysWhyAKeyIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := testgroup.New(t, remote.NewMemory(), &tiered.Options{Processes: 1})
		ctx := context.Background()
		two := testgroup.NewLimiter(t, g, tiered.Policy{
			Name: "two", Limit: tiered.PerMinute(100).And(tiered.PerDay(2)),
		})
		for range 5 {
			two.Allow(ctx, "ann")
		}
		_, page := get(t, g, nil, http.MethodGet, "/")
		if by, blocked := cell(page, "By the limit"), cell(page, "Blocked"); by != "3 2 per day" || blocked != "–" ||
			cell(page, "Refused") != "3 60 % of requests" {
			t.Errorf("refused %q, blocked %q", by, blocked)
		}
		shut := testgroup.NewLimiter(t, g, tiered.Policy{Name: "shut", Limit: tiered.Blocked()})
		for range 70 {
			shut.Allow(ctx, "thief")
		}
		_, page = get(t, g, &debugpage.Options{ShowKeys: true}, http.MethodGet, "/")
		_, page, _ = strings.Cut(page, "<h3>shut</h3>")
		if by, blocked := cell(page, "By the limit"), cell(page, "Blocked"); by != "0" || blocked != "70" ||
			!strings.Contains(page, "<code>thief</code>") {
			t.Errorf("refused %q, blocked %q", by, blocked)
		}
	})
}
