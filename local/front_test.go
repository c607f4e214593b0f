package local

import (
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// find is what the owner of a cache does to find a bucket.
func (c *cacheRig) find(now time.Duration, id ID) *owned {
	if b := c.Hot(now, id.Policy); b != nil && b.Hot().Is(id) {
		return b
	}
	return c.Get(now, id)
}

// strays checks that whatever the front table holds is in use under its own name, and in one of
// that name's places. It wants a cache that nobody uses meanwhile.
func strays(t rapid.TB, c *cacheRig) {
	for i := range c.front.hot {
		if b := c.front.hot[i].Load(); b != nil {
			h := c.Hash(b.ID())
			if in, ok := c.shard(h).lru.Peek(h); !ok || in != b {
				t.Fatalf("%v is not in use, and hot (closed: %v)", b.ID(), b.hot.life == closed)
			}
			if c.front.hotSlot(b.ID().Policy) != &c.front.hot[i] {
				t.Fatalf("%v is hot, and where nobody looks for it", b.ID())
			}
		}
	}
	table := *c.front.table.Load()
	for i := range slotsPerName * len(table) {
		b := table[i/slotsPerName].buckets[i%slotsPerName].Load()
		if b == nil {
			continue
		}
		h := c.Hash(b.ID())
		if in, ok := c.shard(h).lru.Peek(h); !ok || in != b {
			t.Fatalf("%v is not in use, and found without a lock (closed: %v)", b.ID(), b.hot.life == closed)
		}
		if c.front.slots(h) != &table[i/slotsPerName] {
			t.Fatalf("%v is where nobody looks for it", b.ID())
		}
	}
}

// Whatever is asked for, evicted and forgotten: what is found without a lock is in use, and is what
// was asked for.
func TestFrontTableHoldsWhatIsInUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCacheRig(rapid.IntRange(1, 9).Draw(t, "keys"), cachePolicy)
		seq := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := ID{
				rapid.SampledFrom([]int{0, 1, hotSlots}).Draw(t, "policy"),
				strconv.Itoa(rapid.IntRange(0, 9).Draw(t, "key")),
			}
			now := rapid.SampledFrom([]time.Duration{0, samplePeriod / 2}).Draw(t, "now")
			switch rapid.SampledFrom([]string{"get", "get", "get", "lend", "touch", "settle", "empty"}).Draw(t,
				"step") {
			case "get":
				known, there := c.Find(id)
				if b := c.find(now, id); b.ID() != id || there && b != known || b.hot.life == closed || b.hot.retired() {
					t.Fatalf("asked for %v, got %v (the one known: %v, closed: %v, retired: %v)", id, b.ID(),
						b == known, b.hot.life == closed, b.hot.retired())
				}
			case "lend":
				seq++
				lend(&c.find(now, id).Bucket, seq)
			case "touch":
				if b, ok := c.Find(id); ok {
					c.Touch(b)
				}
			case "settle": // the return of one on its way out, so that it is forgotten
				if b, ok := c.Find(id); ok && b.hot.queued {
					seq++
					call, _ := b.Begin(0, Conditions{Seq: seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: 1})
					b.Accept(0, call.Seq, lua.Reply{TTLLeft: 1e6})
					c.Forget(0, b)
				}
			case "empty":
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					c.Empty(0)
				}
			}
			strays(t, c)
		}
	})
}

// The same while goroutines race: a bucket that one of them finds may be evicted by another before
// it is put in.
func TestFrontTableUnderRaces(t *testing.T) {
	schedules := 300
	if testing.Short() {
		schedules = 100
	}
	for i := range schedules {
		c := newCacheRig(2, cachePolicy)
		var all sync.WaitGroup
		for j := range 4 {
			pause := yields(uint64(i), uint64(j))
			all.Go(func() {
				for k := range 30 {
					id := ID{0, strconv.Itoa((j + k*k) % 5)}
					if b := c.find(time.Duration(k%2)*samplePeriod/2, id); b.ID() != id {
						t.Errorf("asked for %v, got %v", id, b.ID())
					}
					pause()
				}
			})
		}
		all.Wait()
		strays(t, c)
	}
}

// Most often a bucket is found where it was put: else the table would be of no use.
func TestFrontTableFindsMost(t *testing.T) {
	const keys = 1000
	c := newCacheRig(keys, cachePolicy)
	for range 3 {
		for i := range keys * 9 / 10 { // so that hardly a shard evicts
			c.Get(0, ID{0, strconv.Itoa(i)})
		}
	}
	found := 0
	for i := range keys * 9 / 10 {
		h := c.Hash(ID{0, strconv.Itoa(i)})
		p := c.front.slots(h)
		for j := range slotsPerName {
			if p.tags[j].Load() == tag(h) && p.buckets[j].Load() != nil {
				found++
			}
		}
	}
	t.Logf("%d found", found)
	if found < keys*8/10*9/10 {
		t.Errorf("%d of %d are found without a lock", found, keys*9/10)
	}
}

// A key is the hot one for as much of the time as is its part of the decisions, whatever steps the
// clock ticks in.
func TestHotKeyIsFoundFirst(t *testing.T) {
	for _, tick := range []time.Duration{1, 100, time.Microsecond, ms} {
		for _, test := range []struct {
			parts []int // of 20 decisions, those for each key
			hot   float64
		}{
			{[]int{20}, 1},
			{[]int{16, 3, 1}, (16*16 + 3*3 + 1) / 400.},
			{[]int{10, 10}, 0.5},
		} {
			var keys []ID
			for i, n := range test.parts {
				for range n {
					keys = append(keys, ID{3, strconv.Itoa(i)})
				}
			}
			c := newCacheRig(10, cachePolicy)
			dice := rand.New(rand.NewPCG(1, uint64(tick)))
			const decisions = 1 << 19
			now, hot := time.Duration(0), 0
			for range decisions {
				now += tick * time.Duration(1+dice.IntN(100))
				id := keys[dice.IntN(len(keys))]
				if b := c.Hot(now, 3); b != nil && b.Hot().Is(id) {
					hot++
					continue
				}
				c.Get(now, id)
			}
			// At ticks of 1 ms, one decision in 16 is chosen.
			if part := float64(hot) / decisions; part < 0.9*test.hot || part > 1.1*test.hot {
				t.Errorf("%v of 20 each, ticks of %v: %.3f found first, want %.3f", test.parts, tick, part, test.hot)
			}
		}
	}
	c := newCacheRig(10, cachePolicy)
	if c.Get(0, ID{3, "k"}); c.Hot(0, 3) != nil {
		t.Error("one that is asked for at a time that is not chosen is hot")
	}
}

// Who goes takes its own place along, and nobody else's.
func TestHotKeyStaysWhenOthersGo(t *testing.T) {
	c := newCacheRig(2, cachePolicy)
	c.Get(0, ID{0, "goes"})
	hot := c.Get(0, ID{0, "hot"})
	c.Get(samplePeriod/2, hot.ID())
	c.Get(0, ID{0, "comes"})
	if _, ok := c.Find(ID{0, "goes"}); ok || c.Hot(0, 0) != hot {
		t.Errorf("gone: %v, hot: %v", !ok, c.Hot(0, 0))
	}
	c.Empty(0)
	if b := c.Hot(0, 0); b != nil {
		t.Errorf("%v is hot in an empty cache", b.ID())
	}
}

// namesOfOneHash returns two names that a cache cannot tell apart by their hash: chance gives them
// to nobody.
func namesOfOneHash(c *cacheRig) (a, b ID) {
	const golden = uint64(0x9e3779b97f4a7c15) // as in Cache.hash
	// modulo 2⁶⁴, by Newton's method: each step doubles the bits that are right
	inverse := golden
	for range 6 {
		inverse *= 2 - golden*inverse
	}
	differ := maphash.String(c.seed, "a") ^ maphash.String(c.seed, "b")
	return ID{0, "a"}, ID{int(differ * inverse), "b"}
}

// Two names of one hash take turns, each with a bucket of its own: who comes evicts the other,
// whose lease goes back.
func TestTwoNamesOfOneHash(t *testing.T) {
	c := newCacheRig(10, cachePolicy)
	x, y := namesOfOneHash(c)
	if c.Hash(x) != c.Hash(y) {
		t.Fatalf("%v and %v have different hashes: this shows nothing", x, y)
	}
	a := c.Get(0, x)
	lend(&a.Bucket, 1)
	if _, ok := c.Find(y); ok {
		t.Fatal("one name found the other's bucket")
	}
	b := c.Get(0, y)
	if a == b || a.ID() != x || b.ID() != y {
		t.Fatalf("%v and %v for %v and %v", a.ID(), b.ID(), x, y)
	}
	strays(t, c)
	if !a.hot.retired() || !c.evicted[a].Send {
		t.Fatalf("retired: %v, %+v, want the lease to be given back", a.hot.retired(), c.evicted[a])
	}
	if got, ok := c.Find(x); !ok || got != a {
		t.Fatal("not found on its way out")
	}
	if c.Get(0, x) != a || a.hot.retired() {
		t.Fatal("back, and another bucket or a retired one")
	}
	if keys, leaving, evictions := c.Counts(); keys != 1 || leaving != 0 || evictions != 2 {
		t.Fatalf("%d keys, %d leaving, %d evictions, want 1, 0, 2", keys, leaving, evictions)
	}
	strays(t, c)
}

// Who is found without a lock does not count as used; who says so by Touch does.
func TestTouchKeepsWhatIsInUse(t *testing.T) {
	c := newCacheRig(3, cachePolicy)
	hot := c.Get(0, ID{0, "hot"})
	for i := range 100 {
		c.Get(0, ID{0, strconv.Itoa(i)})
		c.Touch(hot)
	}
	if len(c.evicted) != 0 || hot.hot.life == closed || c.Get(0, ID{0, "hot"}) != hot {
		t.Fatal("the one that was touched all the time was evicted as the least recently used")
	}
	c.Get(0, ID{0, "more"})
	c.Get(0, ID{0, "still more"})
	c.Get(0, ID{0, "too many"})
	c.Touch(hot) // one that is gone: this brings nothing back
	if _, ok := c.Find(hot.ID()); ok || hot.hot.life != closed {
		t.Fatal("the least recently used one is still there")
	}
}

// yields returns a pause that lets others go first, up to twice: so steps alternate on one
// processor too.
func yields(seed, stream uint64) func() {
	random := rand.New(rand.NewPCG(seed, stream))
	return func() {
		for range random.IntN(3) {
			runtime.Gosched()
		}
	}
}
