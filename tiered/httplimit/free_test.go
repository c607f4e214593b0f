package httplimit_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A request that costs nothing is told what is left, as far as this process knows it. It makes no
// call to Redis, and takes nothing.
func TestAFreeRequestIsToldWhatIsLeft(t *testing.T) {
	for _, p := range []tiered.Policy{
		{Limit: tiered.PerHour(5)},
		{Limit: tiered.PerHour(5).And(tiered.PerDay(1000))},
		{Limit: tiered.PerHour(5), Algorithm: tiered.FixedWindow},
		{Limit: tiered.PerHour(5), Algorithm: tiered.SlidingWindow},
		{Limit: tiered.PerHour(5), Algorithm: tiered.SlidingLog},
		{PerKey: func(string) tiered.Limit { return tiered.PerHour(5) }, Limit: tiered.PerHour(1)},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, store := group(t)
			p.Name = "api"
			rule := perUser(testgroup.NewLimiter(t, g, p))
			rule.Cost = func(r *http.Request) int64 {
				if r.Method == http.MethodHead {
					return 0
				}
				return 1
			}
			h := wrap(t, []httplimit.Rule{rule}, &httplimit.Options{IETFDraft11: true}, ok)
			ask := func(method, user string) (int, http.Header) {
				r := requestOf(user)
				r.Method = method
				a := do(h, r)
				return a.StatusCode, a.Header
			}
			time.Sleep(time.Second)
			calls := func() int64 { return g.Stats().Nodes["memory"].Calls.Sent }
			if _, got := ask(http.MethodHead, "ann"); got.Get("X-RateLimit-Remaining") != "" || got.Get("Retry-After") != "" || calls() > 0 {
				t.Errorf("%v: nothing is known yet: %v, %d calls", p.Algorithm, got, calls())
			}
			for i, left := range []string{"4", "3", "2", "1", "0", "0"} {
				_, paid := ask(http.MethodGet, "ann")
				before := calls()
				status, free := ask(http.MethodHead, "ann")
				if status != http.StatusOK || free.Get("Retry-After") != "" || calls() != before ||
					free.Get("X-RateLimit-Limit") != "5" || free.Get("X-RateLimit-Remaining") != left ||
					free.Get("X-RateLimit-Reset") != paid.Get("X-RateLimit-Reset") ||
					free.Get("RateLimit-Policy") != paid.Get("RateLimit-Policy") || free.Get("RateLimit") == "" {
					t.Errorf("%v, request %d: %d, %d calls, a free one is told %v, one that costs 1 %v", p.Algorithm, i, status,
						calls()-before, free, paid)
				}
			}
			store.Fail(errors.New("down"))
			if status, free := ask(http.MethodHead, "ann"); status != http.StatusOK || free.Get("X-RateLimit-Remaining") != "0" {
				t.Errorf("%v, in an outage: %d %v", p.Algorithm, status, free)
			}
		})
	}
}
