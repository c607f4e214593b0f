package tiered_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A policy that nobody asks is small, and so are its figures: a service may have tens of thousands of rules.
func TestPoliciesThatNobodyAsksAreSmall(t *testing.T) {
	heap := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	g := must(tiered.NewGroup(remote.NewMemory(), nil))
	defer g.Close(context.Background())
	const n = 2000
	all := make([]tiered.Policy, n)
	for i := range all {
		all[i] = tiered.Policy{
			Name: fmt.Sprintf("rule%d", i), Limit: tiered.PerMinute(100),
			Algorithm: tiered.FixedWindow, Calendar: true,
		}
	}
	empty := heap()
	ok(t, g.SetPolicies(all))
	made := heap()
	stats := g.Stats()
	read := heap()
	each, figures := int64(made.HeapAlloc-empty.HeapAlloc)/n, int64(read.TotalAlloc-made.TotalAlloc)/n
	t.Logf("a policy has %d bytes, and its figures take %d", each, figures)
	if each > 3000 || figures > 1300 {
		t.Error("want at most 3000 and 1300")
	}
	if p := stats.Policies["rule7"]; len(stats.Policies) != n || p.Requests != (tiered.PolicyStats{}).Requests ||
		p.RedisTime.Count() != 0 || len(p.RedisTime.Buckets) == 0 {
		t.Errorf("%d policies; %+v", len(stats.Policies), p)
	}
	runtime.KeepAlive(all)
}
