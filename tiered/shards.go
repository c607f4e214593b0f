package tiered

import (
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// A policy with Shards has a Limiter for each shard, with a part of every limit and with buckets of their own: to them, a
// bucket is one like any other. A process uses two of a key's: its first, and where that refuses, its second. Whichever are
// chosen, each keeps the bound of its part, and the parts sum to the limit.

// maxShards is the most that one key may be split into: with more, each would have too little of any limit that people write.
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
			bad("Shards", p.Shards, fmt.Sprintf("must be at most the burst of %s, %d: a request takes all its tokens from one shard", field, burst))
		}
		if most := (maxPer / time.Duration(p.Shards)).Truncate(time.Microsecond); p.Algorithm == TokenBucket && l.Per > most && l.Per <= maxPer {
			bad(field+".Per", l.Per, fmt.Sprintf("must be at most %v with %d shards, each of which takes as many times as long for its tokens", most, p.Shards))
		}
	}
}

// part is what shard number i of the policy's k has of every limit. All of them sum to the limit, exactly: bursts, and what
// windows hold, are divided with what remains of the division to the first shards; a rate is the same tokens in k times the time.
func (p Policy) part(i, k int) Policy {
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
	also := p.Also
	p.Also = nil
	for _, l := range also {
		p.Also = append(p.Also, split(l))
	}
	return p
}
