package local

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxShards is the largest number of shards, each with a lock of its own. Sixteen are enough
	// that two cores of a hundred rarely meet. They are few enough that the least recently used key
	// of a shard is close to that of the cache.
	maxShards = 16

	// minShard is the smallest number of keys of a shard. With fewer, chance would fill one shard
	// long before the others.
	minShard = 256

	// leavingPart: one in leavingPart of a shard's keys may be on its way out at a time. An evicted
	// bucket needs a round trip to give its lease back. A bucket that does not fit is burnt, unless
	// a caller waits for it. There are no more buckets with such callers than requests under way,
	// and a request takes more memory than a bucket.
	leavingPart = 8
)

// Cached is what a [Cache] holds: a pointer to a bucket with what its owner keeps with it.
type Cached[T any] interface {
	*T
	Hot() *Hot
	retire(now time.Duration) Effect
	revive()
	finish(now time.Duration) bool
	Burn(now time.Duration)
	awaited() bool
}

// Cache finds buckets by name and bounds their number: it evicts the least recently used one. An
// evicted bucket gives back what it holds before it is forgotten, and is found again until then.
// All methods may be called concurrently.
//
// A bucket that is asked for often is found through the front table, without a lock. That counts as
// a use only once in a while. The owner calls [Cache.Touch] when it sends something for a bucket,
// and that is often enough.
type Cache[T any, B Cached[T]] struct {
	seed   maphash.Seed
	salt   uint64 // of Owner
	shards []shard[T, B]
	owner  Owner[T, B]
	front  front[T]
}

// Owner is what a cache needs from its user. New and Closed are called with a lock held: they must
// be quick and must not call the cache.
type Owner[T any, B Cached[T]] struct {
	New    func(ID) B          // makes a bucket
	Evict  func(b B, e Effect) // carries out what an evicted bucket asks for
	Closed func(b B)           // notes that b was closed and forgotten

	// Salt makes names hash alike in every run, for a simulation that repeats exactly; 0 is for a
	// random salt. Leave it 0 in a service: someone who knows it can choose names that share a
	// shard.
	Salt uint64
}

// shard is a part of a cache. Its keys are hashes, which take half of the memory that names would.
// Two names of the same hash, once in 2⁶⁴ pairs, take turns: each evicts the other.
type shard[T any, B Cached[T]] struct {
	mu      sync.Mutex
	lru     *simplelru.LRU[uint64, B]
	size    int // of lru
	leaving map[ID]B
	room    int // of leaving
	evicted uint64
	_       [64]byte // shards on cache lines of their own
}

// NewCache returns a cache of at most keys buckets (≥ 1), and an eighth as many on their way out.
func NewCache[T any, B Cached[T]](keys int, owner Owner[T, B]) *Cache[T, B] {
	n := max(1, min(maxShards, keys/minShard))
	c := &Cache[T, B]{seed: maphash.MakeSeed(), salt: owner.Salt, shards: make([]shard[T, B], n), owner: owner}
	c.front.grow(1)
	for i := range c.shards {
		s := &c.shards[i]
		s.size = keys / n
		if i < keys%n {
			s.size++
		}
		s.lru, _ = simplelru.NewLRU[uint64, B](s.size, nil) // its only error is a size under 1
		s.leaving = make(map[ID]B)
		s.room = max(s.size/leavingPart, 16)
	}
	return c
}

// Hash returns the hash of a name in this cache. Its low bits choose the slots in the front table,
// its high bits the shard. Nobody outside the process knows it.
func (c *Cache[T, B]) Hash(id ID) uint64 {
	if c.salt != 0 {
		return Hash(c.salt, id)
	}
	return maphash.String(c.seed, id.Key) ^ uint64(id.Policy)*0x9e3779b97f4a7c15
}

func (c *Cache[T, B]) shard(hash uint64) *shard[T, B] {
	return &c.shards[(hash>>32)*uint64(len(c.shards))>>32]
}

// Hot returns the bucket that is likely asked for most under a policy, or nil if none is known. It
// may be another policy's. If it [Bucket.Is] the one wanted, the caller saves [Cache.Get], which
// takes a quarter of a decision: it hashes a key and then waits for each of three loads.
func (c *Cache[T, B]) Hot(now time.Duration, policy int) B {
	if sampled(now) {
		return nil
	}
	return c.front.hotSlot(policy).Load()
}

// Get returns the bucket of id, a new one if there is none. It mostly takes no lock, and else one,
// briefly. It allocates only for a new bucket.
func (c *Cache[T, B]) Get(now time.Duration, id ID) B {
	h := c.Hash(id)
	if b := c.Lookup(now, h, id); b != nil {
		return b
	}
	return c.get(now, h, id)
}

// get is Get with the shard's lock. It makes the bucket the most recently used.
func (c *Cache[T, B]) get(now time.Duration, h uint64, id ID) B {
	s := c.shard(h)
	s.mu.Lock()
	b, ok := s.lru.Get(h)
	if ok && b.Hot().Is(id) {
		c.front.put(h, b)
		if sampled(now) {
			c.front.hotSlot(id.Policy).Store(b)
		}
		s.mu.Unlock()
		return b
	}
	old, evict := b, ok // another name of the same hash
	b, leaving := s.leaving[id]
	if leaving {
		delete(s.leaving, id)
		b.revive()
	} else {
		// The cache outlives the request. It must neither pin nor trust the memory that the key is
		// part of.
		id.Key = strings.Clone(id.Key)
		b = c.owner.New(id)
	}
	if !evict && s.lru.Len() == s.size {
		_, old, evict = s.lru.GetOldest()
	}
	var effect Effect
	if evict {
		effect = c.retire(now, s, old)
		s.evicted++
	}
	s.lru.Add(h, b)
	c.front.put(h, b)
	c.front.grow(s.lru.Len() * len(c.shards))
	s.mu.Unlock()
	if effect != (Effect{}) {
		c.owner.Evict(old, effect)
	}
	return b
}

// Lookup returns the bucket of id, whose hash is h, or nil if there is none. It makes none and
// mostly takes no lock. It may miss one that has not been asked for lately: see slotsPerName.
func (c *Cache[T, B]) Lookup(now time.Duration, h uint64, id ID) B {
	p := c.front.slots(h)
	for i := range p.tags {
		if p.tags[i].Load() == tag(h) {
			if b := B(p.buckets[i].Load()); b != nil && b.Hot().Is(id) {
				if sampled(now) {
					return c.get(now, h, id)
				}
				return b
			}
		}
	}
	return nil
}

// Touch makes b the most recently used, if it is in use.
func (c *Cache[T, B]) Touch(b B) {
	h := c.Hash(b.Hot().ID())
	s := c.shard(h)
	s.mu.Lock()
	s.lru.Get(h)
	s.mu.Unlock()
}

// Find returns the bucket of id if there is one. It does not count as a use.
func (c *Cache[T, B]) Find(id ID) (B, bool) {
	h := c.Hash(id)
	s := c.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.lru.Peek(h); ok && b.Hot().Is(id) {
		return b, true
	}
	b, ok := s.leaving[id]
	return b, ok
}

// retire takes b out of use. If it owes nothing it is closed at once. Otherwise it joins those on
// their way out. If there is no room and nobody waits for it, it burns.
func (c *Cache[T, B]) retire(now time.Duration, s *shard[T, B], b B) Effect {
	id := b.Hot().ID()
	h := c.Hash(id)
	s.lru.Remove(h)
	c.front.drop(h, id.Policy, b)
	effect := b.retire(now)
	switch {
	case effect.Done && b.finish(now):
	case len(s.leaving) >= s.room && !b.awaited():
		b.Burn(now)
	default:
		s.leaving[id] = b
		return effect
	}
	c.owner.Closed(b)
	return Effect{}
}

// Forget closes the bucket of id and drops it, if it is on its way out and owes nothing.
func (c *Cache[T, B]) Forget(now time.Duration, b B) {
	id := b.Hot().ID()
	s := c.shard(c.Hash(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving[id] == b && b.finish(now) {
		delete(s.leaving, id)
		c.owner.Closed(b)
	}
}

// Empty retires every bucket, with room for all of them on their way out.
func (c *Cache[T, B]) Empty(now time.Duration) { c.Retire(now, func(B) bool { return true }) }

// Retire retires every bucket that some reports, with room for all of them on their way out. A
// shard is locked while some is called: it must be quick and must not call the cache.
func (c *Cache[T, B]) Retire(now time.Duration, some func(B) bool) {
	type step struct {
		b B
		e Effect
	}
	for i := range c.shards {
		s := &c.shards[i]
		var steps []step
		s.mu.Lock()
		s.room = max(s.room, len(s.leaving)+s.size)
		for _, b := range s.lru.Values() {
			if !some(b) {
				continue
			}
			if e := c.retire(now, s, b); e != (Effect{}) {
				steps = append(steps, step{b, e})
			}
		}
		s.mu.Unlock()
		for _, st := range steps {
			c.owner.Evict(st.b, st.e)
		}
	}
}

// All calls f for every bucket, with those on their way out, shard by shard. The shard is locked: f
// must be quick and must not call the cache.
func (c *Cache[T, B]) All(f func(B)) {
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

// Counts reports the buckets in use, those on their way out, and all evictions so far.
func (c *Cache[T, B]) Counts() (keys, leaving int, evictions uint64) {
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
