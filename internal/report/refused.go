package report

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// topKeys is the number of refused keys that a Top finds: a screen full.
	topKeys = 20

	// evictedKeys is the number of evicted keys whose refusals are remembered: 64 × 250 bytes at
	// most.
	evictedKeys = 64
)

// RefusedKey says how many tokens of a key were refused, and why. Its fields are those of the
// RefusedKey of package tiered, which describes them.
type RefusedKey struct {
	Key string

	Limited       int64
	FallbackSpent int64
	Unavailable   int64
	Blocked       int64
	Forgotten     int64

	LimitNumber uint8
	RetryAfter  time.Duration
}

// Tokens returns how many tokens were refused for all reasons.
func (k *RefusedKey) Tokens() int64 { return k.Limited + k.FallbackSpent + k.Unavailable + k.Blocked }

func (k *RefusedKey) add(o RefusedKey) {
	k.Limited += o.Limited
	k.FallbackSpent += o.FallbackSpent
	k.Unavailable += o.Unavailable
	k.Blocked += o.Blocked
}

// compare orders the most refused first. Equal keys are ordered by their bytes, so that the order
// is unique.
func (k *RefusedKey) compare(o *RefusedKey) int {
	return cmp.Or(cmp.Compare(o.Tokens(), k.Tokens()), strings.Compare(k.Key, o.Key))
}

// Evicted remembers which evicted keys were refused most, in bounded memory: Space-Saving
// (Metwally, Agrawal and El Abbadi 2005). A key without a place takes that of the least refused,
// whose count may then be the new key's. So every key with more than a 64th of all tokens refused
// to such keys is in it. It is used at evictions, not at decisions. All methods may be called
// concurrently.
type Evicted struct {
	mu   sync.Mutex
	keys map[string]RefusedKey // at most evictedKeys; what a key was refused is from its Tokens to that and Forgotten
}

// Add adds what a key was refused.
func (e *Evicted) Add(k RefusedKey) {
	if k.Tokens() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keys == nil {
		e.keys = make(map[string]RefusedKey)
	}
	old, ok := e.keys[k.Key]
	if !ok && len(e.keys) == evictedKeys {
		least := RefusedKey{Forgotten: 1<<63 - 1}
		for _, o := range e.keys {
			if c := cmp.Compare(o.Tokens()+o.Forgotten, least.Tokens()+least.Forgotten); c < 0 ||
				c == 0 && o.Key > least.Key {
				least = o
			}
		}
		delete(e.keys, least.Key)
		old.Forgotten = least.Tokens() + least.Forgotten
	}
	old.Key = k.Key
	old.add(k)
	e.keys[k.Key] = old
}

// Top returns a Top that has seen the evicted keys.
func (e *Evicted) Top() Top {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Top{evicted: maps.Clone(e.keys)}
}

// Top finds the most refused of all keys that it sees, each once. Buckets count what they refuse
// anyway, so it costs decisions nothing. It has no lock.
type Top struct {
	evicted map[string]RefusedKey // a key is removed when it is seen
	found   []RefusedKey          // at most 10 × topKeys
}

// Add adds what a key of this process was refused since it came, and returns the key with all of
// its refusals, so that the caller completes it. That must be done before the next call. It returns
// nil if nothing of the key was refused.
func (t *Top) Add(k RefusedKey) *RefusedKey {
	if old, ok := t.evicted[k.Key]; ok {
		k.add(old)
		k.Forgotten = old.Forgotten
		delete(t.evicted, k.Key)
	}
	if k.Tokens() == 0 {
		return nil
	}
	if len(t.found) == 10*topKeys { // sorted once per 180 keys
		t.found = best(t.found)
	}
	t.found = append(t.found, k)
	return &t.found[len(t.found)-1]
}

// Keys returns the most refused keys, the most refused first. It is the last call.
func (t *Top) Keys() []RefusedKey {
	for _, k := range t.evicted {
		t.found = append(t.found, k)
	}
	return best(t.found)
}

func best(keys []RefusedKey) []RefusedKey {
	slices.SortFunc(keys, func(a, b RefusedKey) int { return a.compare(&b) })
	return keys[:min(len(keys), topKeys)]
}
