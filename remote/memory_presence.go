package remote

import "github.com/tiered-limiter/tiered-limiter/lua"

// memoryPresence is lua/presence.lua in Go: the processes that share the buckets.
type memoryPresence struct {
	seen    map[string]int64 // µs at which each process last reported
	expires int64            // ms of the store's clock after which all are forgotten; see memoryKey
}

// run executes one call at the time now (µs). clock is the store's own time, by which the set expires.
func (p *memoryPresence) run(clock, now int64, id string, ttl int64) (Census, error) {
	switch {
	case id == "":
		return Census{}, argumentError(1)
	case ttl < 0 || ttl >= lua.Whole:
		return Census{}, argumentError(2)
	}
	if clock/1000 > p.expires {
		clear(p.seen)
	}
	if ttl == 0 {
		delete(p.seen, id)
		return Census{Processes: int64(len(p.seen)), Now: now}, nil
	}
	for other, at := range p.seen {
		// An entry more than one ttl in the future was written before the clock was set back. Its process renews it
		// if it is alive.
		if at <= now-ttl || at > now+ttl {
			delete(p.seen, other)
		}
	}
	if p.seen == nil {
		p.seen = make(map[string]int64)
	}
	p.seen[id] = now
	p.expires = clock/1000 + (ttl+499)/500 // two ttl, in ms
	return Census{Processes: int64(len(p.seen)), Now: now}, nil
}
