package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// dryRun is a [dispatch.Job] that asks Redis what it would answer a request of n tokens.
type dryRun struct {
	bucket *Bucket
	n      int64                       // 0 asks nothing, and tells Redis the bucket's limit
	by     func(local.Call) local.Call // makes it a run by other limits; nil for those of the bucket
	until  time.Duration               // the caller stops waiting then
	call   local.Call                  // as it was sent
	reply  chan remote.Result          // capacity 1
	told   bool                        // what the process knows may have changed, because it has told Redis news
}

var errNotAsked = errors.New("tiered: Redis was not asked")

// dryRun asks Redis what it would answer a request of n tokens, and does not wait. The answer
// counts until a time.
func (b *Bucket) dryRun(n int64, by func(local.Call) local.Call, until time.Duration) *dryRun {
	g, name := b.Limiter().Group, b.name()
	j := &dryRun{bucket: b, n: n, by: by, until: until, reply: make(chan remote.Result, 1)}
	node := g.Dispatch.Node(g.Store.Node(name))
	switch {
	case g.Closed.Load():
		j.reply <- remote.Result{Err: ErrClosed}
	case node.State() != failover.Closed: // it cannot be a probe: it writes nothing
		j.reply <- remote.Result{Err: node.WhyOpen()}
	default:
		node.Push(dispatch.Pending{Job: j, Bucket: name})
	}
	return j
}

// wait returns the call as it was sent, and Redis' answer or an error. A call that came too late is
// made again, because the node's clock, or the bucket's, is known better now.
//
// A dry run tells Redis nothing. So if the process has news for Redis, it tells them first, because
// otherwise the tokens would not come when the answer says. Then the dry run is made again.
func (j *dryRun) wait(ctx context.Context) (local.Call, remote.Result) {
	again := func() *dryRun { return j.bucket.dryRun(j.n, j.by, j.until) }
	c, r := j.answer(ctx)
	if r.Err == nil && r.Reply.Code == lua.Late {
		j.bucket.Tell(r.Reply.Stamp)
		c, r = again().answer(ctx)
	}
	if r.Err == nil && r.Reply.Grant == 0 && r.Reply.Flags&lua.News != 0 {
		j.told = true
		j.tellNews(ctx)
		if next, told := again().answer(ctx); told.Err == nil { // else the first answer has to do
			c, r = next, told
		}
	}
	if r.Err == nil && r.Reply.Code > lua.Denied {
		r.Err = errNotAsked
	}
	return c, r
}

// tellNews tells Redis what the process has spent of the key and owes, or else its limit, and waits
// until that is done.
func (j *dryRun) tellNews(ctx context.Context) {
	b := j.bucket
	e, reports := b.Report(b.Limiter().Group.Now())
	if !reports {
		b.dryRun(0, nil, j.until).answer(ctx)
		return
	}
	if !e.Send { // it is on its way
		b.apply(b.Limiter().Group.Now(), e)
		return
	}
	to, told := b.route(), make(chan struct{})
	to.Job = awaited{b, told}
	to.Node.Push(to.Pending)
	ctx, cancel := context.WithTimeout(ctx, j.until-b.Limiter().Group.Now())
	defer cancel()
	select {
	case <-told:
	case <-ctx.Done():
	}
}

// awaited is the next call of a bucket for one who waits until it has ended.
type awaited struct {
	*Bucket
	told chan struct{}
}

// Compose implements [dispatch.Job].
func (r awaited) Compose(n *dispatch.Node, now time.Duration, name string) (lua.Call, bool) {
	c, ok := r.Bucket.Compose(n, now, name)
	if !ok {
		close(r.told)
	}
	return c, ok
}

// Finish implements [dispatch.Job].
func (r awaited) Finish(n *dispatch.Node, now time.Duration, c *lua.Call, sent time.Duration, res remote.Result) {
	r.Bucket.Finish(n, now, c, sent, res)
	close(r.told)
}

// Abandon implements [dispatch.Job].
func (r awaited) Abandon(n *dispatch.Node, now time.Duration) {
	r.Bucket.Abandon(n, now)
	close(r.told)
}

func (j *dryRun) answer(ctx context.Context) (local.Call, remote.Result) {
	ctx, cancel := context.WithTimeout(ctx, j.until-j.bucket.Limiter().Group.Now())
	defer cancel()
	select {
	case r := <-j.reply:
		return j.call, r
	case <-ctx.Done():
		return local.Call{}, remote.Result{Err: ctx.Err()}
	}
}

// Compose implements [dispatch.Job].
func (j *dryRun) Compose(n *dispatch.Node, now time.Duration, name string) (lua.Call, bool) {
	if now >= j.until {
		return lua.Call{}, false
	}
	conditions := j.bucket.conditions(n, now, name, j.bucket.Limiter().Group.seq.Load())
	if j.n == 0 {
		return j.bucket.Policy().Terms(conditions), true
	}
	c, asks := j.bucket.DryRun(now, j.n, conditions)
	if !asks {
		j.reply <- remote.Result{Err: errNotAsked}
		return lua.Call{}, false
	}
	if j.by != nil {
		c = j.by(c)
	}
	j.call = c
	return c.Call, true
}

// Abandon implements [dispatch.Job].
func (j *dryRun) Abandon(n *dispatch.Node, _ time.Duration) {
	j.reply <- remote.Result{Err: n.WhyOpen()}
}

// Finish implements [dispatch.Job].
func (j *dryRun) Finish(_ *dispatch.Node, _ time.Duration, _ *lua.Call, _ time.Duration, r remote.Result) {
	j.reply <- r
}
