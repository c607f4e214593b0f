package rls_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A client is refused while hits of its limit are unspent only if it comes to another replica near
// its limit, at a high rate, and then not for as long as a second. docs/service.md has the longest
// time; with -v this prints all. TestHandover shows the same of real processes.
func TestEarlyRefusals(t *testing.T) {
	ways := []struct {
		name string
		next func(replicas, limit, asked, admitted int) int // the replica that it asks next
	}{
		{"by turns", func(replicas, _, asked, _ int) int { return asked % replicas }},
		{"one after the other", func(replicas, limit, _, admitted int) int { return admitted * replicas / limit }},
		{"another one for the last quarter", func(_, limit, _, admitted int) int { return min(admitted*4/limit, 3) / 3 }},
	}
	worst := time.Duration(0)
	for _, way := range ways {
		for _, replicas := range []int{3, 12} {
			for _, limit := range []int{100, 400, 1000} {
				for _, pause := range []time.Duration{100 * time.Millisecond, 10 * time.Millisecond, 3 * time.Millisecond, time.Millisecond} {
					synctest.Test(t, func(t *testing.T) {
						all := fleetOf(t, replicas, fmt.Sprintf("domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: %d}}\n", limit))
						refused, longest := askAll(t, all, limit, pause, func(asked, admitted int) int { return way.next(replicas, limit, asked, admitted) })
						t.Logf("%s, %d replicas, %d requests, one in %v: %d refusals, for at most %v", way.name, replicas, limit, pause, refused, longest)
						if way.name == "by turns" && refused > 0 {
							t.Errorf("%d replicas are asked by turns, and refuse %d requests", replicas, refused)
						}
						worst = max(worst, longest)
					})
				}
			}
		}
	}
	page := string(fatal.Get(os.ReadFile("../../docs/service.md"))(t))
	if worst > time.Second || !strings.Contains(page, fmt.Sprintf("is refused for up to %.1f s", worst.Seconds())) {
		t.Errorf("a client is refused for %v, and docs/service.md says something else", worst)
	}
}

// fleetOf returns replicas with one store.
func fleetOf(t *testing.T, n int, config string) (all []*rls.Service) {
	t.Helper()
	store := remote.NewMemory()
	for range n {
		g := testgroup.New(t, store, &tiered.Options{
			Processes: n, Budget: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler), Random: func() float64 { return 0.5 },
		})
		s := fatal.Get(rls.New(g, nil))(t)
		use(t, s, config)
		fatal.If(t, g.Ping(t.Context()))
		all = append(all, s)
	}
	time.Sleep(time.Second)
	return all
}

// askAll asks with a pause after each request until limit hits are admitted. It returns how many
// were refused, and the longest time without one that was admitted.
func askAll(
	t *testing.T, all []*rls.Service, limit int, pause time.Duration, next func(asked, admitted int) int,
) (refused int, longest time.Duration) {
	t.Helper()
	var since time.Time // of the first refusal
	for admitted := 0; admitted < limit; time.Sleep(pause) {
		answer := fatal.Get(all[next(admitted+refused, admitted)].ShouldRateLimit(t.Context(), behavior.Request("shop | user=a")))(t)
		if answer.GetOverallCode() == pb.RateLimitResponse_OK {
			if admitted++; !since.IsZero() {
				longest, since = max(longest, time.Since(since)), time.Time{}
			}
			continue
		}
		if refused++; since.IsZero() {
			since = time.Now()
		}
		if s := answer.GetStatuses()[0].GetDurationUntilReset().GetSeconds(); s != 1 {
			t.Fatalf("with %d of %d admitted, a refusal says %d s", admitted, limit, s)
		}
	}
	return refused, longest
}
