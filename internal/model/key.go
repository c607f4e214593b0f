package model

import (
	"math"
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// collectPerCall is the number of keys that each call looks at. One would be enough for calls that
// create a key each. With two, a round takes half as many calls as it took to create the keys that
// it passes.
const collectPerCall = 2

// Keys are the buckets of a server. The zero value has none. Times are in µs of the server's clock.
//
// Each call looks at two keys and removes those whose time to live is over. So the memory is
// bounded by the keys that are alive and those that ended during the last round of this collection.
type Keys struct {
	byName map[string]*key
	ring   []*key // the same keys in no order, for the collection
	hand   int    // index in ring of the next key to look at
	step   step   // the call that is running
}

// key is a key of the server and what it holds.
type key struct {
	name      string
	algorithm lua.Algorithm
	state     state

	index   int   // index in Keys.ring
	expires int64 // the last ms of the server's own clock in which the key exists, as after PEXPIRE
}

// state is what a key holds under one algorithm, with that algorithm's script in Go. It runs once
// the arguments are checked and the call is not late. The steps are the script's, in the same
// order, and the script states the reasons. The scripts with leases share most steps: see
// [lending].
type state interface {
	// run executes a step and writes its reply. It reports whether the script would have written,
	// and for how many ms the key then lives. If it would not have written, the state is unchanged.
	run(s *step) (keep int64, written bool)

	// fields returns what is stored, as HGETALL does, or as ZRANGE with scores does.
	fields() map[string]string

	// clone returns a copy that shares nothing.
	clone() state
}

// empty makes a state in which nothing is counted.
var empty = [lua.Algorithms]func() state{
	lua.TokenBucket:   func() state { return new(tokenBucket) },
	lua.SlidingLog:    func() state { return new(slidingLog) },
	lua.FixedWindow:   func() state { return new(fixedWindow) },
	lua.SlidingWindow: func() state { return new(slidingWindow) },
	lua.TokenBuckets:  func() state { return new(tokenBuckets) },
}

// Run executes the script of a call at a time of the server's clock, and writes the reply. The
// error is an [Error], and then nothing was executed.
func (k *Keys) Run(clock int64, c *lua.Call, r *lua.Reply) error {
	if n := c.Broken(); n > 0 {
		return argumentError(n)
	}
	k.collect(clock)
	b := k.byName[c.Bucket]
	if b != nil && b.expired(clock) {
		k.drop(b)
		b = nil
	}
	server := c.Now
	if server == 0 {
		server = clock
	}
	switch {
	case c.Deadline > 0 && server >= c.Deadline:
		*r = lua.Reply{Code: lua.Late, Now: server}
		return nil
	case c.Min > c.LeastCap(): // no limit can ever grant it
		*r = lua.Reply{Code: lua.Never, Retry: -1, Now: server}
		return nil
	}
	exists := b != nil
	if !exists {
		b = &key{name: c.Bucket, algorithm: c.Algorithm, state: empty[c.Algorithm](), index: len(k.ring)}
	} else if c.Algorithm.Has(lua.Entries) != b.algorithm.Has(lua.Entries) {
		return Error("WRONGTYPE Operation against a key holding the wrong kind of value")
	} else if c.Algorithm != b.algorithm {
		return Error("RLFOREIGN key")
	}
	k.step = step{
		Call: c, server: server, exists: exists, reply: r, ended: k.step.ended[:0], buckets: k.step.buckets[:0],
	}
	keep, written := b.state.run(&k.step)
	if !written {
		return nil
	}
	if !exists {
		if k.byName == nil {
			k.byName = make(map[string]*key)
		}
		k.byName[b.name] = b
		k.ring = append(k.ring, b)
	}
	// Like PEXPIRE: Redis adds to its own clock, even if the call carries another time.
	b.expires = clock/1000 + keep
	return nil
}

// Fields returns what HGETALL would return of a key, or ZRANGE with scores of a sorted set. It
// returns nil if there is no such key.
func (k *Keys) Fields(clock int64, name string) map[string]string {
	b := k.byName[name]
	if b == nil || b.expired(clock) {
		return nil
	}
	return b.state.fields()
}

// PTTL returns the ms that a key has left, or -2 if there is none, as Redis does.
func (k *Keys) PTTL(clock int64, name string) int64 {
	b := k.byName[name]
	if b == nil || b.expired(clock) {
		return -2
	}
	return b.expires - clock/1000
}

// Del deletes a key.
func (k *Keys) Del(name string) {
	if b := k.byName[name]; b != nil {
		k.drop(b)
	}
}

// HDel deletes the record of a lease, as HDEL of its field would. Only tests of the scripts do
// that.
func (k *Keys) HDel(name, field string) {
	if b := k.byName[name]; b != nil && field[0] == 'p' {
		delete(b.state.(*tokenBucket).leases, field[1:])
	}
}

// Names lists the keys, as SCAN does. The order is arbitrary, but the same after the same calls.
func (k *Keys) Names(clock int64) []string {
	all := make([]string, 0, len(k.ring))
	for _, b := range k.ring {
		if !b.expired(clock) {
			all = append(all, b.name)
		}
	}
	return all
}

// Clone returns a copy that shares nothing with k.
func (k *Keys) Clone() Keys {
	c := Keys{byName: make(map[string]*key, len(k.byName)), ring: make([]*key, len(k.ring)), hand: k.hand}
	for i, b := range k.ring {
		twin := *b
		twin.state = b.state.clone()
		c.ring[i] = &twin
		c.byName[twin.name] = &twin
	}
	return c
}

// collect looks at the next keys in the ring and removes those whose time to live is over.
func (k *Keys) collect(clock int64) {
	for range collectPerCall {
		if k.hand >= len(k.ring) {
			k.hand = 0
		}
		if k.hand == len(k.ring) { // empty
			return
		}
		if b := k.ring[k.hand]; b.expired(clock) {
			k.drop(b) // another key takes its place and is looked at next
		} else {
			k.hand++
		}
	}
}

// drop removes a key from the map and the ring.
func (k *Keys) drop(b *key) {
	last := len(k.ring) - 1
	k.ring[last].index = b.index
	k.ring[b.index] = k.ring[last]
	k.ring[last] = nil
	k.ring = k.ring[:last]
	delete(k.byName, b.name)
}

// expired reports whether the key is gone at a time in µs of the server's clock. Redis compares
// whole milliseconds, and a key still exists in the millisecond in which it expires.
func (k *key) expired(clock int64) bool { return clock/1000 > k.expires }

// keepFor returns for how many ms a key lives that counts for us µs more: a second longer.
func keepFor(us int64) int64 { return min(int64(math.Ceil(float64(us)/1000))+1000, maxKeep) }

// decimal returns a whole number as the scripts write it.
func decimal(x int64) string { return strconv.FormatInt(x, 10) }

// guard handles a server clock that was set back, for keys that keep a time of their own. last is
// the newest time of the key, and behind is how far the server's clock was set back so far. A small
// step back is waited out: the caller keeps the key's time at last. A large step is believed.
func guard(last, server, behind int64) (behindNow int64, stepped bool) {
	if last-server-behind > lua.MaxBack.Microseconds() {
		return last - server, true
	}
	return behind, false
}
