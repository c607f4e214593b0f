package remote

import (
	"maps"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// memoryPresence is lua/presence.lua in Go: the processes that share the buckets. It counts them anew in each call.
type memoryPresence struct {
	seen    map[string]memoryProcess // by id
	expires int64                    // ms of the store's clock after which all are forgotten; see memoryKey
}

// memoryProcess is a process that is present.
type memoryProcess struct {
	at        int64 // µs at which it last reported
	announced Announcement
}

// run executes one call at the time now (µs). clock is the store's own time, by which the set expires.
func (p *memoryPresence) run(clock, now int64, by Process) (Census, error) {
	ttl := by.TTL.Microseconds()
	switch {
	case by.ID == "":
		return Census{}, argumentError(1)
	case ttl < 0 || ttl >= lua.Whole:
		return Census{}, argumentError(2)
	case !by.Announced.valid():
		return Census{}, argumentError(4)
	}
	if clock/1000 > p.expires {
		clear(p.seen)
	}
	if ttl == 0 {
		delete(p.seen, by.ID)
		return p.census(now, by.Announced), nil
	}
	for other, o := range p.seen {
		// An entry more than one ttl in the future was written before the clock was set back. Its process renews it
		// if it is alive.
		if o.at <= now-ttl || o.at > now+ttl {
			delete(p.seen, other)
		}
	}
	if p.seen == nil {
		p.seen = make(map[string]memoryProcess)
	}
	p.seen[by.ID] = memoryProcess{now, by.Announced}
	p.expires = clock/1000 + (ttl+499)/500 // two ttl, in ms
	return p.census(now, by.Announced), nil
}

// census counts the processes, and those of each policy of a.
func (p *memoryPresence) census(now int64, a Announcement) Census {
	c := Census{Processes: int64(len(p.seen)), Now: now}
	for _, o := range p.seen {
		if o.announced == "" {
			c.Silent++
		}
	}
	if a.policies() == 0 {
		return c
	}
	c.Policies = make([]PolicyCensus, a.policies())
	places := make(map[string]int, a.policies())
	for i := range c.Policies {
		c.Policies[i].Processes = c.Silent
		name, _ := a.policy(i)
		places[name] = i
	}
	for _, o := range p.seen {
		for i := range o.announced.policies() {
			name, limits := o.announced.policy(i)
			place, ok := places[name]
			if !ok {
				continue
			}
			mine := &c.Policies[place]
			mine.Processes++
			_, same := a.policy(place)
			switch {
			case limits == same:
			case o.announced.service() == a.service():
				mine.OtherLimits++
			default:
				mine.OtherServices++
			}
		}
	}
	return c
}

// clone returns a copy that shares nothing with p.
func (p *memoryPresence) clone() memoryPresence {
	return memoryPresence{seen: maps.Clone(p.seen), expires: p.expires}
}
