package rls_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// counted returns all counters that are not 0, without the beginning that they all have.
func counted(c *statistics.Counters) map[string]uint64 {
	all := map[string]uint64{}
	add := func(name string, n uint64) {
		if n > 0 {
			all[strings.TrimPrefix(name, "ratelimit.service.rate_limit.")] = n
		}
	}
	for _, counts := range c.All() {
		for kind := range statistics.Kinds {
			add(counts.Name(kind), counts.Value(kind))
		}
	}
	c.Totals(add)
	return all
}

// shown lists counters, each name with its values in the order total, within, near, over, over with
// local cache, shadow.
func shown(all map[string]uint64) string {
	rules := map[string][]string{}
	for name, n := range all {
		cut := strings.LastIndexByte(name, '.')
		rules[name[:cut]] = append(rules[name[:cut]], fmt.Sprintf("%s %d", strings.ReplaceAll(name[cut+1:], "over_limit_with_local_cache", "local"), n))
	}
	var lines []string
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		slices.Sort(rules[rule])
		lines = append(lines, rule+": "+strings.Join(rules[rule], ", "))
	}
	return strings.Join(lines, "\n")
}

// What is counted, and under which names, is what envoyproxy/ratelimit f2fb157 counts by its
// source. TestPanels compares it with a version that runs.
func TestStatistics(t *testing.T) {
	for _, c := range []struct{ name, requests, want string }{
		{"within, near and over the limit", `shop +7 | user=a
shop +2 | user=a
shop +3 | user=a
shop | user=a`, `shop.user: near_limit 2, over_limit 3, total_hits 13, within_limit 9`},
		{"a value with a limit of its own", "shop | user=vip", "shop.user_vip: total_hits 1, within_limit 1"},
		{"a look counts nothing", "shop | user=b +0", ""},
		{
			"shadow mode", "shop | tried=a\nshop +3 | tried=a\nshop | tried=a",
			"shop.tried: near_limit 1, over_limit 3, shadow_mode 3, total_hits 5, within_limit 1",
		},
		{"detailed_metric", "shop | each=a\nshop | each=a\nshop | each=\nshop | each=10.0.0.1", `shop.each_: total_hits 1, within_limit 1
shop.each_10_0_0_1: total_hits 1, within_limit 1
shop.each_a: total_hits 2, within_limit 2`},
		{"value_to_metric", `shop | tenant=x path=/z
shop | tenant=x path=/a
shop | tenant=x path=/b1
shop | tenant=x path=/c1
shop | tenant=x path=/d1
shop | tenant= path=/z
shop | tenant=x remote_address=10.0.0.1:80`, `shop.tenant.path: total_hits 1, within_limit 1
shop.tenant_x.path: total_hits 1, within_limit 1
shop.tenant_x.path_/a: total_hits 1, within_limit 1
shop.tenant_x.path_/b*: total_hits 1, within_limit 1
shop.tenant_x.path_/c1: total_hits 1, within_limit 1
shop.tenant_x.path_/d*: total_hits 1, within_limit 1
shop.tenant_x.remote_address_10_0_0_1_80: total_hits 1, within_limit 1`},
		{
			"detailed_metric of values that share a limit", "shop | tenant=x path=/e1\nshop | tenant= path=/e2",
			"shop.tenant.path_/e*: total_hits 1, within_limit 1\nshop.tenant_x.path_/e*: total_hits 1, within_limit 1",
		},
		{"no limit, and one that is replaced", "shop | free=a | color=a | cheap=a | dear=a", "shop.dear: total_hits 1, within_limit 1"},
		{"a limit that comes with the request", "shop | user=a color= limit=3/year", "shop.user_a.color: total_hits 1, within_limit 1"},
		{"a domain that is not configured", "Shop | user=a | user=b", "Shop: domain_not_found 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := statistics.New(nil)
			s := newService(t, remote.NewMemory(), behavior.Counted, &rls.Options{Statistics: to})
			for request := range strings.SplitSeq(c.requests, "\n") {
				fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(request)))(t)
			}
			if is := shown(counted(to)); is != c.want {
				t.Errorf("%s\nmust be\n%s", is, c.want)
			}
		})
	}
}

// What is not about one rule.
func TestStatisticsOfCalls(t *testing.T) {
	to := statistics.New(&statistics.Options{NearLimitRatio: 0.5, Local: true})
	s := newService(t, remote.NewMemory(), behavior.Counted, &rls.Options{Statistics: to, Shadow: true, HashKey: []byte("0123456789abcdef")})
	for _, r := range []string{"shop +6 | user=a", "shop +5 | user=a", "shop | user=a", "shop | user=a", "shop | each=secret"} {
		fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(r)))(t)
	}
	_, err := s.ShouldRateLimit(t.Context(), behavior.Request(" | user=a"))
	all := counted(to)
	for name, n := range all {
		if strings.HasPrefix(name, "shop.each_hmac_") && n == 1 {
			delete(all, name)
		}
	}
	to.Loaded(nil)
	want := `ratelimit.service: global_shadow_mode 3
ratelimit.service.call.should_rate_limit: service_error 1
shop.user: local 1, near_limit 5, over_limit 3, total_hits 13, within_limit 6`
	if is := shown(all); is != want || err == nil {
		t.Errorf("%s\nmust be\n%s: %v", is, want, err)
	}
}

// Values that clients choose are as many names as are wanted at most, none is longer than 2 kB, and
// the log says once that there are more. Further ones count for the rule.
func TestStatisticsAreBounded(t *testing.T) {
	var log bytes.Buffer
	to := statistics.New(&statistics.Options{Most: 5, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s := newService(t, remote.NewMemory(), behavior.Counted, &rls.Options{Statistics: to})
	for i := range 1000 {
		r := behavior.Request("shop | each=x | color=x limit=3/year")
		for _, d := range r.GetDescriptors() {
			d.Entries[0].Value = fmt.Sprintf("%d-%s\n:|", i, strings.Repeat("x", 60_000))
		}
		fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
	}
	sum, names := uint64(0), 0
	for name, n := range counted(to) {
		if strings.HasSuffix(name, ".total_hits") {
			sum, names = sum+n, names+1
		}
		if len(name) > 2100 || strings.ContainsAny(name, "\n:|") {
			t.Errorf("%d bytes: %.100q", len(name), name)
		}
	}
	if names != 5+1 || sum < 1000 || sum > 1005 {
		t.Errorf("%d names with %d hits", names, sum)
	}
	if n := strings.Count(log.String(), "TIERED_METRIC_RULES"); n != 2 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%s", log.String())
	}
}

// The number of rules is bounded by the setting too. A negative setting means no rules, and the log
// says nothing of that. Hits that are given back count nothing.
func TestStatisticsOfManyRules(t *testing.T) {
	rules := "domain: shop\ndescriptors:\n  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 10}, tiered: {algorithm: token bucket}}\n"
	for i := range 20 {
		rules += fmt.Sprintf("  - {key: k%d, rate_limit: {unit: year, requests_per_unit: 3}}\n", i)
	}
	for _, most := range []int{5, -1} {
		var log bytes.Buffer
		to := statistics.New(&statistics.Options{Most: most, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		s := newService(t, remote.NewMemory(), rules, &rls.Options{Statistics: to})
		back := behavior.Request("shop | bucket=a +2")
		back.Descriptors[0].IsNegativeHits = true
		for _, r := range []*pb.RateLimitRequest{behavior.Request("shop | bucket=a +3"), back} {
			fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
		}
		for i := range 40 {
			fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(fmt.Sprintf("shop | k%d=a", i%20))))(t)
		}
		want := `shop.bucket: total_hits 3, within_limit 3
shop.k0: total_hits 2, within_limit 2
shop.k1: total_hits 2, within_limit 2
shop.k2: total_hits 2, within_limit 2
shop.k3: total_hits 2, within_limit 2`
		told := 1
		if most < 0 {
			want, told = "", 0
		}
		if is := shown(counted(to)); is != want || strings.Count(log.String(), "\n") != told {
			t.Errorf("%s\nmust be\n%s\n%s", is, want, &log)
		}
	}
}

// Counting costs no memory, also where names have values.
func TestStatisticsAllocateNothing(t *testing.T) {
	if race.On {
		t.Skip("allocations are counted without the race detector")
	}
	allocations := func(o *rls.Options, request string) float64 {
		s := newService(t, remote.NewMemory(), behavior.Counted, o)
		r := behavior.Request(request)
		ask := func() { fatal.Get(s.ShouldRateLimit(t.Context(), r))(t) }
		ask()
		least := math.Inf(1) // what is asked of the store in the background allocates too
		for range 20 {
			least = min(least, testing.AllocsPerRun(20, ask))
		}
		return least
	}
	for _, request := range []string{"shop | user=vip", "shop | each=a | tenant=x path=/z", "shop | color=a limit=4000000000/year"} {
		without := allocations(nil, request)
		if with := allocations(&rls.Options{Statistics: statistics.New(nil)}, request); with > without {
			t.Errorf("%s: %v allocations, and %v without statistics", request, with, without)
		}
	}
}
