package rls_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// With OVER_LIMIT the answer tells when the hits that were asked for are admitted: then they are,
// and a tenth of the time earlier they are not. Envoy makes Retry-After of it.
func TestDurationUntilResetIsWhenTheHitsAreAdmitted(t *testing.T) {
	for _, own := range []string{
		"algorithm: token bucket", "algorithm: token bucket, burst: 40", "algorithm: token bucket, also: [{unit: day, requests_per_unit: 130}]",
		"algorithm: sliding window", "algorithm: sliding window, also: [{unit: day, requests_per_unit: 130}]",
		"algorithm: sliding log", "algorithm: fixed window",
	} {
		for _, count := range []string{"", ", count_refused: false", ", count_refused: true"} {
			for _, hits := range []int{0, 1, 3, 30} {
				t.Run(fmt.Sprintf("%s%s, %d hits", own, count, hits), func(t *testing.T) {
					// told exhausts the key, asks with the hits, waits for a part of what it was
					// told, and asks again.
					told := func(part float64) (told time.Duration, again pb.RateLimitResponse_Code) {
						synctest.Test(t, func(t *testing.T) {
							s := newService(t, remote.NewMemory(), "domain: d\ndescriptors:\n- key: a\n"+
								"  rate_limit: {unit: hour, requests_per_unit: 100}\n  tiered: {"+own+count+"}\n", nil)
							time.Sleep(time.Second)
							ask := func(hits int) *pb.RateLimitResponse_DescriptorStatus {
								r := behavior.Request(fmt.Sprintf("d | a=x +%d", hits))
								return fatal.Get(s.ShouldRateLimit(t.Context(), r))(t).GetStatuses()[0]
							}
							left := ask(0).GetLimitRemaining()
							for i := 0; left > 0; i++ { // some at a time, so that a log has several ages
								n := min(7, left)
								if i%2 == 1 {
									n = 1
								}
								ask(int(n))
								left -= n
								time.Sleep(10 * time.Second)
								if i > 300 {
									t.Fatal("it never ends")
								}
							}
							for ask(0).GetCode() == pb.RateLimitResponse_OK {
								ask(1)
							}
							is := ask(hits)
							if is.GetCode() != pb.RateLimitResponse_OVER_LIMIT {
								t.Fatalf("%v, want OVER_LIMIT", is)
							}
							told = is.GetDurationUntilReset().AsDuration()
							time.Sleep(time.Duration(part * float64(told)))
							again = ask(hits).GetCode()
						})
						return told, again
					}
					after, is := told(1)
					if is != pb.RateLimitResponse_OK {
						t.Errorf("%v after %v, as was told", is, after)
					}
					if after, is := told(0.9); after > 10*time.Second && is == pb.RateLimitResponse_OK {
						t.Errorf("%v a tenth before %v", is, after)
					}
				})
			}
		}
	}
}
