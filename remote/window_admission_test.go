package remote_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What windows admit, each shown on a real Redis: defects of scripts that are widely copied, what
// is said of ours, and what happens around them. The calls are told their time, unless what is to
// be shown is that Redis' own counts.

const sec, minute = int64(1e6), int64(60e6)

// of is a call of an algorithm with a limit of n per d µs, by blocks of q where it has any.
func of(a lua.Algorithm, bucket string, n, d, q int64) lua.Call {
	c := lua.Call{Algorithm: a, Bucket: bucket, Cap: n, Tokens: n, Period: d, TTL: sec, Fleet: 1}
	if a == lua.SlidingWindow {
		c.Period, c.Span = q, (d+q-1)/q+1
	}
	return c
}

// burst takes tokens one by one until one is refused, n at most.
func (e *engine) burst(t *testing.T, now int64, c lua.Call, n int) (admitted int, refusal lua.Reply) {
	t.Helper()
	for ; admitted < n; admitted++ {
		a := e.at(t, now, take(c, 1))
		if a.err != "" {
			t.Fatal(a)
		}
		if a.reply.Code != lua.Granted {
			return admitted, a.reply
		}
	}
	return admitted, lua.Reply{}
}

// TestWorkedExample computes the example of docs/choosing.md: 100 per minute, 100 requests at sec
// 59 and 100 at sec 61.
func TestWorkedExample(t *testing.T) {
	e := realEngine(t)
	start := (scriptStart/minute + 1) * minute
	for _, c := range []struct {
		name         string
		call         lua.Call
		at59, at61   int
		retry, worst int64 // µs; tokens in some minute, as far as the example goes
	}{
		{"fixed window", of(lua.FixedWindow, "fw", 100, minute, 0), 100, 100, 0, 200},
		{"sliding log", of(lua.SlidingLog, "lg", 100, minute, 0), 100, 0, 58 * sec, 100},
		{"sliding window, 1 s", of(lua.SlidingWindow, "sw1", 100, minute, sec), 100, 0, 59 * sec, 100},
		{"sliding window, 10 s", of(lua.SlidingWindow, "sw10", 100, minute, 10*sec), 100, 0, 59 * sec, 100},
		{"token bucket, burst 100", of(lua.TokenBucket, "tb", 100, minute, 0), 100, 3, 400_000, 103},
		{"token bucket, burst 10", func() lua.Call {
			c := of(lua.TokenBucket, "tb10", 100, minute, 0)
			c.Cap = 10
			return c
		}(), 10, 3, 400_000, 13},
		{"token bucket, also 10 per second", func() lua.Call {
			c := of(lua.TokenBuckets, "tm", 100, minute, 0)
			c.Also = []lua.Limit{{Cap: 10, Tokens: 10, Period: sec}}
			return c
		}(), 10, 10, 100_000, 20},
	} {
		first, _ := e.burst(t, start+59*sec, c.call, 100)
		then, refusal := e.burst(t, start+61*sec, c.call, 100)
		if first != c.at59 || then != c.at61 || refusal.Retry != c.retry || int64(first+then) != c.worst {
			t.Errorf("%s: %d and %d, retry %d; want %d and %d, retry %d", c.name, first, then, refusal.Retry, c.at59,
				c.at61, c.retry)
		}
	}
}

// Two requests in one microsecond are two members: 1000 in one are 10 of 10 and no more.
func TestOneMicrosecond(t *testing.T) {
	e := realEngine(t)
	c := of(lua.SlidingLog, "same", 10, minute, 0)
	if n, _ := e.burst(t, scriptStart, c, 1000); n != 10 {
		t.Errorf("%d of 10", n)
	}
	if n := e.client.ZCount(t.Context(), c.Bucket, "0", "+inf").Val(); n != 10 {
		t.Errorf("%d members", n)
	}
	if a := e.at(t, scriptStart+minute-1, take(c, 1)); a.reply.Code != lua.Denied {
		t.Errorf("1 µs before the first leaves: %v", a)
	}
	if a := e.at(t, scriptStart+minute, take(c, 1)); a.reply.Code != lua.Granted {
		t.Errorf("when it leaves: %v", a)
	}
}

// By Redis' own clock: of concurrent first requests exactly the limit is admitted, also when the
// scripts are forgotten meanwhile.
func TestFirstRequestsAtOnce(t *testing.T) {
	server := redistest.StartOpen(t)
	store := remote.NewRedis(server.Client(), nil)
	for _, a := range without(lua.OneLevel) {
		var all sync.WaitGroup
		var mu sync.Mutex
		admitted, epochs := 0, map[int64]bool{}
		for i := range 60 {
			all.Go(func() {
				if i%20 == 10 {
					server.Client().ScriptFlush(t.Context())
				}
				c := take(of(a, store.Name(remote.Kind{Algorithm: a}, "p", "k"), 10, 3600*sec, 60*sec), 1)
				var r [1]remote.Result
				store.Run(t.Context(), time.Minute, []lua.Call{c}, r[:])
				mu.Lock()
				defer mu.Unlock()
				if r[0].Err != nil {
					t.Error(r[0].Err)
				} else if epochs[r[0].Reply.Epoch] = true; r[0].Reply.Grant == 1 {
					admitted++
				}
			})
		}
		all.Wait()
		if admitted != 10 || len(epochs) != 1 {
			t.Errorf("algorithm %d: %d admitted of 10, epochs %v", a, admitted, epochs)
		}
	}
}

// A key that lost its time to live gets one with the next admission; a weight above the limit is
// refused for ever and leaves nothing; a shorter limit on the same key takes no time from it.
func TestTimeToLive(t *testing.T) {
	e := realEngine(t)
	for _, a := range without(lua.OneLevel) {
		c := of(a, fmt.Sprint("ttl", a), 3, 3600*sec, 60*sec)
		if got := e.at(t, scriptStart, take(c, 4)); got.reply.Code != lua.Never ||
			e.lookAt(t, a, c.Bucket).fields != nil {
			t.Errorf("algorithm %d, a cost above the limit: %v", a, got)
		}
		e.at(t, scriptStart, take(c, 1))
		e.client.Persist(t.Context(), c.Bucket)
		if e.at(t, scriptStart+1, take(c, 1)); e.lookAt(t, a, c.Bucket).pttl < 1_000_000 {
			t.Errorf("algorithm %d lives %d ms", a, e.lookAt(t, a, c.Bucket).pttl)
		}
	}
	for _, a := range []lua.Algorithm{lua.SlidingWindow, lua.TokenBuckets} {
		long := of(a, fmt.Sprint("short", a), 3, 3600*sec, 60*sec)
		e.at(t, scriptStart, take(long, 3))
		short := of(a, long.Bucket, 100, sec, 100_000)
		e.at(t, scriptStart+1, take(short, 1))
		if e.lookAt(t, a, long.Bucket).pttl < 1_000_000 {
			t.Errorf("algorithm %d: a shorter limit left %d ms", a, e.lookAt(t, a, long.Bucket).pttl)
		}
		if got := e.at(t, scriptStart+2, take(long, 1)); got.reply.Code != lua.Denied {
			t.Errorf("algorithm %d has forgotten: %v", a, got)
		}
	}
}

// A clock that is set back by more than the guard admits nothing twice, and what waits is not
// refused for ever.
func TestWindowClockSetBack(t *testing.T) {
	e := realEngine(t)
	for _, a := range without(lua.OneLevel) {
		d := 10 * sec
		c := of(a, fmt.Sprint("back", a), 3, d, sec)
		now := (scriptStart/d + 1) * d
		e.burst(t, now, c, 3)
		back := now - 3600*sec
		if a := e.at(t, back, take(c, 1)); a.reply.Code != lua.Denied || a.reply.Flags&lua.SteppedBack == 0 {
			t.Errorf("set back: %v", a)
		}
		if a := e.at(t, back+d/2, take(c, 3)); a.reply.Code != lua.Denied {
			t.Errorf("half its length later: %v", a)
		}
		if a := e.at(t, back+2*d, take(c, 3)); a.reply.Code != lua.Granted {
			t.Errorf("twice its length later: %v", a)
		}
	}
}

// A hundred thousand old entries are forgotten with no slow call: a few at a time while something
// is live, at once else.
func TestOldEntriesAreForgotten(t *testing.T) {
	e := realEngine(t)
	for _, live := range []int64{0, 1000} {
		c := of(lua.SlidingLog, fmt.Sprint("old", live), 200_000, minute, 0)
		now := scriptStart
		e.at(t, now, take(c, 1))
		pipe := e.client.Pipeline()
		for i := int64(1); i <= 100_000; i++ {
			at := fmt.Sprintf("%d", now+i)
			pipe.ZAdd(t.Context(), c.Bucket, redis.Z{Score: float64(now + i), Member: at})
		}
		pipe.ZAdd(t.Context(), c.Bucket, redis.Z{Score: float64(-1 - 100_001 - live), Member: "#n"},
			redis.Z{Score: float64(-1 - now - 100_000), Member: "#t"})
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		later := now + minute + 200_000
		if live > 0 {
			for i := range live {
				e.client.ZAdd(t.Context(), c.Bucket,
					redis.Z{Score: float64(later - 1000 + i), Member: fmt.Sprintf("%d", later-1000+i)})
			}
			e.client.ZAdd(t.Context(), c.Bucket, redis.Z{Score: float64(-1 - (later - 1)), Member: "#t"})
		}
		before := e.client.ZCard(t.Context(), c.Bucket).Val()
		a := e.at(t, later, take(c, 1))
		removed := before + 1 - e.client.ZCard(t.Context(), c.Bucket).Val()
		if a.reply.Code != lua.Granted || live > 0 && removed != 33 || live == 0 && removed != before-3 {
			t.Errorf("%d live: %v, %d of %d removed", live, a, removed, before)
		}
	}
}

// A call forgets as many old entries as the room needs that it asks for: for its request, for its
// debt and for a limit that was lowered. None is refused for what has left.
func TestOldEntriesMakeRoom(t *testing.T) {
	for _, e := range engines(t) {
		for i, c := range []struct{ limit, debt, want int64 }{{100, 0, 99}, {100, 60, 39}, {50, 0, 49}} {
			call := of(lua.SlidingLog, fmt.Sprint("room", i), 100, minute, 0)
			if n, _ := e.burst(t, scriptStart, call, 99); n != 99 {
				t.Fatalf("%s: %d of 99", e.name, n)
			}
			e.at(t, scriptStart+minute/2, take(call, 1))
			call = take(call, c.want)
			now := scriptStart + minute + sec
			call.Cap, call.Lease, call.Seq = c.limit, "A", 1
			if call.Debt = c.debt; c.debt > 0 {
				call.Since = now
			}
			if a := e.at(t, now, call); a.reply.Grant != c.want || a.reply.Level != 0 {
				t.Errorf("%s: limit %d, debt %d: %v, want %d", e.name, c.limit, c.debt, a, c.want)
			}
		}
	}
}

// TestMostInAMinute drives each algorithm to the most that docs/choosing.md says a minute can hold,
// by the schedule that is worst for it, and no further: a fixed window twice its limit around an
// edge, a bucket that starts full its burst and what is refilled, the sliding ones never more than
// their limit.
func TestMostInAMinute(t *testing.T) {
	page, err := os.ReadFile("../docs/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	e := realEngine(t)
	start := (scriptStart/minute + 1) * minute
	also := of(lua.TokenBuckets, "tm", 100, minute, 0)
	also.Also = []lua.Limit{{Cap: 10, Tokens: 10, Period: sec}}
	small := of(lua.TokenBucket, "tb10", 100, minute, 0)
	small.Cap = 10
	for _, c := range []struct {
		name string
		call lua.Call
		most int
	}{
		{"`FixedWindow`, edges at :00", of(lua.FixedWindow, "fw", 100, minute, 0), 200},
		{"`SlidingLog`", of(lua.SlidingLog, "lg", 100, minute, 0), 100},
		{"" /* as the next row */, of(lua.SlidingWindow, "sw1", 100, minute, sec), 100},
		{"`SlidingWindow`", of(lua.SlidingWindow, "sw10", 100, minute, 10*sec), 100},
		{"" /* 45 s, which do not divide a minute */, of(lua.SlidingWindow, "sw45", 100, minute, 45*sec), 100},
		{"`TokenBucket`, burst 100", of(lua.TokenBucket, "tb", 100, minute, 0), 199},
		{"`TokenBucket`, burst 10", small, 109},
		{"`TokenBucket`, and 10 per second", also, 199},
	} {
		// All that is asked for every 100 ms from half a minute before an edge on, for five
		// minutes, at the last microsecond of a block when it is one.
		var admitted []int64
		for now := start + minute/2 - 1; now < start+5*minute+minute/2; now += 100_000 {
			n, _ := e.burst(t, now, c.call, 100)
			for range n {
				admitted = append(admitted, now)
			}
		}
		most := 0
		for first, i := 0, 0; i < len(admitted); i++ {
			for admitted[i]-admitted[first] >= minute {
				first++
			}
			most = max(most, i-first+1)
		}
		if most != c.most {
			t.Errorf("%s: %d in a minute, want %d", c.name, most, c.most)
		}
		if c.name == "" {
			continue
		}
		// The page has the bound, which what is refilled just misses: C + r·t of a minute that is
		// not over.
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(c.name) +
			` \|(?:[^|]*\|){3} (\d+) \|$`).FindSubmatch(page)
		if row == nil {
			t.Fatalf("docs/choosing.md has no row of %s", c.name)
		}
		if said, _ := strconv.Atoi(string(row[1])); most > said || most < said-1 {
			t.Errorf("%s: %d in a minute, docs/choosing.md says %d", c.name, most, said)
		}
	}
}

// Limits in any order give the same answers and the same counts, and what one of them refuses
// counts in none: three limits in all six orders, each on a key of its own.
func TestOrderOfLimitsMakesNoDifference(t *testing.T) {
	e := realEngine(t)
	orders := [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, a := range []lua.Algorithm{lua.SlidingWindow, lua.TokenBuckets} {
		limits := []lua.Limit{
			{Cap: 4, Tokens: 4, Period: sec, Span: 11},
			{Cap: 6, Tokens: 6, Period: 10 * sec, Span: 4},
			{Cap: 9, Tokens: 9, Period: minute, Span: 3},
		}
		if a == lua.TokenBuckets {
			for i := range limits {
				limits[i].Span = 0
			}
		}
		refused := map[int]int{}
		for step := range int64(60) {
			now, n := scriptStart+step*step*100_000, 1+step%4
			var first answer
			for i, order := range orders {
				c := of(a, fmt.Sprintf("order/%d/%d", a, i), 1, 1, 1)
				l := limits[order[0]]
				c.Cap, c.Tokens, c.Period, c.Span = l.Cap, l.Tokens, l.Period, l.Span
				c.Also = []lua.Limit{limits[order[1]], limits[order[2]]}
				before := e.lookAt(t, a, c.Bucket).fields
				got := e.at(t, now, take(c, n))
				if got.err != "" || got.reply.Which < 1 || got.reply.Which > 3 {
					t.Fatal(got)
				}
				if got.reply.Which = int64(order[got.reply.Which-1]); i == 0 {
					first = got
				}
				if !sameDecision(first, got) {
					t.Fatalf("algorithm %d, step %d, order %v: %v, want %v", a, step, order, got, first)
				}
				if got.reply.Code != lua.Denied {
					continue
				}
				refused[int(got.reply.Which)]++
				if after := e.lookAt(t, a, c.Bucket).fields; !maps.Equal(before, after) {
					t.Errorf("algorithm %d: a refusal made of\n%v\n%v", a, before, after)
				}
			}
		}
		if len(refused) < 2 {
			t.Errorf("algorithm %d: refused by %v: this shows little", a, refused)
		}
	}
}
