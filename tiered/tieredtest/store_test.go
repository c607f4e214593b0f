package tieredtest_test

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

// service is one that has three policies, one of each fail mode, and makes its Group itself.
func service(t *testing.T, store remote.Store) http.Handler {
	t.Helper()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("/readyz", httplimit.Ready(group))
	modes := map[string]tiered.FailMode{"/api": tiered.FailLocal, "/images": tiered.FailOpen, "/login": tiered.FailClosed}
	for path, mode := range modes {
		l, err := group.NewLimiter(tiered.Policy{Name: path[1:], Limit: tiered.PerMinute(4), FailMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		limit, err := httplimit.ByHeader(l, "X-User")
		if err != nil {
			t.Fatal(err)
		}
		mux.Handle(path, limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	return mux
}

// A whole service goes through an outage: each policy decides by its fail mode, two replicas share,
// and all is as before afterwards.
func TestServiceOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tieredtest.NewStore()
		replicas := []http.Handler{service(t, store), service(t, store)}
		time.Sleep(5 * time.Second) // they find each other
		admitted := func(path, user string) (n int) {
			for i := range 20 {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Header.Set("X-User", user)
				w := httptest.NewRecorder()
				if replicas[i%2].ServeHTTP(w, r); w.Code == http.StatusOK {
					n++
				}
			}
			return n
		}
		check := func(when, user string, api, images, login int) {
			t.Helper()
			for path, want := range map[string]int{"/api": api, "/images": images, "/login": login, "/readyz": 20} {
				if n := admitted(path, user); n != want {
					t.Errorf("%s: %s admits %d of 20, want %d", when, path, n, want)
				}
			}
		}
		check("before", "ann", 4, 4, 4)
		store.Fail()
		check("in the outage", "bob", 4, 20, 0) // each replica has half of the limit
		store.Heal()
		time.Sleep(10 * time.Minute) // bob pays for what was admitted meanwhile
		check("after it", "carl", 4, 4, 4)
		check("bob after it", "bob", 4, 4, 4)
	})
}
