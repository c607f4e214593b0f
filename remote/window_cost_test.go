package remote_test

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestBytesOfAKey holds the figures of docs/internals/performance.md against a real Redis, a tenth
// more or less: what keys of a name of 30 bytes take there.
func TestBytesOfAKey(t *testing.T) {
	page, err := os.ReadFile("../docs/internals/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	e := realEngine(t)
	stated := regexp.MustCompile(`whose\s+name\s+has\s+30\s+characters,\s+on\s+Redis\s+(\d+\.\d+)\.`).FindSubmatch(page)
	if stated == nil || !strings.HasPrefix(redistest.Version(t), string(stated[1])+".") {
		t.Skipf("the page states the figures of %q, and this is %s", stated, redistest.Version(t))
	}
	for a := range lua.Algorithm(lua.Algorithms) {
		sha := a.Script().SHA
		c := of(a, "", 1000, minute, sec)
		bytes := func(what string, takes, leases int, also ...lua.Limit) {
			t.Helper()
			c := c
			c.Also = also
			c.Bucket = fmt.Sprintf("{%d/%d/%d/%d}", a, takes, leases, len(also))
			c.Bucket += strings.Repeat("k", 30-len(c.Bucket))
			for i := range takes {
				c.Now = scriptStart + int64(i)*sec // a block each
				switch {
				case a == lua.SlidingLog:
					c.Now = scriptStart + int64(i)
				case a == lua.TokenBucket && i == 2: // soon: the overflow and the level are fractions
					c.Now = scriptStart + sec + 12_345
				}
				e.call(t, take(c, 1))
			}
			for i := range leases {
				l := take(c, 10)
				l.Lease, l.Seq = fmt.Sprintf("%016x", i+1), int64(i+1)
				e.call(t, l)
			}
			n, err := e.client.MemoryUsage(t.Context(), c.Bucket, 0).Result() // of all it has, not five samples
			if err != nil {
				t.Fatal(err)
			}
			row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(what) + ` \| (\d+) \|$`).FindSubmatch(page)
			if row == nil {
				t.Fatalf("docs/internals/performance.md has no row: | %s | %d |", what, n)
			}
			if said, _ := strconv.ParseInt(string(row[1]), 10, 64); max(said, n) > min(said, n)*11/10 {
				t.Errorf("%s: %d bytes (%s), docs/internals/performance.md says %d", what, n, sha[:7], said)
			}
		}
		switch a {
		case lua.TokenBucket:
			bytes("token bucket", 1, 0)
			bytes("token bucket that was full in between", 3, 0)
			bytes("token bucket, 10 leases", 1, 10)
		case lua.TokenBuckets:
			bytes("token bucket with 3 limits", 1, 0, lua.Limit{Cap: 5, Tokens: 5, Period: sec},
				lua.Limit{Cap: 9999, Tokens: 1, Period: sec * 3600})
		case lua.FixedWindow:
			bytes("fixed window", 1, 0)
			bytes("fixed window, 10 leases", 1, 10)
		case lua.SlidingWindow:
			bytes("sliding window, 1 block in use", 1, 0)
			bytes("sliding window, 60 blocks in use", 60, 0)
		case lua.SlidingLog:
			bytes("sliding log, 1 request", 1, 0)
			bytes("sliding log, 100 requests", 100, 0)
			bytes("sliding log, 1000 requests", 1000, 0)
		}
	}
}

// TestCostOfSeveralBuckets measures what decides that a single bucket has a script of its own: the
// processor time of Redis for direct takes, the median of five rounds. A second script is worth its
// upkeep if the general one costs a tenth more.
func TestCostOfSeveralBuckets(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	e := realEngine(t)
	const calls = 20_000
	measure := func(a lua.Algorithm) float64 {
		sha := a.Script().SHA
		before := e.cpu(t)
		for from := 0; from < calls; from += 1000 {
			_, err := e.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for i := range 1000 {
					c := take(of(a, fmt.Sprint("cost", a, i), 1<<30, sec, 0), 1)
					p.EvalSha(t.Context(), sha, []string{c.Bucket}, c.Arguments(nil, nil)...)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return (e.cpu(t) - before) / calls * 1e6
	}
	var single, several []float64
	for range 5 {
		single, several = append(single, measure(lua.TokenBucket)), append(several, measure(lua.TokenBuckets))
	}
	one, many := median(single), median(several)
	t.Logf("a direct take by lua/token_bucket.lua %.1f µs, by lua/token_buckets.lua with one limit %.1f µs: %.2f times", one, many, many/one)
	if many < 1.1*one {
		t.Error("one script would do: lua/token_buckets.lua costs a single bucket less than a tenth more")
	}
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// The work at the edge of a block does not grow with the time since the last call: after a day of
// blocks that nobody counted in, a take reads no more than twice the span, and so does a refusal.
func TestTrimmingIsBounded(t *testing.T) {
	e := realEngine(t)
	c := of(lua.SlidingWindow, "day", 100, minute, sec)
	reads := func(now, n int64, code lua.Code) (fields int64) {
		t.Helper()
		if err := e.client.ConfigResetStat(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if a := e.at(t, now, take(c, n)); a.reply.Code != code {
			t.Fatal(a)
		}
		m := regexp.MustCompile(`cmdstat_hmget:calls=(\d+)`).FindStringSubmatch(e.client.Info(t.Context(),
			"commandstats").Val())
		fields, _ = strconv.ParseInt(m[1], 10, 64)
		return fields
	}
	for i := range int64(60) {
		e.at(t, scriptStart+i*sec, take(c, 1))
	}
	// The state and its limit; what left, in one; the block of now. A refusal looks at 32 blocks at
	// a time.
	later := scriptStart + 86_400*sec
	if n := reads(later, 100, lua.Granted); n > 3 {
		t.Errorf("a take: %d reads", n)
	}
	if n := reads(later+sec, 100, lua.Denied); n > 2+2*61/32+1 {
		t.Errorf("a refusal: %d reads", n)
	}
}

// The Lua of miniredis, in which the simulator plays, makes an array as long as the largest number
// that a table is indexed by, up to 67 million. Blocks of 30 s have such numbers.
func TestBlocksMakeNoLongArray(t *testing.T) {
	e := miniEngine(t)
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	before := allocated()
	e.at(t, scriptStart, take(of(lua.SlidingWindow, "long", 100, minute, 30*sec), 1))
	if n := (allocated() - before) >> 20; n > 64 {
		t.Errorf("one take allocated %d MB", n)
	}
}
