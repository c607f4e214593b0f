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
		all[Owner(p).Limit] = SharesOf(p)
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
	if s.first != nil && Owner(s.first).Limit == limit {
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

// NewResolved returns what owns the local policy of a limit.
func NewResolved(l *Limiter, s *Settings, limit Limit) *Resolved {
	each := limit.Each()
	return &Resolved{Limiter: l, Settings: s, Limit: limit, Limits: each, Smallest: smallest(each)}
}

// Policy returns the local policy that o owns, or one like it.
func (o *Resolved) Policy() *local.Policy { return o.Settings.PolicyOf(o.Limit) }

// Most returns the most tokens that the limits admit at once.
func (o *Resolved) Most() int64 { return o.Limits[o.Smallest-1].Most() }

// LimitOf returns the limit of a key of whose Decision the number, or 0, and the burst are known:
// requests may have carried different ones.
func (o *Resolved) LimitOf(number uint8, burst int64) Limit {
	i := max(int(number), 1) - 1
	if i >= len(o.Limits) {
		i = 0
	}
	if o.mixed != nil && o.Limits[i].Most() != burst {
		return o.Settings.byBurst(i, burst)
	}
	return o.Limits[i]
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

// byBurst returns the i-th limit of those, with a burst, that a request has carried.
func (s *Settings) byBurst(i int, burst int64) (found Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.all {
		each := Owner(p).Limits
		if l := each[min(i, len(each)-1)]; l.Rule() == local.ByLimit && l.Most() == burst && (found == (Limit{}) || found.NanosPerToken() > l.NanosPerToken()) {
			found = l
		}
	}
	if found == (Limit{}) {
		each := s.Limit.Each()
		like := each[min(i, len(each)-1)]
		return Limit{Tokens: burst, Per: like.Per, Calendar: like.Calendar}
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
	return o.Settings.KeyLimit == nil && (o.mixed != nil || o.Limit != o.Settings.Limit)
}

// SharesOf returns what standing shares have of a policy's limits, or nil.
func SharesOf(p *local.Policy) standing.Limits {
	if p.Parent == nil || p.Rule != local.ByLimit {
		return nil
	}
	return Owner(p).Shares
}
