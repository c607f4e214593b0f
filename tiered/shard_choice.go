package tiered

import "github.com/tiered-limiter/tiered-limiter/local"

// shardsOf returns the two shards of a key that this process uses. They are chosen by a hash with a seed of this
// process, so that processes spread evenly over the shards, and stay the same while the process lives. Without
// Shards both are the Limiter itself.
func (l *Limiter) shardsOf(key string) (first, second *Limiter) {
	if l.shards == nil {
		return l, l
	}
	h, k := local.Hash(l.group.shardSeed, local.ID{Key: key}), uint64(len(l.shards))
	i := h >> 32 * k >> 32
	j := i + 1 + h&(1<<32-1)*(k-1)>>32
	if j >= k {
		j -= k
	}
	return l.shards[i], l.shards[j]
}

// firstID returns the ID of the bucket of a key that this process asks first.
func (l *Limiter) firstID(key string) local.ID {
	id := l.id(key)
	first, _ := l.shardsOf(id.Key)
	id.Policy = first.number
	return id
}

// isSecondShard reports whether b is the second shard of its key in this process. The first has refused whatever b
// refuses.
func (b *bucket) isSecondShard() bool {
	l := b.limiter()
	if l.parent == l {
		return false
	}
	first, _ := l.parent.shardsOf(b.key())
	return l != first
}

// ownStats returns the figures s of b without the refusals that the key's first bucket has counted.
func (b *bucket) ownStats(s local.Stats) local.Stats {
	if b.isSecondShard() {
		s.Refused = 0
	}
	return s
}

// fleetOf returns how many of fleet processes have a given shard as their first, on average and rounded up. While no
// process can reach the shard, the refill that it loses pays for the debts of so many processes.
func (l *Limiter) fleetOf(fleet int64) int64 {
	k := int64(len(l.parent.shards))
	if k == 0 {
		return fleet
	}
	return (fleet + k - 1) / k
}
