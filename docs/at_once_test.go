package docs_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

// fiveInFlight is the first block of at-once.md.
func fiveInFlight(group *tiered.Group, perUser *tiered.Limiter) (func(http.Handler) http.Handler, error) {
	places, err := atonce.New(group, atonce.Policy{Name: "in-flight", Places: 5})
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.New([]httplimit.Rule{{
		Limiter: perUser, // the rate, as ever; may be left out
		AtOnce:  places,
		Key:     httplimit.Header("X-User"),
		Missing: httplimit.Refuse,
	}}, nil)
	return limit, err
}

// exported is the second.
func exported(ctx context.Context, places *atonce.Limiter, user string) error {
	place, err := places.Acquire(ctx, user) // or Wait, which waits for one
	if err != nil {
		return err // atonce.ErrFull, ErrUnavailable, ErrInvalid, ErrClosed, or the context's
	}
	defer place.Release()
	return nil
}

func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perUser := tieredtest.New(t, tiered.Policy{Name: "per-user", Limit: tiered.PerMinute(100)})
		limit, err := fiveInFlight(perUser.Group(), perUser.Limiter)
		fatal.If(t, err)
		depth := 0
		var server http.Handler
		do := func() int {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-User", "alice")
			server.ServeHTTP(w, r)
			return w.Code
		}
		refused := 0
		server = limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			depth++
			if do() == http.StatusTooManyRequests {
				refused++
			}
		}))
		if do(); depth != 5 || refused != 1 {
			t.Errorf("%d ran at once, and %d were refused", depth, refused)
		}

		places, err := atonce.New(perUser.Group(), atonce.Policy{Name: "exports", Places: 2, FailMode: tiered.FailClosed})
		fatal.If(t, err)
		fatal.If(t, exported(t.Context(), places, "acme"))
		perUser.Fail()
		if err := exported(t.Context(), places, "other"); !errors.Is(err, atonce.ErrUnavailable) {
			t.Errorf("in an outage: %v", err)
		}
	})
}
