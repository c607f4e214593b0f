package local

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxShards bounds how many parts a cache has, each with a lock of its own. Sixteen are enough that two cores of a
	// hundred rarely meet, and few enough that each part's least recently used key is close to the whole cache's.
	maxShards = 16

	// minShard is the fewest keys of a shard: below it, chance would fill one shard long before the others.
	minShard = 256

	// leavers is how many evicted buckets, as a part of a shard's keys, may be on their way out at once. Each needs a
	// round trip to give its lease back; what does not fit is burnt.
	leavers = 8
)

// ID names a bucket in a process: the number of its policy and the user's key.
type ID struct {
	Policy int
	Key    string
}

// Cached is what a [Cache] holds: a bucket and what its owner keeps with it.
type Cached interface {
	comparable
	Retire(now time.Duration) Effect
	Revive()
	Close(now time.Duration) bool
	Burn(now time.Duration)
}

// Cache finds buckets by name and bounds their number: the least recently used one is evicted. An evicted bucket gives
// back what it holds before it is forgotten, and is found again until then. All methods may be called concurrently.
type Cache[B Cached] struct {
	seed   maphash.Seed
	shards []shard[B]
	owner  Owner[B]
}

// Owner is what a cache needs from whoever uses it. Fresh and Gone are called with a lock held: they must be quick and
// must not call the cache.
type Owner[B Cached] struct {
	Fresh func(ID) B          // makes a bucket
	Evict func(b B, e Effect) // carries out what Retire asked for
	Gone  func(b B)           // notes that b was closed and forgotten
}

type shard[B Cached] struct {
	mu      sync.Mutex
	lru     *simplelru.LRU[ID, B]
	size    int // of lru
	leaving map[ID]B
	room    int // of leaving
	evicted uint64
	_       [64]byte // shards on cache lines of their own
}

// NewCache returns a cache of at most keys buckets (≥ 1), and an eighth as many on their way out.
func NewCache[B Cached](keys int, owner Owner[B]) *Cache[B] {
	n := max(1, min(maxShards, keys/minShard))
	c := &Cache[B]{seed: maphash.MakeSeed(), shards: make([]shard[B], n), owner: owner}
	for i := range c.shards {
		s := &c.shards[i]
		s.size = keys / n
		if i < keys%n {
			s.size++
		}
		s.lru, _ = simplelru.NewLRU[ID, B](s.size, nil) // its only error is a size under 1
		s.leaving = make(map[ID]B)
		s.room = max(s.size/leavers, 16)
	}
	return c
}

func (c *Cache[B]) shard(id ID) *shard[B] {
	if len(c.shards) == 1 {
		return &c.shards[0]
	}
	h := maphash.String(c.seed, id.Key) + uint64(id.Policy)
	return &c.shards[h%uint64(len(c.shards))]
}

// Get returns the bucket of id, a new one if there is none, and makes it the most recently used. It holds one lock,
// briefly, and allocates only for a new bucket.
func (c *Cache[B]) Get(now time.Duration, id ID) B {
	s := c.shard(id)
	s.mu.Lock()
	if b, ok := s.lru.Get(id); ok {
		s.mu.Unlock()
		return b
	}
	b, leaving := s.leaving[id]
	if leaving {
		delete(s.leaving, id)
		b.Revive()
	} else {
		// The cache outlives the request: it must neither pin nor trust the memory that the key is a part of.
		id.Key = strings.Clone(id.Key)
		b = c.owner.Fresh(id)
	}
	var old B
	var effect Effect
	if s.lru.Len() == s.size {
		old, effect = s.retireOldest(now, c.owner.Gone)
		s.evicted++
	}
	s.lru.Add(id, b)
	s.mu.Unlock()
	if effect != (Effect{}) {
		c.owner.Evict(old, effect)
	}
	return b
}

// Find returns the bucket of id if there is one, and does not count as a use.
func (c *Cache[B]) Find(id ID) (B, bool) {
	s := c.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.lru.Peek(id); ok {
		return b, true
	}
	b, ok := s.leaving[id]
	return b, ok
}

// retireOldest takes the least recently used bucket out of use. If it owes nothing it is gone at once, else it joins
// those on their way out; where there is no room for it, it burns.
func (s *shard[B]) retireOldest(now time.Duration, gone func(B)) (B, Effect) {
	id, b, _ := s.lru.RemoveOldest()
	effect := b.Retire(now)
	switch {
	case effect.Done && b.Close(now):
	case len(s.leaving) >= s.room:
		b.Burn(now)
	default:
		s.leaving[id] = b
		return b, effect
	}
	gone(b)
	return b, Effect{}
}

// Forget closes the bucket of id and drops it, if it is on its way out and owes nothing.
func (c *Cache[B]) Forget(now time.Duration, id ID, b B) {
	s := c.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving[id] == b && b.Close(now) {
		delete(s.leaving, id)
		c.owner.Gone(b)
	}
}

// Empty retires every bucket, with room for all of them on their way out.
func (c *Cache[B]) Empty(now time.Duration) {
	type step struct {
		b B
		e Effect
	}
	for i := range c.shards {
		s := &c.shards[i]
		var steps []step
		s.mu.Lock()
		s.room = max(s.room, len(s.leaving)+s.size)
		for s.lru.Len() > 0 {
			if b, e := s.retireOldest(now, c.owner.Gone); e != (Effect{}) {
				steps = append(steps, step{b, e})
			}
		}
		s.mu.Unlock()
		for _, st := range steps {
			c.owner.Evict(st.b, st.e)
		}
	}
}

// All calls f for every bucket, those on their way out included, shard by shard, with that shard locked: f must be quick
// and must not call the cache.
func (c *Cache[B]) All(f func(B)) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for _, b := range s.lru.Values() {
			f(b)
		}
		for _, b := range s.leaving {
			f(b)
		}
		s.mu.Unlock()
	}
}

// Counts reports the buckets in use, those on their way out, and the evictions since ever.
func (c *Cache[B]) Counts() (keys, leaving int, evictions uint64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		keys += s.lru.Len()
		leaving += len(s.leaving)
		evictions += s.evicted
		s.mu.Unlock()
	}
	return keys, leaving, evictions
}
