package debugpage_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A breaker that flaps has one line, with how often it opened. So it pushes nothing else out.
func TestBreakerThatFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := testgroup.New(t, store, nil)
		l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "a", Limit: tiered.PerSecond(100)})
		flap := func() {
			for _, err := range []error{errors.New("down"), nil} {
				store.Fail(err)
				for range 40 {
					l.AllowN(t.Context(), "k", 26) // more than a lease has
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
		flap()
		_, page := get(t, g, nil, http.MethodGet, "/")
		if strings.Count(page, "<li>") != 1 || !strings.Contains(page, "<strong>breaker closed</strong>: unreachable, after ") {
			t.Errorf("one outage is %q", lines(page))
		}
		for range 4 {
			flap()
		}
		_, page = get(t, g, nil, http.MethodGet, "/")
		if strings.Count(page, "<li>") != 1 || !strings.Contains(page, "<strong>breaker opened 5 times</strong> in ") ||
			!strings.Contains(page, ", now closed") {
			t.Errorf("five outages are %q", lines(page))
		}
		time.Sleep(2 * time.Minute)
		flap()
		if _, page = get(t, g, nil, http.MethodGet, "/"); strings.Count(page, "<li>") != 2 {
			t.Errorf("one that comes later is %q", lines(page))
		}
	})
}

func lines(page string) string {
	_, events, _ := strings.Cut(page, "Last events")
	return events
}

// A policy's row says which part of its requests was refused, and what was corrected afterwards. A
// period is written as people do. Keys may go by other limits than the policy's.
func TestRowOfAPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := testgroup.New(t, remote.NewMemory(), nil)
		l := testgroup.NewLimiter(t, g, tiered.Policy{Name: "month", Limit: tiered.Per(1000, 31*24*time.Hour)})
		_, page := get(t, g, nil, http.MethodGet, "/")
		if limit := cell(page, "Limit"); limit != "1 000 per 31d, bursts of 1 000" {
			t.Errorf("limit %q", limit)
		}
		l.ReserveN(t.Context(), "k", 100).Settle(130)
		l.ReserveN(t.Context(), "k", 100).Settle(60)
		for range 30 {
			l.For("k").N(20).WithLimit(tiered.Per(1500, 31*24*time.Hour)).Allow(t.Context())
		}
		l.AllowN(t.Context(), "k", 999)
		time.Sleep(time.Second)
		_, page = get(t, g, nil, http.MethodGet, "/")
		for name, want := range map[string]string{
			"Limit": "1 000 per 31d, bursts of 1 000, or what the request carries", "Refused": "999 3 % of requests",
			"Admitted": "760 30 charged, 40 given back",
		} {
			if got := cell(page, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	})
}
