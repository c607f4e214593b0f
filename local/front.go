package local

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// ways is how many places a name may have. With one place for each key, 9 of 10 keys have theirs; with two ways it would
	// be 8.
	slotsPerName = 4

	// hotPlaces is for how many policies a hot bucket is known. More of them share places, and push each other out.
	hotSlots = 16

	// rarely is of how many times of decision one is chosen, a power of two. A place that all cores read is then written so
	// seldom that it costs them nothing, and yet a hot key has it within a thousand decisions.
	samplePeriod = 1024
)

// chosen reports whether a decision made now is one of the few that make their bucket the hot one: so a key holds that place
// for its part of the decisions, without anybody counting them. Of a clock that ticks in steps of 100 ns, or of 1 ms, some
// times are chosen too; 0 is not.
func sampled(now time.Duration) bool { return now%samplePeriod == samplePeriod/2 }

// front is a table before the shards of a cache: whoever finds a bucket here takes no lock, and writes to nothing that
// other cores read. What has no place is found the slower way.
//
// A bucket is put in and taken out under its shard's lock: in while it is in use, out when it is retired. So what is found
// here was in use a moment ago, like what was just found under the lock.
type front[T any] struct {
	hot   [hotSlots]atomic.Pointer[T] // of each policy, one that is asked for much: found without a hash
	table atomic.Pointer[[]slots[T]]  // a power of two of them
}

// hottest is a policy's place for its hot bucket.
func (f *front[T]) hotSlot(policy int) *atomic.Pointer[T] { return &f.hot[uint(policy)%hotSlots] }

// places are those of some names. The tag, a part of the hash, spares a look at buckets of other names; it is only a hint,
// for it changes a moment after the bucket. 12 bytes for each.
type slots[T any] struct {
	tags    [slotsPerName]atomic.Uint32
	buckets [slotsPerName]atomic.Pointer[T]
}

// tag is the part of a hash that does not choose the places.
func tag(hash uint64) uint32 { return uint32(hash >> 32) }

// places returns those of a name.
func (f *front[T]) slots(hash uint64) *slots[T] {
	t := *f.table.Load()
	return &t[hash&uint64(len(t)-1)]
}

// put makes room for b in one of its places: the first that is free, where it is found soonest, or any.
func (f *front[T]) put(hash uint64, b *T) {
	p := f.slots(hash)
	to := -1
	for i := range p.buckets {
		switch p.buckets[i].Load() {
		case b:
			p.tags[i].Store(tag(hash))
			return
		case nil:
			if to < 0 {
				to = i
			}
		}
	}
	if to < 0 {
		to = int(hash >> 30 % slotsPerName) // bits that choose neither the places nor the shard
	}
	p.buckets[to].Store(b)
	p.tags[to].Store(tag(hash))
}

// drop takes b, a bucket of a policy, out.
func (f *front[T]) drop(hash uint64, policy int, b *T) {
	f.hotSlot(policy).CompareAndSwap(b, nil)
	p := f.slots(hash)
	for i := range p.buckets {
		p.buckets[i].CompareAndSwap(b, nil)
	}
}

// grow sees to it that there is a place for each of so many names. A new table begins empty: each name comes back when it
// is asked for. What is put into the old one meanwhile is forgotten with it.
func (f *front[T]) grow(names int) {
	old := f.table.Load()
	if old != nil && slotsPerName*len(*old) >= names {
		return
	}
	t := make([]slots[T], 1<<bits.Len(uint(names-1)/slotsPerName))
	f.table.CompareAndSwap(old, &t)
}
