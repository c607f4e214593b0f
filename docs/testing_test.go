package docs_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// From docs/testing.md.

func TestTenPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(context.Background())
		for range 10 {
			if d := limiter.Allow(t.Context(), "ann"); !d.Allowed {
				t.Fatal(d.Reason)
			}
		}
		d := limiter.Allow(t.Context(), "ann")
		if d.Allowed {
			t.Fatal("the eleventh request is admitted")
		}
		time.Sleep(d.RetryAfter) // six seconds pass at once
		if d := limiter.Allow(t.Context(), "ann"); !d.Allowed {
			t.Fatal(d.Reason)
		}
	})
}

func TestLoginsStayLimitedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		policy := tiered.Policy{Name: "login", Limit: tiered.PerMinute(10), FailMode: tiered.FailLocal}
		limiter, err := tiered.New(store, policy, &tiered.Options{Processes: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(context.Background())
		store.Fail(errors.New("connection refused")) // every call fails from now on
		admitted := 0
		for range 10 {
			if limiter.Allow(t.Context(), "ann").Allowed {
				admitted++
			}
		}
		if admitted != 5 { // the share of one of two processes
			t.Errorf("%d admitted, want 5", admitted)
		}
		store.Fail(nil) // Redis is back
		time.Sleep(2 * time.Second)
		if d := limiter.Allow(t.Context(), "bob"); d.Tier != tiered.Remote {
			t.Errorf("decided by %v", d.Tier)
		}
	})
}

// allower is what the handler needs of a Limiter, and no more.
type allower interface {
	Allow(ctx context.Context, key string) tiered.Decision
}

type always tiered.Decision

func (d always) Allow(context.Context, string) tiered.Decision { return tiered.Decision(d) }

func handler(l allower) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if d := l.Allow(r.Context(), r.Header.Get("X-User")); !d.Allowed {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}
}

func TestRefused(t *testing.T) {
	w := httptest.NewRecorder()
	refuse := always{Reason: tiered.Limited, RetryAfter: time.Second}
	handler(refuse)(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("status %d", w.Code)
	}
}

func TestOurOutage(t *testing.T) {
	scenario, err := sim.Load("outage")
	if err != nil {
		t.Fatal(err)
	}
	for path, value := range map[string]string{"fleet.n": "20", "limit.rate": "500/s", "traffic.rate": "600/s"} {
		if err := scenario.Set(path, value); err != nil {
			t.Fatal(err)
		}
	}
	report, err := sim.Run(scenario, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !report.Passed || report.Metrics.OverAdmission > 600 {
		t.Errorf("%v", report)
	}
}
