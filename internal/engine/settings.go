package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Shares returns what standing shares have of each limit that was used.
func (s *Settings) Shares() map[Limit]standing.Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[Limit]standing.Limits, len(s.policies)+1)
	for p := range s.all {
		all[Owner(p).Limits[0]] = SharesOf(p)
	}
	return all
}

// all yields the local policies of all limits that are kept. mu is held.
func (s *Settings) all(yield func(*local.Policy) bool) {
	if s.first == nil || !yield(s.first) {
		return
	}
	for _, p := range s.policies {
		if !yield(p) {
			return
		}
	}
}

// kept returns the local policy of a limit, or nil. mu is held.
func (s *Settings) kept(limit Limit) *local.Policy {
	if s.first != nil && Owner(s.first).Limits[0] == limit {
		return s.first
	}
	return s.policies[limit]
}

// sharesOf returns what standing shares have of a limit, or nil if that is not kept.
func (s *Settings) sharesOf(limit Limit) standing.Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.kept(limit); p != nil {
		return SharesOf(p)
	}
	return nil
}

// LimitOf returns the limit of a key of whose Decision the burst is known: requests may have
// carried different ones.
func (o *Resolved) LimitOf(burst int64) Limit {
	if o.mixed != nil && o.Limits[0].Most() != burst {
		return o.Settings.byBurst(burst)
	}
	return o.Limits[0]
}

// PolicyOf returns the local policy of a limit.
func (s *Settings) PolicyOf(limit Limit) *local.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.kept(limit); p != nil {
		return p
	}
	p := s.Resolve(limit, nil)
	switch {
	case s.first == nil:
		s.first = p
	case len(s.policies) < MaxPolicies:
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
	for p := range s.all {
		if l := Owner(p).Limits[0]; l.Rule() == local.ByLimit && l.Most() == burst && (found == (Limit{}) || found.NanosPerToken() > l.NanosPerToken()) {
			found = l
		}
	}
	if found == (Limit{}) {
		return Limit{Tokens: burst, Per: s.Limit.Per, Calendar: s.Limit.Calendar}
	}
	return found
}

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

// carried reports whether the limit of b's key is one that requests carry.
func (b *Bucket) carried() bool {
	o := b.Policy().Owner.(*Resolved)
	return o.Settings.KeyLimit == nil && (o.mixed != nil || o.Limits[0] != o.Settings.Limit)
}

// SharesOf returns what standing shares have of a policy's limits, or nil.
func SharesOf(p *local.Policy) standing.Limits {
	if p.Parent == nil || p.Rule != local.ByLimit {
		return nil
	}
	return Owner(p).Shares
}
