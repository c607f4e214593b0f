package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// finder returns a function that finds the key of a request, and reports whether it has one: a
// blocked policy refuses the request by its key.
func finder(t testing.TB) func(httplimit.Key, *http.Request) (string, bool) {
	t.Helper()
	g, _ := group(t)
	blocked := limiter(t, g, "blocked", tiered.Blocked())
	return func(k httplimit.Key, r *http.Request) (string, bool) {
		var refused httplimit.Refusal
		limit, err := httplimit.New([]httplimit.Rule{{Limiter: blocked, Key: k, Missing: httplimit.Refuse}},
			&httplimit.Options{Denied: func(_ http.ResponseWriter, _ *http.Request, r httplimit.Refusal) { refused = r }})
		if err != nil {
			panic(err)
		}
		limit(ok).ServeHTTP(httptest.NewRecorder(), r)
		return refused.Key, refused.Reason != tiered.InvalidKey
	}
}

// problem is the body of RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies"`
}

// sharedKey is the key of all requests without one.
const sharedKey = "\x00"

// group returns a Group over a Memory, closed at the end of the test.
func group(t testing.TB) (*tiered.Group, *remote.Memory) {
	t.Helper()
	store := remote.NewMemory()
	return testgroup.New(t, store, nil), store
}

func limiter(t testing.TB, g *tiered.Group, name string, l tiered.Limit) *tiered.Limiter {
	t.Helper()
	return testgroup.NewLimiter(t, g, tiered.Policy{Name: name, Limit: l})
}

// perUser is the usual rule.
func perUser(l *tiered.Limiter) httplimit.Rule {
	return httplimit.Rule{Limiter: l, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse}
}

func wrap(t testing.TB, rules []httplimit.Rule, o *httplimit.Options, h http.Handler) http.Handler {
	t.Helper()
	limit := fatal.Get(httplimit.New(rules, o))(t)
	return limit(h)
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) })

// get asks once, as a user.
func get(h http.Handler, user string) *http.Response {
	return do(h, requestOf(user))
}

func requestOf(user string) *http.Request {
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
