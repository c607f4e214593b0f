package tiered

import (
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// A policy with Shards has a Limiter for each shard, with a part of every limit and with buckets of its own. A
// shard's bucket is like any other. A process uses two shards of a key: its first, and if that refuses, its second.
// Each shard keeps the bound of its part, and the parts sum to the limit, so any choice of shards keeps the bound.

// maxShards bounds the shards of a key. With more, each would have too little of any limit that people use.
const maxShards = 64

// validateShards reports what cannot be split.
func (p Policy) validateShards(bad func(field string, value any, rule string)) {
	if p.Shards < 0 || p.Shards > maxShards {
		bad("Shards", p.Shards, fmt.Sprintf("must be 2 to %d, or 0 or 1 for one bucket", maxShards))
		return
	}
	if p.Shards < 2 || p.Limit.rule() != local.ByLimit {
		return
	}
	for i, l := range p.limits() {
		field := "Limit"
		if i > 0 {
			field = fmt.Sprintf("Also[%d]", i-1)
		}
		if burst := l.burst(); burst > 0 && burst < int64(p.Shards) {
			bad("Shards", p.Shards, fmt.Sprintf(
				"must be at most the burst of %s, %d: a request takes all its tokens from one shard", field, burst))
		}
		most := (maxPer / time.Duration(p.Shards)).Truncate(time.Microsecond)
		if p.Algorithm == TokenBucket && l.Per > most && l.Per <= maxPer {
			bad(field+".Per", l.Per, fmt.Sprintf("must be at most %v with %d shards, "+
				"each of which takes as many times as long for its tokens", most, p.Shards))
		}
	}
}

// shard returns p with the part of every limit that shard i of k has. The parts sum to the limit exactly. Bursts
// and window limits are divided, and the remainder of the division goes to the first shards. A rate becomes the
// same tokens in k times the time.
func (p Policy) shard(i, k int) Policy {
	split := func(l Limit) Limit {
		if l.rule() != local.ByLimit {
			return l
		}
		burst := l.burst() / int64(k)
		if int64(i) < l.burst()%int64(k) {
			burst++
		}
		if p.Algorithm != TokenBucket {
			l.Tokens, l.Burst = burst, 0
			return l
		}
		l.Per, l.Burst = l.Per*time.Duration(k), burst
		return l
	}
	p.Limit = split(p.Limit)
	p.MaxDebt = (p.MaxDebt + int64(k) - 1) / int64(k)
	also := p.Also
	p.Also = nil
	for _, l := range also {
		p.Also = append(p.Also, split(l))
	}
	return p
}
