package local

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// slotsPerName is how many slots a name may be in. With one slot for each key in all, 9 of 10
	// keys have one. If a name had two, it would be 8 of 10.
	slotsPerName = 4

	// hotSlots is for how many policies a hot bucket is known. More policies share slots, and push
	// each other out.
	hotSlots = 16

	// samplePeriod: one decision in samplePeriod may promote its bucket to the hot slot. It must be
	// a power of two. A slot that all cores read is then written so seldom that it costs them
	// nothing, and yet a hot key has it within a thousand decisions.
	samplePeriod = 1024
)

// sampled reports whether a decision made now is one of the few that make their bucket the hot one.
// So a key holds that slot for its part of the decisions, without counting them. With a clock that
// ticks in steps of 100 ns or 1 ms some times are sampled too; 0 is not.
func sampled(now time.Duration) bool { return now%samplePeriod == samplePeriod/2 }

// front is a table before the shards of a cache. Finding a bucket here takes no lock and writes to
// nothing that other cores read. What has no slot is found the slower way.
//
// A bucket is put in and taken out under its shard's lock: in while it is in use, out when it is
// retired. So a bucket that is found here was in use a moment ago, like one that was just found
// under the lock.
type front[T any] struct {
	hot   [hotSlots]atomic.Pointer[T] // for each policy a bucket that is asked for much, found without a hash
	table atomic.Pointer[[]slots[T]]  // their number is a power of two
}

// hotSlot is the slot of a policy's hot bucket.
func (f *front[T]) hotSlot(policy int) *atomic.Pointer[T] { return &f.hot[uint(policy)%hotSlots] }

// slots are those of some names, at 12 bytes each. The tag, a part of the hash, spares a look at
// buckets of other names. It is only a hint, because it changes a moment after the bucket.
type slots[T any] struct {
	tags    [slotsPerName]atomic.Uint32
	buckets [slotsPerName]atomic.Pointer[T]
}

// tag is the part of a hash that does not choose the slots.
func tag(hash uint64) uint32 { return uint32(hash >> 32) }

// slots returns those of a name.
func (f *front[T]) slots(hash uint64) *slots[T] {
	t := *f.table.Load()
	return &t[hash&uint64(len(t)-1)]
}

// put stores b in one of its slots: the first that is free, where it is found soonest, or any.
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
		to = int(hash >> 30 % slotsPerName) // bits that choose neither the slots nor the shard
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

// grow makes a slot for each of so many names. A new table begins empty: each name comes back when
// it is asked for. What is put into the old table meanwhile is forgotten with it.
func (f *front[T]) grow(names int) {
	old := f.table.Load()
	if old != nil && slotsPerName*len(*old) >= names {
		return
	}
	t := make([]slots[T], 1<<bits.Len(uint(names-1)/slotsPerName))
	f.table.CompareAndSwap(old, &t)
}
