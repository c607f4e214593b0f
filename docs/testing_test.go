package docs_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// testing.md: a limit, in virtual time

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

// testing.md: an outage

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

// testing.md: a fake

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

// testing.md: a rehearsal

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

// testing.md: end

// The code of docs/testing.md is the code above.
func TestTestingPage(t *testing.T) {
	page, err := os.ReadFile("testing.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("testing_test.go")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(source), "\n// testing.md: ")
	if len(parts) != 6 {
		t.Fatalf("%d marks", len(parts)-1)
	}
	for _, part := range parts[1:5] {
		name, code, _ := strings.Cut(part, "\n")
		if block := "```go\n" + strings.TrimSpace(code) + "\n```"; !strings.Contains(string(page), block) {
			t.Errorf("the page does not have the code of %q:\n%s", name, block)
		}
	}
}
