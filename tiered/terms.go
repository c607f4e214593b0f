package tiered

import (
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// terms are what a Limiter decides by until the next SetPolicy.
type terms struct {
	policy Policy
	fresh  *local.Policy // of new buckets: the policy's limit, or that PerKey is to be asked

	mu    sync.Mutex
	plans map[Limit]*local.Policy // by limit: few, most often
}

// maxPlans is how many limits of PerKey are kept for all the keys that have them. Beyond it each key has its own, of 200 bytes.
const maxPlans = 1024

func newTerms(l *Limiter, p Policy) *terms {
	t := &terms{policy: p, plans: make(map[Limit]*local.Policy)}
	if p.PerKey == nil {
		t.fresh = l.plan(t, p.Limit)
		return t
	}
	t.fresh = l.local(p, p.Limit)
	t.fresh.Rule, t.fresh.Unset = local.Unresolved, true // the limit may be another key's
	return t
}

// plan is a limit under the terms of a Limiter, and the owner of its local policy.
type plan struct {
	limiter  *Limiter
	longest  time.Duration // until nothing of a key counts any more, at most
	limits   []Limit       // the policy's or the key's, at least one; of a shard, the whole ones
	smallest uint8         // of them, from 1: that of the smallest burst
}

// plan is the local policy of a limit under the terms.
func (l *Limiter) plan(t *terms, limit Limit) *local.Policy {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.plans[limit]; p != nil {
		return p
	}
	p := l.local(t.policy, limit)
	if len(t.plans) < maxPlans {
		t.plans[limit] = p
	}
	return p
}

// local converts a policy with a limit; for a shard, its part of that.
func (l *Limiter) local(p Policy, limit Limit) *local.Policy {
	var whole *local.Policy
	if l.whole != l {
		whole = l.whole.local(p, limit)
	}
	o := &l.group.options
	lp := &local.Policy{
		Number: l.number, Rule: limit.rule(), Rules: new(local.Rules), Counting: p.counting(), Whole: whole,
		Size: max(p.Lease.Size, 0), Period: p.Lease.Period,
		FailMode: local.FailMode(p.FailMode), Budget: o.Budget, Timeout: o.Timeout, Uniform: o.uniform,
	}
	if lp.Period == 0 {
		lp.Period = DefaultPeriod
	}
	limits := append([]Limit{limit}, p.Also...)
	p.Limit = limit
	if lp.Rule != local.ByLimit {
		lp.Unset = true
		p.Limit = PerSecond(maxShards) // any numbers will do: nobody is asked by them, and a key that had a limit keeps its own
	}
	if whole != nil {
		p = p.part(l.kind.Shard, l.kind.Shards)
	}
	lp.Cap, lp.Tokens, lp.Per = p.terms()
	lp.Nanos = p.Limit.nanosPerToken()
	if len(p.Also) > 0 {
		lp.First = local.Numbers{Cap: p.Limit.burst(), Tokens: p.Limit.Tokens, Per: p.Limit.Per}
	}
	lp.Window = p.window()
	lp.Brief = p.Algorithm == FixedWindow && p.Limit.Per < 2*o.Timeout
	if lp.Size == 0 {
		lp.LeastBurst = leastBurst
	}
	lp.NoLease = !p.leased(lp)
	lp.AtOnce = lp.NoLease && p.Algorithm == SlidingWindow
	lp.Call = p.call()
	lp.Owner = &plan{limiter: l, longest: p.longest(), limits: limits, smallest: smallest(limits)}
	return lp
}

// set puts a policy into force for buckets to come.
func (l *Limiter) set(p Policy) {
	for _, s := range l.shards {
		s.set(p)
	}
	t := newTerms(l, p)
	l.terms.Store(t)
	mode := uint32(0)
	if l.group.trace.hooks.Decision != nil {
		mode |= modeTraced
	}
	if t.policy.Shadow {
		mode |= modeShadow
	}
	if l.shards != nil {
		mode |= modeSharded
	}
	if t.fresh.Rule == local.Unlimited {
		mode |= modeUnlimited
	}
	l.mode.Store(mode)
}

// Policy returns the policy, at present: see [Limiter.SetPolicy].
func (l *Limiter) Policy() Policy { return l.terms.Load().policy.clone() }

// SetPolicy puts another policy into force, for all keys and at once: Limit, PerKey, FailMode, Lease and Shadow may differ from
// the present one's; Name, Algorithm, Also, Calendar and Shards may not, nor the Per of a FixedWindow, of a SlidingLog or of a
// TokenBucket with Also. It reports what is wrong with p, and then changes nothing. It walks all keys of the Group, which takes
// some 60 ms for 100 000 of them, and waits for nobody.
//
// Raising a limit mints nothing: a key goes on from the tokens that it had, and only one that nobody used is full. What came
// until now came by the old rate, and the new one counts from now on. A SlidingWindow of another Per or Precision begins with
// what the old one counted, as if it were admitted now. Lowering takes effect at once: what is leased is spent no
// more, and goes back. While processes have different limits, as during a deploy, a key is admitted what the largest of them
// allows.
//
// Redis hears of the new limit by one call for each key of the Group that is not known to be full, which is no more than the
// process made since they were full. Nobody waits for these calls. They leave one by one, those for leased keys first, so that
// all processes together take a fifth of a Redis' time: 60 µs apart, times the processes. A key that is used before its turn
// needs none. If a call fails, the key's next one tells. With PerKey a key's new limit is known, and counts, from its next use
// on.
func (l *Limiter) SetPolicy(p Policy) error {
	p = p.clone()
	if err := p.validate(); err != nil {
		return err
	}
	if p.Name != l.name {
		return fmt.Errorf("tiered: Policy.Name is %q: must stay %q, for the buckets in Redis are of that name", p.Name, l.name)
	}
	l.setting.Lock()
	defer l.setting.Unlock()
	if err := p.follows(l.Policy()); err != nil {
		return err
	}
	l.set(p)
	g := l.group
	for _, c := range []*local.Cache[bucket, *bucket]{g.cache, g.after} {
		var all []*bucket
		c.All(func(b *bucket) {
			if b.limiter().whole == l {
				all = append(all, b)
			}
		})
		var leased, others []*bucket
		for _, b := range all {
			if !b.change(g.now(), b.limiter().terms.Load().fresh) {
				continue
			}
			if held, _ := b.Look(g.now()); held > 0 {
				leased = append(leased, b)
			} else {
				others = append(others, b)
			}
		}
		g.tell(append(leased, others...))
	}
	return nil
}

// telling is how far apart the calls are that tell Redis of another limit, of all processes together: five times what one
// takes it.
const telling = 60 * time.Microsecond

// tell has Redis hear of the limit of buckets.
func (g *Group) tell(all []*bucket) {
	at := g.now()
	for _, b := range all {
		g.agenda.plan(b, at)
		at += telling * time.Duration(g.fleetOf(b))
	}
}

// Refresh has [Policy].PerKey asked again for key, at its next use: its plan has changed. Without PerKey, and for a key that
// this process does not keep, it does nothing.
func (l *Limiter) Refresh(key string) {
	t, g := l.terms.Load(), l.group
	if t.policy.PerKey == nil || key == "" || len(key) > MaxKeyLength {
		return
	}
	id := l.id(key)
	l.lookUps.forget(id.Key)
	for i := range 1 + len(l.shards) { // they have the numbers behind its own
		id.Policy = l.number + i
		for _, c := range []*local.Cache[bucket, *bucket]{g.cache, g.after} {
			if b, ok := c.Find(id); ok {
				b.change(g.now(), b.Policy().Under(local.Unresolved)) // which tells nobody: the new limit is yet to be found
			}
		}
	}
}

// change has b go on by p, and reports whether Redis is to hear of it.
func (b *bucket) change(now time.Duration, p *local.Policy) (tell bool) {
	folded, effect := b.SetPolicy(now, p)
	if folded = b.counted(folded); folded != (local.Stats{}) {
		b.limiter().keep(b.key(), folded)
	}
	b.apply(now, effect)
	return effect.Tell
}
