package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A replica gets ready when Redis answers, says what is missing until then, and stays ready in an
// outage.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		store.Fail(errors.New("dial tcp: lookup redsi: no such host"))
		group := fatal.Get(tiered.NewGroup(store, nil))(t)
		ready := httplimit.Ready(group)
		check := func(when string, status int, texts ...string) {
			t.Helper()
			w := httptest.NewRecorder()
			ready.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			for _, text := range texts {
				if w.Code != status || !strings.Contains(w.Body.String(), text) {
					t.Errorf("%s: %d %q, want %d %q", when, w.Code, w.Body, status, text)
				}
			}
		}
		for range 3 {
			check("at first", http.StatusServiceUnavailable, "not ready", `node "memory"`, "lookup redsi: no such host")
			time.Sleep(time.Second)
		}
		store.Fail(nil)
		time.Sleep(3 * time.Second)
		check("when Redis answers", http.StatusOK, "ready")
		store.Fail(errors.New("connection refused"))
		time.Sleep(time.Minute)
		check("in an outage", http.StatusOK, "ready")
		store.Fail(nil)
		fatal.If(t, group.Close(context.Background()))
		check("at the end", http.StatusOK, "ready")
	})
}

// Without a Group nothing is ever ready.
func TestReadyWithoutAGroup(t *testing.T) {
	for name, g := range map[string]*tiered.Group{"nil": nil, "zero": new(tiered.Group)} {
		w := httptest.NewRecorder()
		httplimit.Ready(g).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "Group") {
			t.Errorf("%s: %d %q", name, w.Code, w.Body)
		}
	}
}
