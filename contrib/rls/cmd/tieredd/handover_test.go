package main_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// A client that moves between replicas gets all hits of its limit. One that is refused while other
// replicas hold hits is told to come back within a second, and is served then: nobody is refused
// for longer while hits are unspent.
func TestHandover(t *testing.T) {
	if testing.Short() {
		t.Skip("real time, with up to 12 replicas")
	}
	const limit = 400
	for _, replicas := range []int{3, 12} {
		for _, way := range []string{"one after the other", "by turns"} {
			t.Run(fmt.Sprintf("%d replicas, %s", replicas, way), func(t *testing.T) {
				f := startReplicas(t, replicas, fmt.Sprintf("domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: %d}}\n", limit), "TIERED_BUDGET=200ms")
				admitted, early, asked := 0, 0, 0
				var refusedSince time.Time
				var longest time.Duration
				for begin := time.Now(); admitted < limit; asked++ {
					if time.Since(begin) > time.Minute {
						t.Fatalf("%d of %d are admitted in a minute", admitted, limit)
					}
					at := f.all[asked%replicas]
					if way == "one after the other" { // as one that reconnects after a part of its hits
						at = f.all[admitted*replicas/limit]
					}
					answer := fatal.Get(at.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")))(t)
					if answer.GetOverallCode() == pb.RateLimitResponse_OK {
						admitted++
						if !refusedSince.IsZero() {
							longest, refusedSince = max(longest, time.Since(refusedSince)), time.Time{}
						}
						continue
					}
					early++
					if refusedSince.IsZero() {
						refusedSince = time.Now()
					}
					if s := answer.GetStatuses()[0].GetDurationUntilReset().GetSeconds(); s < 1 || s > 2 {
						t.Fatalf("with %d of %d admitted, a refusal says %d s", admitted, limit, s)
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Logf("%d early refusals in %d requests, for at most %v", early, asked, longest.Round(time.Millisecond))
				if longest > 2*time.Second { // a busy machine may take a second more
					t.Errorf("a client is refused for %v while hits are unspent", longest)
				}
				// Now none is left. Until the last lease has ended nobody knows that, and then the
				// end of the window is told.
				used := time.Now()
				for _, at := range f.all {
					eventually(t, "the end of the window is told", func() bool {
						answer := fatal.Get(at.client.ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")))(t)
						if answer.GetOverallCode() == pb.RateLimitResponse_OK {
							t.Fatalf("more than %d are admitted", limit)
						}
						return answer.GetStatuses()[0].GetDurationUntilReset().GetSeconds() > 60
					})
				}
				t.Logf("all know that none is left after %v", time.Since(used).Round(time.Millisecond))
			})
		}
	}
}

// Through a real Envoy the headers of such a refusal tell that time: after 300 of 400 hits one
// replica is not asked any more, and holds some of the others.
func TestHandoverThroughEnvoy(t *testing.T) {
	envoytest.Program(t)
	const limit, before = 400, 300
	f := startReplicas(t, 3, fmt.Sprintf("domain: shop\ndescriptors:\n  - {key: api_key, rate_limit: {unit: year, requests_per_unit: %d}}\n", limit), "TIERED_BUDGET=200ms")
	for range before {
		answer := fatal.Get(f.all[0].client.ShouldRateLimit(t.Context(), behavior.Request("shop | api_key=ann")))(t)
		if answer.GetOverallCode() != pb.RateLimitResponse_OK {
			t.Fatal(answer)
		}
	}
	c := envoytest.HandedOut(t, envoytest.Upstream(t), f.addresses()[1:]...)
	c.Filter["timeout"], c.Filter["enable_x_ratelimit_headers"], c.Filter["enable_retry_after_header"] = "30s", "DRAFT_VERSION_03", true
	c.Host["rate_limits"] = envoytest.Parsed(t, realLimits)
	e := envoytest.Start(t, c)
	(&stage{f, e, "tieredd"}).healthy(t, 2)
	admitted, early := before, 0
	var since time.Time
	var longest time.Duration
	eventually(t, "all hits are used", func() bool {
		for range 5 {
			answer := e.Ask(t, "/", "x-api-key", "ann")
			if answer.StatusCode == http.StatusOK {
				if admitted++; !since.IsZero() {
					longest, since = max(longest, time.Since(since)), time.Time{}
				}
				continue
			}
			retry, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
			if reset := answer.Header.Get("X-Ratelimit-Reset"); admitted < limit && (retry < 1 || retry > 2 || reset != strconv.Itoa(retry)) {
				t.Fatalf("with %d of %d admitted, a refusal says %d s, and %s s", admitted, limit, retry, reset)
			}
			if admitted < limit {
				if early++; since.IsZero() {
					since = time.Now()
				}
			}
		}
		return admitted >= limit
	})
	t.Logf("%d early refusals, for at most %v", early, longest.Round(time.Millisecond))
	if admitted != limit || longest > 2*time.Second {
		t.Errorf("%d are admitted; refused for %v while hits are unspent", admitted, longest)
	}
}
