package httplimit_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// away is a store whose answers take a while.
type away struct {
	*remote.Memory
	way time.Duration
}

func (s away) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	time.Sleep(s.way)
	s.Memory.Run(ctx, timeout, calls, results)
	time.Sleep(s.way)
}

// The Unix time at which a calendar window ends is one number, the same in all answers of the
// window, however long Redis takes to answer.
func TestUnixTimeOfTheEndOfACalendarWindow(t *testing.T) {
	for _, p := range []tiered.Policy{
		{Limit: tiered.Per(1000, 10*time.Second)},
		{Limit: tiered.Per(1000, 10*time.Second), Lease: tiered.Lease{Size: tiered.NoLease}},
		{Limit: tiered.Per(10, 10*time.Second)},
	} {
		for _, way := range []time.Duration{time.Microsecond, time.Millisecond, 9 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				p.Name, p.Algorithm, p.Calendar = "api", tiered.FixedWindow, true
				l := testgroup.NewLimiter(t, testgroup.New(t, away{remote.NewMemory(), way}, nil), p)
				h := wrap(t, []httplimit.Rule{perUser(l)}, &httplimit.Options{Headers: httplimit.Headers{ResetUnix: true}}, ok)
				time.Sleep(10*time.Second + 50*time.Millisecond)
				end := time.Now().Truncate(10 * time.Second).Add(10 * time.Second).Unix()
				for range 400 {
					at, err := strconv.ParseInt(get(h, "ann").Header.Get("X-RateLimit-Reset"), 10, 64)
					if err != nil || at != end {
						t.Fatalf("%+v, %v away: X-RateLimit-Reset is %d, %d s after the end of the window", p.Limit, way, at, at-end)
					}
					if time.Now().Unix() >= end-1 {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
	}
}
