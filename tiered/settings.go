package tiered

import (
	"errors"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// settings are those of a Limiter until the next SetPolicy.
type settings struct {
	policy  Policy
	initial *local.Policy // for new buckets: the policy's limit, or Unresolved if PerKey must be called

	mu       sync.Mutex
	policies map[Limit]*local.Policy // by limit; usually few

	former map[Limit]standing.Limits // what standing shares had of each limit under the settings before; never changes
}

// maxPolicies bounds the limits of PerKey that are shared among keys. Beyond it each key has a copy of 200 bytes.
const maxPolicies = 1024

func newSettings(l *Limiter, p Policy) *settings {
	s := &settings{policy: p, policies: make(map[Limit]*local.Policy), former: l.settings.Load().shares()}
	if p.PerKey == nil {
		s.initial = l.policyOf(s, p.Limit)
		return s
	}
	s.initial = l.local(s, p.Limit)
	s.initial.Rule, s.initial.Unset = local.Unresolved, true // the limit may be that of another key
	return s
}

// shares returns what standing shares have of each limit that was used.
func (s *settings) shares() map[Limit]standing.Limits {
	if s == nil || s.policy.Standing != StandingOn {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[Limit]standing.Limits, len(s.policies))
	for limit, p := range s.policies {
		all[limit] = sharesOf(p)
	}
	return all
}

// resolvedLimit is what a Limiter adds to a local policy, as its owner.
type resolvedLimit struct {
	limiter   *Limiter
	settings  *settings     // under which it was resolved
	retention time.Duration // upper bound of the time for which what a key used counts
	limits    []Limit       // the policy's or the key's, at least one
	smallest  uint8         // number, from 1, of the limit with the smallest burst

	shares standing.Limits // what standing shares have of each limit; nil if they have nothing

	mixed *mixed // of a key whose requests carry different limits; nil of any other
}

// policyOf returns the local policy of a limit under the settings s.
func (l *Limiter) policyOf(s *settings, limit Limit) *local.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.policies[limit]; p != nil {
		return p
	}
	p := l.local(s, limit)
	if len(s.policies) < maxPolicies {
		s.policies[limit] = p
	}
	return p
}

// local converts a policy with a limit into a local policy.
func (l *Limiter) local(s *settings, limit Limit) *local.Policy {
	p := s.policy
	o := &l.group.options
	lp := &local.Policy{
		Number: l.number, Rule: limit.rule(), Rules: new(local.Rules),
		Size: max(p.Lease.Size, 0), Period: p.Lease.Period,
		FailMode: p.FailMode, Budget: o.Budget, Timeout: o.Timeout, Uniform: o.uniform,
		Paid: &l.paid, NearLimit: &l.nearLimit, Spent: &l.group.spent,
	}
	if lp.Period == 0 {
		lp.Period = DefaultPeriod
	}
	limits := append([]Limit{limit}, p.Also...)
	p.Limit = limit
	if lp.Rule != local.ByLimit {
		lp.Unset = true
		// Any numbers will do: no call uses them, and a key that had a limit keeps its own.
		p.Limit = PerSecond(1)
	}
	owner := &resolvedLimit{limiter: l, settings: s, limits: limits, smallest: smallest(limits)}
	lp.Owner = owner
	if rest, parts, ok := p.split(); ok && lp.Rule == local.ByLimit {
		whole := *lp
		whole.Cap, whole.Tokens, whole.Per = p.fallbackNumbers()
		whole.NanosPerToken, whole.Call = p.Limit.nanosPerToken(), p.call()
		lp.Parent = &whole
		if p = rest; p.Standing == StandingOn {
			if owner.shares = s.former[limit]; !owner.shares.Are(parts) {
				owner.shares = l.group.shares.Begin(l.group.now(), parts...)
			}
		}
	}
	lp.Cap, lp.Tokens, lp.Per = p.fallbackNumbers()
	lp.NanosPerToken = p.Limit.nanosPerToken()
	if len(p.Also) > 0 {
		lp.First = local.Numbers{Cap: p.Limit.burst(), Tokens: p.Limit.Tokens, Per: p.Limit.Per}
	}
	lp.Window = p.window()
	lp.ShortWindow = p.Algorithm == FixedWindow && p.Limit.Per < 2*o.Timeout
	if lp.Size == 0 {
		lp.MinBurst = leastBurst
	}
	lp.NoLease = !p.leased(lp)
	lp.Unleased = lp.NoLease && p.Algorithm == SlidingWindow
	lp.Call = p.call()
	owner.retention = p.retention()
	return lp
}

// set makes p the policy of new buckets.
func (l *Limiter) set(p Policy) {
	s := newSettings(l, p)
	l.settings.Store(s)
	mode := uint32(0)
	if l.group.trace.hooks.Decision != nil {
		mode |= modeTraced
	}
	if s.policy.Shadow {
		mode |= modeShadow
	}
	if s.policy.Standing == StandingOn {
		mode |= modeStanding
	}
	if s.initial.Rule == local.Unlimited {
		mode |= modeUnlimited
	}
	if l.carries.Load() {
		mode |= modeCarried
	}
	l.mode.Store(mode)
}

// Policy returns the current policy: see [Limiter.SetPolicy].
func (l *Limiter) Policy() Policy {
	if l.isZero() {
		return Policy{}
	}
	return l.settings.Load().policy.clone()
}

// SetPolicy changes the policy for all keys at once. Limit, PerKey, Plans, FailMode, Lease, MaxDebt and Shadow may change.
// Name, Algorithm, Also and Calendar may not, nor the Per of a FixedWindow, of a SlidingLog, or of a
// TokenBucket with Also: to change those, deploy again, or use a policy with another name. Standing takes two deploys:
// see docs/standing.md. If p is invalid it returns an error and changes nothing. It walks all keys of the Group, which
// takes about 60 ms for 100 000 keys, and does not block on Redis.
//
// If the limit is raised, a key that is not full keeps the tokens that it had, and refills to the new burst. A key that
// is full has the new burst at once, unless a lower limit has filled it. The old rate counts until the key's next call to
// Redis, and the new one from then on. A SlidingWindow with another Per or Precision begins with what the old one counted, each token at
// the end of its old block.
//
// If the limit is lowered, what is leased is not spent any more, and is returned. A TokenBucket goes on by the old limit
// until no process has used that for ten seconds, so that the largest of the limits is what a key can use while
// processes differ, as during a deploy. The first request after that has the new limit, and the key has at most the new
// burst. A lease counts as a use until it ends. [Blocked] takes effect at once.
//
// Redis learns a key's new limit by the key's next call. Nothing is sent for a key that nobody uses. With PerKey a key's
// new limit is determined, and applies, from its next use on.
func (l *Limiter) SetPolicy(p Policy) error {
	if l.isZero() {
		return errZeroLimiter
	}
	p = p.clone()
	l.setMu.Lock()
	defer l.setMu.Unlock()
	if err := errors.Join(p.Validate(), p.checkReplaces(l.Policy())); err != nil {
		return err
	}
	l.set(p)
	l.group.applySettings(map[*Limiter]bool{l: true})
	return nil
}

// SetLimit changes the policy's Limit, and nothing else of it: see [Limiter.SetPolicy].
func (l *Limiter) SetLimit(limit Limit) error {
	p := l.Policy()
	p.Limit = limit
	return l.SetPolicy(p)
}

// applySettings gives the keys of some Limiters the settings that their Limiters have now. setMu of each is held.
func (g *Group) applySettings(changed map[*Limiter]bool) {
	if len(changed) == 0 {
		return
	}
	for _, c := range []*local.Cache[bucket, *bucket]{g.cache, g.cacheAfterClose} {
		var all []*bucket
		c.All(func(b *bucket) {
			if changed[b.limiter()] {
				all = append(all, b)
			}
		})
		for _, b := range all {
			next := b.limiter().settings.Load().initial
			if b.carried() { // no request carries it under the new settings yet, and none goes by the policy's limit
				next = b.Policy().WithRule(local.Unresolved)
			}
			b.setPolicy(g.now(), next)
		}
	}
}

// Refresh makes the next use of key call [Policy].PerKey again, because the key's limit has changed. It does
// nothing without PerKey, and for a key that this process does not keep.
func (l *Limiter) Refresh(key string) {
	if l.isZero() {
		return
	}
	s, g := l.settings.Load(), l.group
	if s.policy.PerKey == nil || key == "" || len(key) > MaxKeyLength {
		return
	}
	id := l.id(key)
	l.refreshes.Add(1)
	l.lookUps.forget(id.Key)
	for _, c := range []*local.Cache[bucket, *bucket]{g.cache, g.cacheAfterClose} {
		if b, ok := c.Find(id); ok {
			b.setPolicy(g.now(), b.Policy().WithRule(local.Unresolved))
		}
	}
}

// setPolicy makes p the policy of b.
func (b *bucket) setPolicy(now time.Duration, p *local.Policy) {
	folded, effect, _ := b.SetPolicy(now, nil, p)
	b.policySet(now, folded, effect)
}

// policySet carries out what a new policy of b means.
func (b *bucket) policySet(now time.Duration, folded local.Stats, effect local.Effect) {
	if folded != (local.Stats{}) {
		b.limiter().keepStats(b.key(), folded)
	}
	b.apply(now, effect)
}
