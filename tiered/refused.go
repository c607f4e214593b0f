package tiered

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

const (
	// topKeys is the number of a policy's refused keys in Stats: a screen full.
	topKeys = 20

	// evictedKeys is the number of evicted keys whose refusals a policy remembers: 64 × 250 bytes at most.
	evictedKeys = 64
)

// RefusedKey says how many tokens of a key were refused since the Group's creation, and why. The figures are exact
// while MaxKeys keeps the key in the process. If a key is evicted, blocked or unblocked, its refusals until then are
// kept only if it is among the keys that were refused most.
type RefusedKey struct {
	Key string `json:"-"` // or its digest, if over 200 bytes; not in JSON, because it may be a secret

	Limited       int64 // by the limit, in this process or by Redis (tiers Local and Remote)
	FallbackSpent int64 // by the fallback, while Redis did not answer (tier Failover)
	Unavailable   int64 // by fail-closed, while Redis did not answer (tier Failover)
	Blocked       int64 // by a Blocked limit, of the policy or of the key
	Forgotten     int64 // upper bound of the tokens that are missing in the other figures

	// LimitNumber is the number of the limit that refused the key last: see [Decision]. It is 0 if the key has one limit,
	// or was evicted.
	LimitNumber uint8

	// RetryAfter is the time until the key may be admitted again. It is 0 if a token of it would be admitted now.
	RetryAfter time.Duration
}

func refusedOf(s local.Stats) RefusedKey {
	return RefusedKey{
		Limited: s.Refused - s.FallbackSpent, FallbackSpent: s.FallbackSpent, Unavailable: s.Failed,
		Blocked: s.Blocked,
	}
}

// Tokens returns how many tokens were refused for all reasons.
func (k *RefusedKey) Tokens() int64 { return k.Limited + k.FallbackSpent + k.Unavailable + k.Blocked }

func (k *RefusedKey) add(o RefusedKey) {
	k.Limited += o.Limited
	k.FallbackSpent += o.FallbackSpent
	k.Unavailable += o.Unavailable
	k.Blocked += o.Blocked
}

// compare orders the most refused first. Equal keys are ordered by their bytes, so that the order is unique.
func (k *RefusedKey) compare(o *RefusedKey) int {
	return cmp.Or(cmp.Compare(o.Tokens(), k.Tokens()), strings.Compare(k.Key, o.Key))
}

// refusals remembers which evicted keys were refused most, in bounded memory: Space-Saving (Metwally, Agrawal and
// El Abbadi 2005). A key without a place takes that of the least refused, whose count may then be the new key's. So
// every key with more than a 64th of all tokens refused to such keys is in it. It is used at evictions, not at
// decisions.
type refusals map[string]RefusedKey

func (r *refusals) add(key string, k RefusedKey) {
	if k.Tokens() == 0 {
		return
	}
	if *r == nil {
		*r = refusals{}
	}
	old, ok := (*r)[key]
	if !ok && len(*r) == evictedKeys {
		least := RefusedKey{Forgotten: 1<<63 - 1}
		for _, o := range *r {
			if c := cmp.Compare(o.Tokens()+o.Forgotten, least.Tokens()+least.Forgotten); c < 0 ||
				c == 0 && o.Key > least.Key {
				least = o
			}
		}
		delete(*r, least.Key)
		old.Forgotten = least.Tokens() + least.Forgotten
	}
	old.Key = key
	old.add(k)
	(*r)[key] = old
}

func (r refusals) clone() refusals { return maps.Clone(r) }

// top finds the most refused of all keys that it sees. Buckets count what they refuse anyway, so it costs decisions
// nothing.
type top struct {
	evicted refusals // a key is removed when it is seen
	found   []RefusedKey
}

// add adds a bucket. It is called with the cache's lock held.
func (t *top) add(now time.Duration, b *bucket, s local.Stats) {
	k := refusedOf(s)
	k.Key = b.key()
	if old, ok := t.evicted[k.Key]; ok {
		k.add(old)
		k.Forgotten = old.Forgotten
		delete(t.evicted, k.Key)
	}
	if k.Tokens() == 0 {
		return
	}
	if retry, denied := b.Denied(now); denied {
		k.RetryAfter = retry
	}
	if several := len(b.Policy().Owner.(*resolvedLimit).limits) > 1; several && k.Limited > 0 {
		k.LimitNumber, _ = b.LastReport(true)
	}
	t.found = append(t.found, k)
	if len(t.found) == 10*topKeys { // sorted once per 180 keys
		t.found = best(t.found)
	}
}

// list returns the most refused keys, including evicted ones.
func (t *top) list() []RefusedKey {
	for _, k := range t.evicted {
		t.found = append(t.found, k)
	}
	return best(t.found)
}

func best(keys []RefusedKey) []RefusedKey {
	slices.SortFunc(keys, func(a, b RefusedKey) int { return a.compare(&b) })
	return keys[:min(len(keys), topKeys)]
}
