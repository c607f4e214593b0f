package tiered

import "github.com/tiered-limiter/tiered-limiter/local"

// places are the shards of a key that this process uses: by hash, so that the processes are spread over them evenly, and the
// same as long as the process lives. Of a policy without Shards both are the Limiter itself.
func (l *Limiter) places(key string) (first, second *Limiter) {
	if l.shards == nil {
		return l, l
	}
	h, k := local.Hash(l.group.place, local.ID{Key: key}), uint64(len(l.shards))
	i := h >> 32 * k >> 32
	j := i + 1 + h&(1<<32-1)*(k-1)>>32
	if j >= k {
		j -= k
	}
	return l.shards[i], l.shards[j]
}

// home names the bucket of a key that this process asks first.
func (l *Limiter) home(key string) local.ID {
	id := l.id(key)
	first, _ := l.places(id.Key)
	id.Policy = first.number
	return id
}

// borrows reports a bucket that is the second shard of its key in this process: whatever it refuses, the first did before.
func (b *bucket) borrows() bool {
	l := b.limiter()
	if l.whole == l {
		return false
	}
	first, _ := l.whole.places(b.key())
	return l != first
}

// counted is what counts of a bucket's figures: no request is refused twice.
func (b *bucket) counted(s local.Stats) local.Stats {
	if b.borrows() {
		s.Refused = 0
	}
	return s
}

// fleetOf is how many of fleet processes have a shard as their first one, on average and rounded up. A shard throws that part
// of its refill away for each of them when nobody can reach it; see local.debt.
func (l *Limiter) fleetOf(fleet int64) int64 {
	k := int64(len(l.whole.shards))
	if k == 0 {
		return fleet
	}
	return (fleet + k - 1) / k
}
