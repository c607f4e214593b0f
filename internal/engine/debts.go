package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// What a fail mode admits is charged by the next call of its key. If the limit is slow, such as a
// quota, and others use the key meanwhile, a process that is not asked again tells of it by itself.
// It does not hurry, because there may be as many such keys as MaxKeys when Redis is back.
const (
	debtDelay      = 5 * time.Second // until a debt is told of; half of it to one and a half
	debtsPerSecond = 500
)

// planToTell plans to tell of the bucket's debt. Its key decides when, so that not all are due at
// one time.
func (g *Group) planToTell(now time.Duration, b *Bucket) {
	g.schedule.add(b, now+debtDelay/2+time.Duration(g.Cache.Hash(b.ID())%uint64(debtDelay)))
}

// tellDebt has Redis told of the bucket's debt if it is one to tell of. If that cannot be now, it
// is tried again. A node that is just back is left alone until it has answered some call, or for
// 5 s.
func (b *Bucket) tellDebt(now time.Duration) {
	g := b.Limiter().Group
	n := b.node.Load()
	down := n != nil && (n.State() != failover.Closed || now < nodeOf(n).Doubted())
	owes, tell := b.StillOwes(down)
	if !owes {
		return
	}
	if tell && g.debts.AllowN(g.Base.Add(now), 1) {
		b.apply(now, b.TellDebt(now))
	}
	g.planToTell(now, b)
}
