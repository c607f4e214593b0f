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
	// topKeys is how many of a policy's refused keys Stats name: a screen full.
	topKeys = 20

	// goneKeys is how many refused keys a policy remembers of those that were evicted: 64 × 250 bytes at most.
	goneKeys = 64
)

// RefusedKey is a key that was refused, and why, in tokens since the Group was made. The figures are exact while MaxKeys
// keeps the key in the process. Of keys that were evicted meanwhile, and of what came before a key was blocked or let in again,
// only the most refused are remembered: up to Forgotten tokens may be missing.
type RefusedKey struct {
	Key string `json:"-"` // or its digest, of more than 200 bytes; not in JSON, because it may be a secret

	Limited     int64 // by the limit: in this process, and once per denial by Redis (tiers Local and Remote)
	ShareSpent  int64 // by the share, while Redis did not answer (tier Failover)
	Unavailable int64 // by fail-closed, while Redis did not answer (tier Failover)
	Blocked     int64 // by a limit that is Blocked, of the policy or of the key
	Forgotten   int64

	// Which is the limit, of several on the key, that refused it last: see [Decision]. 0 of one limit, and of a forgotten key.
	Which uint8

	// RetryAfter is when it may be admitted again, if a token of it is refused at this moment; 0 if not.
	RetryAfter time.Duration
}

func refusedOf(s local.Stats) RefusedKey {
	return RefusedKey{Limited: s.Refused - s.ShareSpent, ShareSpent: s.ShareSpent, Unavailable: s.Failed, Blocked: s.Blocked}
}

// Tokens is how many were refused, for all reasons.
func (k *RefusedKey) Tokens() int64 { return k.Limited + k.ShareSpent + k.Unavailable + k.Blocked }

func (k *RefusedKey) add(o RefusedKey) {
	k.Limited += o.Limited
	k.ShareSpent += o.ShareSpent
	k.Unavailable += o.Unavailable
	k.Blocked += o.Blocked
}

// more orders the most refused first; keys that were refused as often by their bytes, so that the order is one.
func (k *RefusedKey) more(o *RefusedKey) int {
	return cmp.Or(cmp.Compare(o.Tokens(), k.Tokens()), strings.Compare(k.Key, o.Key))
}

// refusals remembers which forgotten keys were refused most, in bounded memory: Space-Saving (Metwally, Agrawal and El
// Abbadi 2005). A key that has no place takes that of the least refused, and what that one had counts as possibly its own.
// So whichever key has more than a 64th of all that such keys were refused is here. Decisions do not come here, only evictions.
type refusals map[string]RefusedKey

func (r *refusals) add(key string, k RefusedKey) {
	if k.Tokens() == 0 {
		return
	}
	if *r == nil {
		*r = refusals{}
	}
	old, ok := (*r)[key]
	if !ok && len(*r) == goneKeys {
		least := RefusedKey{Forgotten: 1<<63 - 1}
		for _, o := range *r {
			if c := cmp.Compare(o.Tokens()+o.Forgotten, least.Tokens()+least.Forgotten); c < 0 || c == 0 && o.Key > least.Key {
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

// top finds the most refused of all keys that it sees. Nothing is counted for it: buckets count what they refuse anyway, so
// it costs a decision nothing.
type top struct {
	past  refusals // its keys are taken out when they are seen
	found []RefusedKey
}

// see is called with the cache's lock held.
func (t *top) see(now time.Duration, b *bucket, s local.Stats) {
	if b.borrows() { // the key's first bucket is seen too
		return
	}
	k := refusedOf(s)
	k.Key = b.key()
	if old, ok := t.past[k.Key]; ok {
		k.add(old)
		k.Forgotten = old.Forgotten
		delete(t.past, k.Key)
	}
	if k.Tokens() == 0 {
		return
	}
	if retry, denied := b.Denied(now); denied {
		k.RetryAfter = retry
	}
	if several := len(b.Policy().Owner.(*plan).limits) > 1; several && k.Limited > 0 {
		k.Which, _ = b.Told(true)
	}
	t.found = append(t.found, k)
	if len(t.found) == 10*topKeys { // sorted once per 180 keys
		t.found = best(t.found)
	}
}

// list returns the most refused, those that were forgotten since among them.
func (t *top) list() []RefusedKey {
	for _, k := range t.past {
		t.found = append(t.found, k)
	}
	return best(t.found)
}

func best(keys []RefusedKey) []RefusedKey {
	slices.SortFunc(keys, func(a, b RefusedKey) int { return a.more(&b) })
	return keys[:min(len(keys), topKeys)]
}
