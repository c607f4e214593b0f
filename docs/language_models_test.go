package docs_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

func limitModel(
	requestsPerMinute, tokensPerMinute *tiered.Limiter, client httplimit.Key, atMost func(*http.Request) int64,
) (func(http.Handler) http.Handler, error) {
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: requestsPerMinute, Key: client, Missing: httplimit.Refuse},
		{Limiter: tokensPerMinute, Key: client, Missing: httplimit.Refuse, Cost: atMost},
	}, &httplimit.Options{Settle: true})
	return limit, err
}

func settle(r *http.Request, used int64) (err error) {
	// in the handler, when the answer has ended
	err = httplimit.Settle(r.Context(), map[string]int64{"tokens-per-minute": used})
	return err
}

// What the page says of costs that are known afterwards: what was estimated is put right, a client
// that owes is refused, also where nothing was estimated, and one request that costs 0 is not.
func TestLanguageModels(t *testing.T) {
	number := func(name string) func(*http.Request) int64 {
		return func(r *http.Request) int64 {
			n, _ := strconv.ParseInt(r.Header.Get(name), 10, 64)
			return n
		}
	}
	zero := func(*http.Request) int64 { return 0 }
	for name, c := range map[string]struct {
		cost   func(*http.Request) int64
		status []int
		left   int64
	}{
		"an estimate": {number("X-Estimate"), []int{200, 200, 200, 429}, 400},
		"1":           {nil, []int{200, 200, 200, 200, 200, 429}, 0},
		"0":           {zero, []int{200, 200, 200, 200, 200, 200, 200}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := testgroup.New(t, remote.NewMemory(), nil)
			requests := testgroup.NewLimiter(t, g, tiered.Policy{Name: "requests-per-minute", Limit: tiered.PerMinute(100)})
			tokens := testgroup.NewLimiter(t, g, tiered.Policy{Name: "tokens-per-minute", Limit: tiered.PerMinute(1000)})
			limit, err := limitModel(requests, tokens, httplimit.Header("X-User"), c.cost)
			if err != nil {
				t.Fatal(err)
			}
			h := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if err := settle(r, number("X-Used")(r)); err != nil {
					t.Error(err)
				}
			}))
			for i, want := range c.status {
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				for name, value := range map[string]string{"X-User": "ann", "X-Estimate": "500", "X-Used": "200"} {
					r.Header.Set(name, value)
				}
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code != want {
					t.Errorf("%s: request %d: %d, want %d", name, i+1, w.Code, want)
				}
			}
			if left := tokens.Peek(context.Background(), "ann").Remaining; left != c.left {
				t.Errorf("%s: %d left, want %d", name, left, c.left)
			}
		})
	}
}
