package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// Each plan has its requests per minute, its month and its places, and users read their own limits.
func TestLimits(t *testing.T) {
	group, err := tiered.NewGroup(remote.NewMemory(), &tiered.Options{Budget: time.Second}) // a busy machine must not decide
	watcher, err2 := policyfile.Watch("policies.yaml", group, nil)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	defer func() { watcher.Close(); _ = group.Close(context.Background()) }()
	for plan, want := range map[string]string{"": "20 of 20, then 429", "pro": "200 of 200, then 429"} {
		h, w, admitted := watcher.Middleware(api()), httptest.NewRecorder(), 0
		for ; w.Code == http.StatusOK && admitted <= 300; admitted++ {
			r := httptest.NewRequest(http.MethodGet, "/api/hello", nil)
			r.Header = http.Header{"Authorization": {"Bearer user-" + plan}, "X-Plan": {plan}}
			w = httptest.NewRecorder()
			h.ServeHTTP(w, r)
		}
		if got := fmt.Sprintf("%d of %s, then %d", admitted-1, w.Header().Get("X-RateLimit-Limit"), w.Code); got != want {
			t.Errorf("plan %q: %s, want %s", plan, got, want)
		}
	}
}
