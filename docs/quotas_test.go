package docs_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // so that the test does not depend on the machine

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func perMonth(group *tiered.Group, billingDay map[string]int, planOf map[string]string) (*tiered.Limiter, error) {
	quotas := map[string]int64{"pro": 200_000}
	month, err := group.NewLimiter(tiered.Policy{
		Name:      "month",
		Algorithm: tiered.FixedWindow,
		Limit:     tiered.PerMonth(10_000).In("Europe/Berlin"),
		PerKey: func(customer string) tiered.Limit {
			quota := cmp.Or(quotas[planOf[customer]], 10_000)
			return tiered.PerMonth(quota).In("Europe/Berlin").From(cmp.Or(billingDay[customer], 1))
		},
	})
	return month, err
}

// In an outage each of two processes admits half of the quota, less what it has admitted before, and
// a request that needs a limit beside it passes too. Afterwards the quota has been charged with that.
func TestQuotaInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		var months, minutes [2]*tiered.Limiter
		for i := range months {
			group := fatal.Get(tiered.NewGroup(store, &tiered.Options{Processes: 2}))(t)
			defer group.Close(context.Background())
			months[i] = fatal.Get(perMonth(group, nil, nil))(t)
			minutes[i] = fatal.Get(group.NewLimiter(tiered.Policy{Name: "minute", Limit: tiered.PerMinute(20_000)}))(t)
		}
		admits := func(i int, customer string, n int64) bool {
			return tiered.All(months[i].For(customer).N(n), minutes[i].For(customer)).Allow(t.Context()).Allowed
		}
		left := func(customer string) int64 { return months[1].Peek(t.Context(), customer).Remaining }
		if !admits(0, "ann", 4000) || !admits(0, "dan", 9000) || !admits(0, "eve", 4900) || !admits(1, "eve", 4900) {
			t.Fatal("Redis is there, and the quota is not used up")
		}
		time.Sleep(time.Second)

		store.Fail(errors.New("connection refused"))
		for _, c := range []struct {
			process  int
			customer string
			n        int64
			want     bool
		}{
			{0, "ann", 1001, false},
			{0, "ann", 1000, true},
			{1, "ann", 5000, true},
			{1, "ann", 1, false},
			{0, "eve", 101, false},
			{0, "eve", 100, true},
			{0, "zoe", 2500, true},
			{1, "zoe", 2500, true},
			{1, "dan", 5000, true}, // 4000 beyond the quota
		} {
			if got := admits(c.process, c.customer, c.n); got != c.want {
				t.Errorf("in the outage, %d of %s at process %d: %v", c.n, c.customer, c.process, got)
			}
		}

		store.Fail(nil)
		time.Sleep(10 * time.Second)
		for customer, want := range map[string]int64{"ann": 0, "dan": 0, "eve": 98, "zoe": 4998} {
			for i := range months {
				admits(i, customer, 1) // with the call goes what the process admitted
			}
			time.Sleep(time.Second)
			if n := left(customer); n != want {
				t.Errorf("after the outage %s has %d left, want %d", customer, n, want)
			}
		}
	})
}

// usage answers what a customer has used this month, and takes nothing.
func usage(month *tiered.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d := month.Peek(r.Context(), r.Header.Get("X-Customer"))
		limit, ok := month.LimitOf(d)
		if !ok || d.Tier == tiered.Failover { // Redis does not answer
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		_, end := limit.Calendar.At(time.Now())
		fmt.Fprintf(w, `{"quota": %d, "used": %d, "until": %q}`, d.Burst, d.Burst-d.Remaining, end.Format(time.RFC3339))
	}
}

// The handler tells what was used by a new customer, by one who has used some, and by one who was
// refused, also to a process that has not seen them; and nothing while Redis does not answer.
func TestUsageOfAMonth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2000, time.February, 20, 12, 0, 0, 0, time.UTC)))
		store := remote.NewMemory()
		process := func() *tiered.Limiter {
			group := fatal.Get(tiered.NewGroup(store, nil))(t)
			t.Cleanup(func() { _ = group.Close(context.Background()) })
			return fatal.Get(perMonth(group, map[string]int{"ann": 17, "bob": 31}, map[string]string{"bob": "pro"}))(t)
		}
		month := process()
		for customer, n := range map[string]int64{"ann": 2500, "eve": 10_000} {
			if d := month.AllowN(t.Context(), customer, n); !d.Allowed {
				t.Fatal(d)
			}
		}
		month.Allow(t.Context(), "eve")
		time.Sleep(time.Second)
		for _, l := range []*tiered.Limiter{month, process()} {
			for customer, want := range map[string]string{
				"ann": `{"quota": 10000, "used": 2500, "until": "2000-03-17T00:00:00+01:00"}`,
				"bob": `{"quota": 200000, "used": 0, "until": "2000-02-29T00:00:00+01:00"}`,
				"eve": `{"quota": 10000, "used": 10000, "until": "2000-03-01T00:00:00+01:00"}`,
			} {
				for range 2 {
					r, w := httptest.NewRequest(http.MethodGet, "/usage", nil), httptest.NewRecorder()
					r.Header.Set("X-Customer", customer)
					if usage(l)(w, r); w.Body.String() != want {
						t.Errorf("%s: %d %s, want %s", customer, w.Code, w.Body, want)
					}
				}
			}
		}
		store.Fail(errors.New("connection refused"))
		r, w := httptest.NewRequest(http.MethodGet, "/usage", nil), httptest.NewRecorder()
		r.Header.Set("X-Customer", "zoe")
		if usage(month)(w, r); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
