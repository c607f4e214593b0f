package bench_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

const sharedRules = `domain: shop
descriptors:
  - key: eighth
    rate_limit: {unit: second, requests_per_unit: 100}
    tiered: {algorithm: token bucket, burst: 200, standing: 1/8}
  - key: half
    rate_limit: {unit: second, requests_per_unit: 100}
    tiered: {algorithm: token bucket, burst: 200, standing: 1/2}
`

// oneAddress is a balancer of connections, as a Service of Kubernetes is. It returns its address.
func oneAddress(t *testing.T, replicas []string) string {
	t.Helper()
	at := fatal.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = at.Close() })
	go func() {
		for i := 0; ; i++ {
			from, err := at.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", replicas[i%len(replicas)])
			if err != nil {
				_ = from.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		}
	}()
	return at.Addr().String()
}

// TestSharesThroughEnvoy prints which part of its limit a key gets whose requests come through one
// Envoy, of three replicas with standing shares. An Envoy that has one address for all of them
// meets one replica, and so has 1 - standing·(1 - 1/3) of the limit; one that has the addresses of
// the pods meets all.
func TestSharesThroughEnvoy(t *testing.T) {
	if os.Getenv("TIERED_TEST_RLS_BENCH") == "" {
		t.Skip("takes two minutes: make rls-bench, or TIERED_TEST_RLS_BENCH=1")
	}
	envoytest.Program(t)
	p := buildOurs(t)
	p.env = append(slices.Clip(p.env), "TIERED_PROCESSES=3")
	s := p.start(t, 3, sharedRules)
	var pods []string
	for _, r := range s.replicas {
		pods = append(pods, r.address)
	}
	worlds := map[string]*world{}
	for name, addresses := range map[string][]string{"one address": {oneAddress(t, pods)}, "the pods": pods} {
		c := envoytest.HandedOut(t, envoytest.Upstream(t), addresses...)
		plain(c) // health checks have connections of their own
		c.Filter["timeout"] = "1s"
		c.Host["rate_limits"] = envoytest.Parsed(t, `
- actions: [{request_headers: {header_name: x-eighth, descriptor_key: eighth}}]
- actions: [{request_headers: {header_name: x-half, descriptor_key: half}}]
`)
		worlds[name] = &world{s, []*envoytest.Envoy{envoytest.Start(t, c)}}
	}
	// offer asks twice as often as the limit allows, and returns how many requests a second are admitted.
	offer := func(length time.Duration) map[string]float64 {
		var mu sync.Mutex
		var all sync.WaitGroup
		rates := map[string]float64{}
		for name, w := range worlds {
			for _, part := range []string{"eighth", "half"} {
				all.Go(func() {
					o := w.offerSlowly(t, 1, 0, length, 4*time.Millisecond, fmt.Sprintf("x-%s: %s", part, strings.ReplaceAll(name, " ", "-")))
					if o.Failed > 0 {
						t.Errorf("%s: %d calls failed", name, o.Failed)
					}
					mu.Lock()
					defer mu.Unlock()
					rates[part+", "+name] = float64(o.admitted) / length.Seconds()
				})
			}
		}
		all.Wait()
		return rates
	}
	offer(100 * time.Second) // the shares of a new table begin after 65 s, and fill
	is := offer(20 * time.Second)
	for name, least := range map[string]float64{"eighth, one address": 89, "half, one address": 64, "eighth, the pods": 96, "half, the pods": 96} {
		fmt.Printf("%s: %.0f of 100 requests a second\n", name, is[name])
		if is[name] < least || is[name] > 101 {
			t.Errorf("%s: %.1f requests a second, want %.0f to 101", name, is[name], least)
		}
	}
}
