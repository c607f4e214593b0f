package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// TestAtOnce: a request takes its place first, then asks the rate limit, and gives the place back
// when that refuses, when the handler returns, and when it panics.
func TestAtOnce(t *testing.T) {
	g, err := tiered.NewGroup(remote.NewMemory(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	places, err := atonce.New(g, atonce.Policy{Name: "running", Places: 1, Plans: map[string]int{"pro": 2}})
	if err != nil {
		t.Fatal(err)
	}
	rate, err := g.NewLimiter(tiered.Policy{Name: "rate", Limit: tiered.PerHour(4)})
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New([]httplimit.Rule{{
		Limiter: rate, AtOnce: places, Key: httplimit.Header("User"), Missing: httplimit.Refuse,
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	running := func() int64 { return places.Stats().Running }
	var inside func()
	server := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside() }))
	do := func(h http.Handler) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User", "alice")
		h.ServeHTTP(w, r)
		return w
	}
	tokens := func() int64 { return rate.Peek(context.Background(), "alice").Remaining }
	inside = func() {
		if running() != 1 {
			t.Errorf("%d run", running())
		}
		left := tokens()
		w := do(server)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "same time") {
			t.Errorf("a second request: %d %q %v", w.Code, w.Body, w.Header())
		}
		if tokens() != left {
			t.Errorf("a request without a place took a token: %d of %d are left", tokens(), left)
		}
	}
	if w := do(server); w.Code != http.StatusOK || running() != 0 {
		t.Errorf("%d, and %d run", w.Code, running())
	}
	inside = func() { panic("handler") }
	func() {
		defer func() { _ = recover() }()
		do(server)
	}()
	if running() != 0 {
		t.Errorf("after a panic %d run", running())
	}
	inside = func() {}
	for do(server).Code == http.StatusOK {
	}
	if running() != 0 {
		t.Errorf("after a refusal of the rate limit %d run", running())
	}

	// Two rules that ask for a place of one key.
	both, err := httplimit.New([]httplimit.Rule{
		{AtOnce: places, Key: httplimit.Header("User"), Missing: httplimit.Refuse},
		{AtOnce: places, Key: httplimit.Header("User"), Missing: httplimit.Refuse},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inside = func() {
		if running() != 1 {
			t.Errorf("by two rules %d run", running())
		}
	}
	if w := do(both(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside() }))); w.Code != http.StatusOK || running() != 0 {
		t.Errorf("by two rules: %d, and %d run", w.Code, running())
	}

	// Only the places, by plans.
	only, err := httplimit.New([]httplimit.Rule{{
		AtOnce: places, Key: httplimit.Header("User"), Missing: httplimit.Refuse, Plan: func(*http.Request) string { return "pro" },
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	depth := 0
	var nested http.Handler
	nested = only(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if depth++; do(nested).Code == http.StatusOK {
			depth++
		}
	}))
	if do(nested); depth != 3 || running() != 0 { // two run, and the third is refused
		t.Errorf("depth %d, and %d run", depth, running())
	}
	for _, r := range []httplimit.Rule{
		{AtOnce: new(atonce.Limiter)},
		{AtOnce: places, Cost: func(*http.Request) int64 { return 1 }},
		{AtOnce: places, Limit: func(*http.Request) tiered.Limit { return tiered.Limit{} }},
	} {
		r.Key, r.Missing = httplimit.Header("User"), httplimit.Refuse
		if _, err := httplimit.New([]httplimit.Rule{r}, nil); err == nil {
			t.Errorf("%+v was taken", r)
		}
	}
}

// TestAtOnceWithoutKey: Missing decides how many requests without a key run at the same time.
func TestAtOnceWithoutKey(t *testing.T) {
	g, err := tiered.NewGroup(remote.NewMemory(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	places, err := atonce.New(g, atonce.Policy{Name: "running", Places: 2})
	if err != nil {
		t.Fatal(err)
	}
	const all = 9 // that come
	for _, c := range []struct {
		missing httplimit.Missing
		run     int
		refused int // the status
	}{
		{httplimit.Refuse, 0, http.StatusBadRequest},
		{httplimit.Exempt, all, 0},
		{httplimit.Together, 2, http.StatusTooManyRequests},
		{httplimit.Next, 2, http.StatusTooManyRequests},
	} {
		rules := []httplimit.Rule{{AtOnce: places, Key: httplimit.Header("User"), Missing: c.missing}}
		if c.missing == httplimit.Next {
			rules = append(rules, httplimit.Rule{AtOnce: places, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse})
		}
		limit, err := httplimit.New(rules, nil)
		if err != nil {
			t.Fatal(err)
		}
		run, refused := 0, 0
		var server http.Handler
		come := func() { // while those before it run
			w := httptest.NewRecorder()
			if server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil)); w.Code != http.StatusOK {
				refused = w.Code
			}
		}
		server = limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if run++; run < all {
				come()
			}
		}))
		if come(); run != c.run || refused != c.refused {
			t.Errorf("Missing %d: %d run, and the status of the next is %d", c.missing, run, refused)
		}
	}
}

// TestNobodyIsToldOfPlaces: a refusal does not name the policy of places, because RateLimit-Policy
// does not, and the rule may be hidden. Nor is there a cost to settle.
func TestNobodyIsToldOfPlaces(t *testing.T) {
	g, err := tiered.NewGroup(remote.NewMemory(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	places, err := atonce.New(g, atonce.Policy{Name: "running", Places: 1})
	if err != nil {
		t.Fatal(err)
	}
	rate, err := g.NewLimiter(tiered.Policy{Name: "rate", Limit: tiered.PerHour(40)})
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: rate, Key: httplimit.Header("User"), Missing: httplimit.Refuse},
		{AtOnce: places, Key: httplimit.Header("User"), Missing: httplimit.Refuse},
	}, &httplimit.Options{Problem: true, IETFDraft11: true, Settle: true})
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	request.Header.Set("User", "alice")
	inner := httptest.NewRecorder()
	var server http.Handler
	server = limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(inner, request)
		if err := httplimit.Settle(r.Context(), map[string]int64{"": 5}); err == nil || strings.Contains(err.Error(), `"rate" ""`) {
			t.Errorf("places were settled: %v", err)
		}
		if err := httplimit.Settle(r.Context(), map[string]int64{"rate": 5}); err != nil {
			t.Error(err)
		}
	}))
	server.ServeHTTP(httptest.NewRecorder(), request)
	if inner.Code != http.StatusTooManyRequests || strings.Contains(inner.Body.String(), "running") {
		t.Errorf("%d %s", inner.Code, inner.Body)
	}
}
