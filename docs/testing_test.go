package docs_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

// From docs/testing.md.

func TestTenPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := tieredtest.New(t, tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)})
		limiter.Exhaust("ann")
		d := limiter.Allow(t.Context(), "ann")
		if d.Allowed {
			t.Fatal("a request above the limit is admitted")
		}
		limiter.Advance(d.RetryAfter) // six seconds pass at once
		if d := limiter.Allow(t.Context(), "ann"); !d.Allowed {
			t.Fatal(d.Reason)
		}
	})
}

func TestLoginsStayLimitedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := tiered.Policy{Name: "login", Limit: tiered.PerMinute(10), FailMode: tiered.FailLocal}
		limiter := tieredtest.New(t, policy)
		limiter.Replica()
		limiter.Advance(5 * time.Second) // they find each other
		limiter.Fail()
		admitted := 0
		for range 10 {
			if limiter.Allow(t.Context(), "ann").Allowed {
				admitted++
			}
		}
		if admitted != 5 { // the fallback of one of two processes
			t.Errorf("%d admitted, want 5", admitted)
		}
	})
}

// service is what newService makes.
type service struct {
	http.Handler
	group *tiered.Group
}

func (s *service) close() { _ = s.group.Close(context.Background()) }

func newService(store remote.Store) (*service, error) {
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for path, mode := range map[string]tiered.FailMode{"/api": tiered.FailLocal, "/login": tiered.FailClosed} {
		l, err := group.NewLimiter(tiered.Policy{Name: path[1:], Limit: tiered.PerMinute(10), FailMode: mode})
		if err != nil {
			return nil, err
		}
		limit, err := httplimit.ByIP(l)
		if err != nil {
			return nil, err
		}
		mux.Handle(path, limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	return &service{mux, group}, nil
}

func TestServiceStaysUpInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tieredtest.NewStore()
		service, err := newService(store) // your own: it makes its Group, policies and handlers
		if err != nil {
			t.Fatal(err)
		}
		defer service.close()
		status := func(path string) int {
			w := httptest.NewRecorder()
			service.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code
		}
		store.Fail()
		if api, login := status("/api"), status("/login"); api != http.StatusOK || login != http.StatusServiceUnavailable {
			t.Errorf("in the outage: /api %d, /login %d", api, login) // FailLocal and FailClosed
		}
		store.Heal()
		time.Sleep(2 * time.Second)
		if login := status("/login"); login != http.StatusOK {
			t.Errorf("after the outage: /login %d", login)
		}
	})
}

func TestTooManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := tieredtest.New(t, tiered.Policy{Name: "api", Limit: tiered.PerSecond(5)})
		limit, err := httplimit.ByHeader(limiter.Limiter, "X-User")
		if err != nil {
			t.Fatal(err)
		}
		limiter.Exhaust("ann")
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Header.Set("X-User", "ann")
		w := httptest.NewRecorder()
		limit(http.NotFoundHandler()).ServeHTTP(w, request)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("status %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
		}
	})
}
