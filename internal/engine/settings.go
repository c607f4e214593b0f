package engine

import (
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Settings are those of a Limiter until its policy changes. Package tiered makes them of a Policy.
type Settings struct {
	Mode    uint32        // of the bits ModeTraced to ModeStanding
	Initial *local.Policy // for new buckets: that of Limit, or Unresolved if KeyLimit must be called
	Limit   Limit         // the policy's
	Windows bool          // the policy counts by windows, and not by token buckets

	KeyLimit   func(key string) Limit    // the limit of a key; nil if each has that of the policy
	CheckKey   func(Limit) error         // why no request may carry the limit
	FixedLimit bool                      // no request may carry any
	Resolve    func(Limit) *local.Policy // makes the policy of a limit: its Owner is a *[Resolved]

	mu       sync.Mutex
	policies map[Limit]*local.Policy // by limit; usually few
}

// MaxPolicies bounds the limits of keys that are shared among keys. Beyond it each key has a copy of 200 bytes.
const MaxPolicies = 1024

// Shares returns what standing shares have of each limit that was used.
func (s *Settings) Shares() map[Limit]standing.Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[Limit]standing.Limits, len(s.policies))
	for limit, p := range s.policies {
		all[limit] = SharesOf(p)
	}
	return all
}

// Resolved is the owner of a local policy: the limits of a key, which the policy has as numbers.
type Resolved struct {
	Limiter   *Limiter
	Settings  *Settings     // under which it was resolved
	Retention time.Duration // upper bound of the time for which what a key used counts
	Limits    []Limit       // the policy's or the key's, at least one
	Smallest  uint8         // number, from 1, of the limit with the smallest burst

	Shares standing.Limits // what standing shares have of each limit; nil if they have nothing

	mixed *mixed // of a key whose requests carry different limits; nil of any other
}

// LimitOf returns the limit of a key of whose Decision the burst is known: requests may have carried different ones.
func (o *Resolved) LimitOf(burst int64) Limit {
	if o.mixed != nil && o.Limits[0].Most() != burst {
		return o.Settings.byBurst(burst)
	}
	return o.Limits[0]
}

// Owner returns the owner of a policy.
func Owner(p *local.Policy) *Resolved { return p.Owner.(*Resolved) }

// PolicyOf returns the local policy of a limit.
func (s *Settings) PolicyOf(limit Limit) *local.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.policies[limit]; p != nil {
		return p
	}
	p := s.Resolve(limit)
	if len(s.policies) < MaxPolicies {
		if s.policies == nil {
			s.policies = make(map[Limit]*local.Policy)
		}
		s.policies[limit] = p
	}
	return p
}

// byBurst returns a limit with a burst that a request has carried.
func (s *Settings) byBurst(burst int64) (found Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.policies {
		if l.Rule() == local.ByLimit && l.Most() == burst && (found == (Limit{}) || found.NanosPerToken() > l.NanosPerToken()) {
			found = l
		}
	}
	if found == (Limit{}) {
		return Limit{Tokens: burst, Per: s.Limit.Per}
	}
	return found
}

// Settings returns the present ones.
func (l *Limiter) Settings() *Settings { return l.settings.Load() }

// Set makes s the settings of new buckets.
func (l *Limiter) Set(s *Settings) {
	l.settings.Store(s)
	mode := s.Mode
	if l.carries.Load() {
		mode |= modeCarried
	}
	l.mode.Store(mode)
}

// ApplySettings gives the keys of some Limiters the settings that their Limiters have now.
func (g *Group) ApplySettings(changed map[*Limiter]bool) {
	if len(changed) == 0 {
		return
	}
	for _, c := range []*local.Cache[Bucket, *Bucket]{g.Cache, g.CacheAfterClose} {
		var all []*Bucket
		c.All(func(b *Bucket) {
			if changed[b.Limiter()] {
				all = append(all, b)
			}
		})
		for _, b := range all {
			next := b.Limiter().settings.Load().Initial
			if b.carried() { // no request carries it under the new settings yet, and none goes by the policy's limit
				next = b.Policy().WithRule(local.Unresolved)
			}
			b.setPolicy(g.Now(), next)
		}
	}
}

// Refresh makes the next use of key look its limit up again.
func (l *Limiter) Refresh(key string) {
	if l.settings.Load().KeyLimit == nil || key == "" || len(key) > MaxKeyLength {
		return
	}
	id, g := l.ID(key), l.Group
	l.refreshes.Add(1)
	l.lookUps.forget(id.Key)
	for _, c := range []*local.Cache[Bucket, *Bucket]{g.Cache, g.CacheAfterClose} {
		if b, ok := c.Find(id); ok {
			b.setPolicy(g.Now(), b.Policy().WithRule(local.Unresolved))
		}
	}
}

// setPolicy makes p the policy of b.
func (b *Bucket) setPolicy(now time.Duration, p *local.Policy) {
	folded, effect, _ := b.SetPolicy(now, nil, p)
	b.policySet(now, folded, effect)
}

// policySet carries out what a new policy of b means.
func (b *Bucket) policySet(now time.Duration, folded local.Stats, effect local.Effect) {
	if folded != (local.Stats{}) {
		b.Limiter().keepStats(b.Key(), folded)
	}
	b.apply(now, effect)
}
