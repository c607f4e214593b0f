package local

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// owned is the least an owner keeps: the bucket.
type owned struct{ Bucket }

type cacheRig struct {
	*Cache[owned, *owned]
	mu      sync.Mutex
	evicted map[*owned]Effect
	gone    []*owned
}

func newCacheRig(keys int, p *Policy) *cacheRig { return newCache(keys, p, 0) }

func newSaltedRig(keys int, salt uint64) *cacheRig { return newCache(keys, cachePolicy, salt) }

func newCache(keys int, p *Policy, salt uint64) *cacheRig {
	r := &cacheRig{evicted: make(map[*owned]Effect)}
	r.Cache = NewCache(keys, Owner[owned, *owned]{
		New: func(id ID) *owned {
			b, q := new(owned), *p
			q.Number = id.Policy
			b.Init(&q, id.Key)
			return b
		},
		Evict:  func(b *owned, e Effect) { r.mu.Lock(); r.evicted[b] = e; r.mu.Unlock() },
		Closed: func(b *owned) { r.mu.Lock(); r.gone = append(r.gone, b); r.mu.Unlock() },
		Salt:   salt,
	})
	return r
}

var cachePolicy = &Policy{
	Cap: 100, Tokens: 100, Per: time.Second, Period: 250 * ms, Timeout: 50 * ms, Uniform: func() float64 { return 0.5 },
}

// lend gives b a lease of ten tokens.
func lend(b *Bucket, seq int64) {
	b.Ask(0, 1, time.Second, NewWaiter())
	b.Ask(0, 1, time.Second, NewWaiter())
	c, _ := b.Begin(0, Conditions{Seq: seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: 1})
	b.Accept(0, c.Seq, lua.Reply{Grant: 12, TTLLeft: 1e6})
}

func TestCacheFindsByPolicyAndKey(t *testing.T) {
	c := newCacheRig(10, cachePolicy)
	a := c.Get(0, ID{1, "k"})
	if c.Get(0, ID{1, "k"}) != a || c.Get(0, ID{2, "k"}) == a || c.Get(0, ID{1, "l"}) == a {
		t.Fatal("policy and key do not name a bucket")
	}
	if b, ok := c.Find(ID{1, "k"}); !ok || b != a {
		t.Fatal("Find does not find")
	}
	if _, ok := c.Find(ID{3, "k"}); ok {
		t.Fatal("Find makes")
	}
}

func TestCacheEvictsTheLeastRecentlyUsed(t *testing.T) {
	c := newCacheRig(3, cachePolicy)
	for _, k := range []string{"a", "b", "c", "a", "d"} { // b is the oldest
		if a, ok := c.Find(ID{0, "a"}); ok {
			c.front.drop(c.Hash(a.ID()), 0, a) // who is found there does not count as used: see Touch
		}
		c.Get(0, ID{0, k})
	}
	if _, ok := c.Find(ID{0, "b"}); ok {
		t.Fatal("b is still there")
	}
	if keys, leaving, evictions := c.Counts(); keys != 3 || leaving != 0 || evictions != 1 {
		t.Fatalf("%d keys, %d leaving, %d evictions", keys, leaving, evictions)
	}
	if len(c.gone) != 1 || c.gone[0].ID().Key != "b" {
		t.Fatalf("gone: %v", c.gone)
	}
}

func TestEvictedLeaseIsGivenBackBeforeTheKeyIsForgotten(t *testing.T) {
	c := newCacheRig(1, cachePolicy)
	a := c.Get(0, ID{0, "a"})
	lend(&a.Bucket, 1)
	c.Get(0, ID{0, "b"})
	if e := c.evicted[a]; !e.Send {
		t.Fatalf("%+v, want the return to be sent", e)
	}
	c.Forget(0, a)
	if b, ok := c.Find(a.ID()); !ok || b != a {
		t.Fatal("forgotten before the return was settled")
	}
	call, _ := a.Begin(0, Conditions{Seq: 2, Lease: "me", Clock: true, RoundTrip: ms, Fleet: 1})
	if call.Ret != 10 {
		t.Fatalf("%+v, want ret 10", call)
	}
	if e, _ := a.Accept(0, 2, lua.Reply{TTLLeft: 1e6}); !e.Done {
		t.Fatalf("%+v, want done", e)
	}
	c.Forget(0, a)
	if _, ok := c.Find(a.ID()); ok || len(c.gone) != 1 {
		t.Fatal("settled, and not forgotten")
	}
	if v, _ := a.Ask(0, 1, ms, NewWaiter()); v.Reason != Outdated {
		t.Fatalf("outcome %d of a forgotten bucket, want Gone", v.Reason)
	}
}

func TestKeyThatComesBackOnItsWayOutIsTheSameBucket(t *testing.T) {
	c := newCacheRig(1, cachePolicy)
	a := c.Get(0, ID{0, "a"})
	lend(&a.Bucket, 1)
	c.Get(0, ID{0, "b"})
	if c.Get(0, ID{0, "a"}) != a || a.hot.retired() {
		t.Fatal("the key came back as another bucket, or as a retired one")
	}
	c.Forget(0, a) // a leftover of the eviction: the bucket is in use
	if c.Get(0, ID{0, "a"}) != a {
		t.Fatal("a bucket in use was forgotten")
	}
}

func TestLeaversAreBounded(t *testing.T) {
	c := newCacheRig(1, cachePolicy)
	for i := range 100 {
		lend(&c.Get(0, ID{0, strconv.Itoa(i)}).Bucket, int64(i+1))
	}
	keys, leaving, _ := c.Counts()
	if keys != 1 || leaving != 16 || len(c.gone) != 83 {
		t.Fatalf("%d keys, %d leaving, %d gone, want 1, 16, 83", keys, leaving, len(c.gone))
	}
	for _, b := range c.gone {
		if s := b.Stats(); s.Held != 0 || s.Burnt != 10 {
			t.Fatalf("%+v, want what had no room to be burnt", s)
		}
	}
	c.Empty(0)
	if keys, leaving, _ := c.Counts(); keys != 0 || leaving != 17 {
		t.Fatalf("emptied: %d keys, %d leaving", keys, leaving)
	}
	n := 0
	c.All(func(*owned) { n++ })
	if n != 17 {
		t.Fatalf("All saw %d", n)
	}
}

// Who waits for an answer gets it, however many keys are asked for meanwhile: his bucket has room
// until then.
func TestBucketThatSomebodyWaitsForIsNotBurnt(t *testing.T) {
	c := newCacheRig(1, cachePolicy)
	var waiters []*Waiter
	var buckets []*owned
	for i := range 100 {
		b := c.Get(0, ID{0, strconv.Itoa(i)})
		w := NewWaiter()
		if v, _ := b.Ask(0, 1, time.Second, w); v.Reason != Waiting {
			t.Fatalf("%+v", v)
		}
		buckets, waiters = append(buckets, b), append(waiters, w)
	}
	if _, leaving, _ := c.Counts(); leaving != 99 || len(c.gone) != 0 {
		t.Fatalf("%d are leaving, %d gone, want 99 and none", leaving, len(c.gone))
	}
	for i, b := range buckets {
		call, _ := b.Begin(0, Conditions{Seq: int64(i + 1), Lease: "me", RoundTrip: ms, Fleet: 1})
		if e, _ := b.Accept(0, call.Seq, lua.Reply{Grant: 1, Level: 9}); e.Done {
			c.Forget(0, b)
		}
		if v := <-waiters[i].C; v.Reason != Granted {
			t.Errorf("%d: %+v", i, v)
		}
	}
	if keys, leaving, _ := c.Counts(); keys != 1 || leaving != 0 {
		t.Errorf("%d keys, %d leaving", keys, leaving)
	}
}

func TestCacheHoldsWhatItWasToldTo(t *testing.T) {
	for _, keys := range []int{1, 2, 255, 256, 511, 512, 1000, 100_000} {
		c := newCacheRig(keys, cachePolicy)
		sum := 0
		for i := range c.shards {
			sum += c.shards[i].size
		}
		if sum != keys {
			t.Errorf("%d keys: room for %d", keys, sum)
		}
		if keys > 1000 {
			continue
		}
		for i := range 3 * keys {
			c.Get(0, ID{0, strconv.Itoa(i)})
		}
		if n, _, _ := c.Counts(); n > keys || len(c.shards) == 1 && n != keys {
			t.Errorf("%d keys: holds %d", keys, n)
		}
	}
}

// The cache keeps a key of its own: the caller may use its memory again.
func TestCacheClonesTheKey(t *testing.T) {
	c := newCacheRig(10, cachePolicy)
	buffer := []byte("abc")
	b := c.Get(0, ID{0, string(buffer)})
	if b.ID().Key != "abc" {
		t.Fatal(b.ID().Key)
	}
	long := fmt.Sprintf("%0100d", 7)
	part := long[90:]
	if got := c.Get(0, ID{0, part}).ID().Key; got != part {
		t.Fatal(got)
	}
}

func TestCacheUnderConcurrency(t *testing.T) {
	c := newCacheRig(8, cachePolicy)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 5000 {
				id := ID{0, strconv.Itoa((i*7 + j) % 20)}
				b := c.Get(time.Duration(j), id)
				if b.ID() != id {
					t.Errorf("asked for %v, got %v", id, b.ID())
				}
				if j%3 == 0 {
					c.Forget(time.Duration(j), b)
				}
			}
		})
	}
	all.Wait()
	if keys, leaving, _ := c.Counts(); keys > 8 || leaving != 0 {
		t.Fatalf("%d keys, %d leaving", keys, leaving)
	}
}

// Two caches of the same salt evict the same keys, in any process: the hashes below were computed
// once. Without a salt they do not.
func TestSaltMakesEvictionsRepeat(t *testing.T) {
	survivors := func(salt uint64) (names string) {
		c := newSaltedRig(1024, salt) // four shards, of which the hash chooses
		for i := range 4096 {
			c.Get(0, ID{1, strconv.Itoa(i)})
		}
		for i := range 4096 {
			if _, ok := c.Find(ID{1, strconv.Itoa(i)}); ok {
				names += strconv.Itoa(i) + " "
			}
		}
		return names
	}
	salted, again := survivors(7), survivors(7)
	if salted != again {
		t.Error("the same salt, other evictions")
	}
	unsalted, anew := survivors(0), survivors(0)
	if salted == survivors(8) || unsalted == anew {
		t.Error("the salt changes nothing")
	}
	if a, b := Hash(7, ID{1, "a"}), Hash(7, ID{2, "a"}); a != 0x29114b4762eb46a8 || b != 0x4b5ebbe84e1feb23 {
		t.Errorf("hashes %#x and %#x: another process finds others", a, b)
	}
}
