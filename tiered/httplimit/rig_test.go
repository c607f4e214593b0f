package httplimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// found returns the key of a request, and whether it has one.
func found(k Key, r *http.Request) (string, bool) {
	key, err := k.find(r)
	return key, err == nil && key != ""
}

// group returns a Group over a Memory, closed at the end of the test.
func group(t testing.TB) (*tiered.Group, *remote.Memory) {
	t.Helper()
	store := remote.NewMemory()
	g, err := tiered.NewGroup(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return g, store
}

func limiter(t testing.TB, g *tiered.Group, name string, l tiered.Limit) *tiered.Limiter {
	t.Helper()
	limiter, err := g.NewLimiter(tiered.Policy{Name: name, Limit: l})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// perUser is the usual rule.
func perUser(l *tiered.Limiter) Rule { return Rule{Limiter: l, Key: Header("X-User"), Missing: Refuse} }

func wrap(t testing.TB, rules []Rule, o *Options, h http.Handler) http.Handler {
	t.Helper()
	limit, err := New(rules, o)
	if err != nil {
		t.Fatal(err)
	}
	return limit(h)
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) })

// get asks once, as a user.
func get(h http.Handler, user string) *http.Response {
	return do(h, request(user))
}

func request(user string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if user != "" {
		r.Header.Set("X-User", user)
	}
	return r
}

func do(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// left asks how many tokens a key has, without taking any.
func left(l *tiered.Limiter, key string) int64 {
	return l.Peek(context.Background(), key).Remaining
}
