package model

import (
	"fmt"
	"maps"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Places are lua/at_once.lua in Go: who has how many places of which key. The script says why each
// rule is there. The zero value has no key.
type Places struct {
	keys map[string]*placesOfKey
}

// placesOfKey is the hash of one key.
type placesOfKey struct {
	records map[string]placesRecord // by the id of a process
	places  int64                   // by the last claim that wanted some
	given   int64                   // server time of the last grant, or later
	expires int64                   // ms of the server's clock after which there is no hash; see key
}

// placesRecord is what a key knows of a process.
type placesRecord struct {
	seq, held, stop, life, wait, from int64
}

// Run executes the claims of one call. clock is the server's own time, by which keys expire. The
// error is an [Error].
func (p *Places) Run(clock int64, c *lua.Claims) ([]lua.ClaimReply, error) {
	if n := c.Broken(); n > 0 {
		return nil, argumentError(n)
	}
	now := c.Now
	if now == 0 {
		now = clock
	}
	if p.keys == nil {
		p.keys = make(map[string]*placesOfKey)
	}
	all := make([]lua.ClaimReply, len(c.Each))
	for i := range c.Each {
		all[i] = p.claim(clock, now, c.Process, &c.Each[i])
		all[i].Now = now
	}
	for name, k := range p.keys { // a few, in no order, so that what has ended does not pile up
		if clock/1000 <= k.expires {
			break
		}
		delete(p.keys, name)
	}
	return all, nil
}

// claim executes one claim of the process id.
func (p *Places) claim(clock, now int64, id string, c *lua.Claim) lua.ClaimReply {
	k := p.keys[c.Bucket]
	if k == nil || clock/1000 > k.expires {
		k = &placesOfKey{records: map[string]placesRecord{}}
		if c.Seq > 0 && c.Since > 0 && now-c.Since > c.Life {
			k.given = now
		}
	}
	live, others, parties, last := make(map[string]placesRecord), int64(0), int64(1), now
	for other, r := range k.records {
		if r.stop, r.wait = min(r.stop, now+r.life), min(r.wait, now+r.life); r.stop <= now {
			continue
		}
		if live[other] = r; other == id {
			continue
		}
		others, last = others+r.held, max(last, r.stop)
		if r.held > 0 || r.wait > now {
			parties++
		}
	}
	own, known := live[id]
	if c.Seq > 0 && known && own.seq >= c.Seq {
		return lua.ClaimReply{Code: lua.ClaimStale}
	}
	reply := lua.ClaimReply{Share: c.Places}
	for other, r := range live {
		if other != id && r.wait > now && r.held*parties < c.Places {
			reply.Share = c.Places / parties
		}
	}
	if k.places > 0 && k.places != c.Places {
		reply.Flags = lua.DifferentPlaces
	}
	if c.Seq == 0 {
		reply.Held = others + own.held
		return reply
	}
	from := now
	if known {
		from = own.from
	}
	if c.Hold > 0 && c.Since > 0 && from > c.Since && k.given > c.Since {
		reply.Flags |= lua.PlacesLost
	}
	room := reply.Share - c.Hold
	if c.Hold < max(reply.Share, 1) && own.held <= c.Hold {
		room = max(room, c.Need)
	}
	if reply.Grant = max(0, min(c.Want, c.Places-others-c.Hold, room)); reply.Grant < c.Need {
		reply.Grant = 0
	}
	r := placesRecord{seq: c.Seq, held: c.Hold + reply.Grant, stop: now + c.Life, life: c.Life, from: from}
	if c.Want > 0 {
		if k.places = c.Places; reply.Grant == 0 {
			r.wait = now + c.Wait
		}
	}
	if reply.Grant > 0 {
		k.given = now
	}
	k.records = live
	k.records[id] = r
	k.expires = clock/1000 + (max(last, r.stop)-now+c.Life+999)/1000
	p.keys[c.Bucket] = k
	reply.Held = others + r.held
	return reply
}

// Held returns the places that a process' record of a key has at now, and whether it has one.
func (p *Places) Held(now int64, bucket, process string) (held int64, ok bool) {
	k := p.keys[bucket]
	if k == nil {
		return 0, false
	}
	r, ok := k.records[process]
	if !ok || min(r.stop, now+r.life) <= now {
		return 0, false
	}
	return r.held, true
}

// Fields returns what HGETALL would return of a key, and nil if there is none.
func (p *Places) Fields(clock int64, bucket string) map[string]string {
	k := p.keys[bucket]
	if k == nil || clock/1000 > k.expires {
		return nil
	}
	fields := map[string]string{"v": "ao1", "l": fmt.Sprint(k.places), "g": fmt.Sprint(k.given)}
	for id, r := range k.records {
		fields["p"+id] = fmt.Sprintf("%d|%d|%d|%d|%d|%d", r.seq, r.held, r.stop, r.life, r.wait, r.from)
	}
	return fields
}

// Len returns the number of keys that are kept, with some that have ended.
func (p *Places) Len() int { return len(p.keys) }

// Lose removes a key, as a Redis that lost it.
func (p *Places) Lose(bucket string) { delete(p.keys, bucket) }

// Clone returns a copy that shares nothing with p.
func (p *Places) Clone() Places {
	c := Places{keys: make(map[string]*placesOfKey, len(p.keys))}
	for name, k := range p.keys {
		copied := *k
		copied.records = maps.Clone(k.records)
		c.keys[name] = &copied
	}
	return c
}
