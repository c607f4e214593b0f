package tiered

import (
	"context"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

const (
	// maxSleep is the longest that a waiter sleeps. It is longer than a denial is believed, which is 5 s, so the waiter
	// asks Redis again.
	maxSleep = 5500 * time.Millisecond

	// maxSleepFallback is the same while Redis does not answer. It may be back, and full. Asking again makes no call
	// unless a probe is due.
	maxSleepFallback = time.Second

	// minIdle is the shortest time for which a process leaves what Redis has to other processes after a grant that was
	// short. Tokens that come faster are asked for together: all waiters of a key in a process make at most 200 calls
	// per second.
	minIdle = 5 * time.Millisecond

	// forever is the deadline of a caller that has none.
	forever = time.Duration(math.MaxInt64)
)

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until n tokens of key are admitted, first come, first served within this process: meanwhile the tokens
// that come are kept for those who wait, and other calls for the key are refused. If other processes take the tokens all
// the same, that is so for half of the time at most.
//
// WaitN returns nil if the tokens were taken. It returns ctx.Err() if ctx ended first; then nothing was taken. It returns
// a *[LimitedError] at once if waiting cannot help: the key or the cost is invalid, the cost exceeds the burst (or, while
// Redis does not answer, the fallback's), Redis does not answer and the policy fails closed, or the tokens cannot be there
// before the deadline of ctx. In the error of the last case errors.Is finds [ErrLimited] and context.DeadlineExceeded.
//
// WaitN estimates when the tokens will be there as if this were the only process: by the level last seen in Redis, the
// refill, and what the waiters in front want. It ignores that other processes may return tokens sooner, or take them
// first. A waiter that cannot be served in time leaves at once, and delays nobody.
//
// A waiter sleeps until a reply comes or until tokens can be there. The first waiter asks for those behind it too.
// Nobody announces tokens that others return, a Reset, or the end of an outage. So the first waiter also asks after 5.5
// s, or after 1 s while Redis does not answer.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if r := l.valid(key, n); r != Granted {
		return l.refusal(key, n, r).Err()
	}
	id := l.id(key)
	if p := l.policyFor(id, key); p.Rule != local.ByLimit || n > p.Cap { // waiting does not help
		return l.AllowN(ctx, key, n).Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.mode.Load()&modeShadow != 0 { // no need to wait
		return l.AllowN(ctx, key, n).Err()
	}
	c := l.newQueuedCaller(ctx, id, key, n)
	return c.countEnd(c.wait(ctx))
}

// newQueuedCaller returns a caller that waits for n tokens of a key. It is not in a queue yet.
func (l *Limiter) newQueuedCaller(ctx context.Context, id local.ID, key string, n int64) *queuedCaller {
	c := &queuedCaller{limiter: l, id: id, key: key, cost: n, until: forever}
	if deadline, ok := ctx.Deadline(); ok {
		c.until = l.group.now() + time.Until(deadline)
	}
	return c
}

// wait waits for the tokens.
func (c *queuedCaller) wait(ctx context.Context) error {
	turns := &c.limiter.group.queues
	switch e := turns.enter(ctx, c); e.kind {
	case gaveUp:
		return ctx.Err()
	case served:
		c.limiter.addRequest(c.key, kind(Granted), c.cost, 1)
		c.limiter.addRequest(c.key, grantedByRedis, c.cost, 1)
		c.reportServed()
		return nil
	case outOfTime:
		return c.late(e.retry)
	}
	defer turns.leave(c)
	defer c.release()
	for pause := turns.idleTime(c); ; {
		if err := c.sleep(ctx, pause); err != nil {
			return err
		}
		t := taking{limiter: c.limiter, key: c.key, cost: c.cost, caller: c}
		turns.startAsking(c)
		o, b, now := c.limiter.take(ctx, c.key, c.cost, &t)
		if o.allowed() {
			c.handOut(&t)
			return nil
		}
		turns.stopAsking(c)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !o.waitHelps():
			var d Decision
			o.write(&d, c.key, c.cost, b, now)
			return d.Err()
		}
		var err error
		if pause, err = c.pause(o); err != nil {
			return err
		}
		c.reserve(o, pause)
	}
}

// reserve keeps the tokens that come to this process for c, the first in the queue, which was refused and sleeps for
// pause, and for those behind it. Other calls of this process for the key would take one token after the other, and c
// would never get many together.
//
// Other processes may take the tokens all the same. If less than half of the wait is over when it should be over, then
// c reserves nothing for as long again: its process is not to refuse all others for nothing. If it turns out more than
// twice as long, too little was known.
func (c *queuedCaller) reserve(o outcome, pause time.Duration) {
	now := c.limiter.group.now()
	if now >= c.due {
		c.yields = !c.yields && c.due > 0 && c.lack/2 < o.retry && o.retry < 2*c.lack
		c.due, c.lack = now+o.retry, o.retry
	}
	if c.yields || o.reason != Limited {
		c.release()
		return
	}
	b := c.bucket()
	if c.reserved != b {
		c.release()
	}
	c.reserved = b
	b.Reserve(c.limiter.group.queues.want(c), now+pause)
}

// release ends what reserve began.
func (c *queuedCaller) release() {
	if c.reserved != nil {
		c.reserved.Reserve(0, 0)
		c.reserved = nil
	}
}

// sleep sleeps for d, or until ctx ends.
func (c *queuedCaller) sleep(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	c.beginWait()
	timer := time.NewTimer(d)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		timer.Stop()
		return ctx.Err()
	}
}

// pause returns how long c, the first in the queue, sleeps after it was refused. It returns an error if the deadline of
// c is sooner.
func (c *queuedCaller) pause(o outcome) (time.Duration, error) {
	g := c.limiter.group
	left := c.until - g.now()
	if o.retry > left {
		return 0, c.outOfTime(o)
	}
	if o.reason == FallbackSpent {
		c.notRefused()
		return min(o.retry, maxSleepFallback), nil
	}
	g.queues.dropLate(c)
	pause := o.retry + c.bucket().Yield(c.active)
	if pause > left {
		pause = o.retry
	}
	return min(pause, maxSleep), nil
}

// outOfTime returns the error of a caller that was refused and cannot be served in time. It counts as refused now.
func (c *queuedCaller) outOfTime(o outcome) error {
	l, b := c.limiter, c.bucket()
	if o.reason == Limited {
		b.CountRefused(c.cost)
		l.countRequest(o, c.key, c.cost)
	}
	e := &LimitedError{late: true}
	l.tell(&e.Decision, o, c.key, c.cost, b, l.group.now())
	return e
}

// late is outOfTime of a caller that was never first. retry is the time until it could be served.
func (c *queuedCaller) late(retry time.Duration) error {
	b := c.bucket()
	return c.outOfTime(outcome{b.Policy(), how{Limited, Local, false}, b.seenLeft(c.limiter.group.now()), retry})
}

// notRefused undoes the count of a refusal by the fallback, because c goes on waiting.
func (c *queuedCaller) notRefused() {
	for !c.bucket().FallbackNotSpent(c.cost) { // the bucket was evicted meanwhile
	}
	c.limiter.addRequest(c.key, kind(FallbackSpent), c.cost, -1)
}

// bucket returns the key's bucket.
func (c *queuedCaller) bucket() *bucket {
	g := c.limiter.group
	return g.find(g.now(), c.limiter.id(c.key))
}

// reportServed reports to the hook that c has its token. The token came with those of the first in the queue.
func (c *queuedCaller) reportServed() {
	l := c.limiter
	if l.mode.Load()&modeTraced == 0 {
		return
	}
	var d Decision
	b, now := c.bucket(), l.group.now()
	l.tell(&d, outcome{b.Policy(), how{Granted, Remote, false}, b.seenLeft(now), 0}, c.key, c.cost, b, now)
}

// handOut gives the tokens that came with those of c to the callers behind it. What they do not take goes back.
func (c *queuedCaller) handOut(t *taking) {
	if c.more == 0 {
		return
	}
	g := c.limiter.group
	if left := g.queues.handOut(c, c.more); left > 0 {
		back := *t
		back.cost, back.source = left, local.FromRedis
		back.correctCost(0)
	}
}
