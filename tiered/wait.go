package tiered

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
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

	// maxSpread is the longest random delay of a caller that returned tokens. The tokens take that long to arrive in Redis.
	maxSpread = 50 * time.Millisecond

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
	if (ctx == nil || ctx.Err() == nil) && l.takeLeased(key, n) {
		return nil
	}
	return l.For(key).N(n).Wait(ctx)
}

// takeLeased takes n tokens of a key from its lease, unless others wait for the key. It reports false if it took nothing: then
// a wait does the same and more, but takes five times as long.
func (l *Limiter) takeLeased(key string, n int64) bool {
	if l.isZero() || l.mode.Load() != 0 || valid(key, n) != Granted {
		return false
	}
	id := l.id(key)
	if l.group.queues.hasCallers(id) {
		return false
	}
	now := l.group.now()
	b := l.group.find(now, id)
	left, ok, renew := b.Take(now, n)
	if renew {
		b.apply(now, b.Renew(now))
	}
	if ok && n != 1 {
		l.countRequest(outcome{b.Policy(), how{Granted, Local, false}, left, 0}, key, n)
	}
	return ok
}

// Wait waits until all uses are admitted together, and takes their tokens: all or nothing. It returns nil if the tokens
// were taken. It returns ctx.Err() if ctx ended first; then nothing was taken. It returns a *[LimitedError] at once if
// waiting cannot help, as [Limiter.WaitN] does.
//
// It holds no tokens while it waits. With one key it is [Limiter.WaitN]. With several it waits in the queue of the key that
// refused it, first come, first served, and in no other. So a caller that waits for one user's limit does not delay callers
// for another user of the same tenant.
func (u Uses) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	w := wait{uses: u}
	var room [1]part
	w.request = u.request(room[:0])
	defer w.leave()
	err := w.wait(ctx)
	if w.first == nil {
		return err
	}
	return w.first.countEnd(err)
}

// wait is one call of [Uses.Wait].
type wait struct {
	uses    Uses
	request request
	first   *queuedCaller // its first place in a queue, which has its figures; nil before
	place   *queuedCaller // its present place; nil if it is in no queue
}

// wait waits for the tokens. A caller for one key queues before it asks, so that callers are served in their order. One for
// several keys does so only if others wait already.
func (w *wait) wait(ctx context.Context) error {
	for i := range w.request {
		p := &w.request[i]
		if !p.canWait() || !w.alone() && !p.limiter.group.queues.hasCallers(p.limiter.id(p.key)) {
			continue
		}
		if served, err := w.enter(ctx, w.at(ctx, p)); served || err != nil {
			return err
		}
		if err := w.place.sleep(ctx, w.place.limiter.group.queues.idleTime(w.place)); err != nil {
			return err
		}
		break
	}
	for {
		p, d := w.ask(ctx)
		switch {
		case d.Allowed:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case p == nil || !p.waitHelps():
			return d.Err()
		}
		if err := w.sleep(ctx, p); err != nil {
			return err
		}
	}
}

// alone reports whether the caller needs one key only. Then others can take tokens for it, and it for others.
func (w *wait) alone() bool { return len(w.request) == 1 }

// canWait reports whether waiting may help the part.
func (p *part) canWait() bool {
	l := p.limiter
	if l == nil || l.valid(p.key, p.cost) != Granted || p.shadow() {
		return false
	}
	by := l.policyFor(l.id(p.key), p.key)
	return by.Rule == local.ByLimit && p.cost <= by.Cap
}

// ofSeveral marks a request over several keys as one of a caller that waits.
var ofSeveral = &queuedCaller{several: true}

// ask requests all tokens together.
func (w *wait) ask(ctx context.Context) (strictest *part, d Decision) {
	w.request = w.uses.request(w.request[:0])
	caller := w.place
	if !w.alone() {
		caller = ofSeveral
	}
	for i := range w.request {
		if p := &w.request[i]; p.limiter != nil && !p.shadow() {
			p.caller = caller
		}
	}
	if w.place != nil {
		w.place.limiter.group.queues.startAsking(w.place)
	}
	strictest = w.request.decide(ctx, &d)
	switch {
	case w.place == nil:
	case !d.Allowed:
		w.place.limiter.group.queues.stopAsking(w.place)
	case w.alone():
		w.place.handOut(&strictest.taking)
	}
	return strictest, d
}

// sleep waits in the queue of the part p, which refused, until it is w's turn and p's tokens can be there.
func (w *wait) sleep(ctx context.Context, p *part) error {
	c := w.at(ctx, p)
	pause, err := c.pause(p.outcome)
	if err != nil {
		return err
	}
	for i := range w.request { // the fallback refused other parts too
		if other := &w.request[i]; other != p && other.state == refused && other.reason == FallbackSpent {
			w.at(ctx, other).notRefused()
		}
	}
	if w.request.has(taken) { // two callers may have refused each other: they must not collide again
		pause += time.Duration(p.limiter.group.options.uniform() * float64(maxSpread))
	}
	if w.alone() {
		c.reserve(p.outcome, pause)
	}
	w.first.beginWait()
	end := c.limiter.group.now() + pause
	if _, err := w.enter(ctx, c); err != nil {
		return err
	}
	return c.sleep(ctx, end-c.limiter.group.now())
}

// at returns w's place in the queue of a part's key: the present one, or a new one.
func (w *wait) at(ctx context.Context, p *part) *queuedCaller {
	id := p.limiter.id(p.key)
	if c := w.place; c != nil && c.id == id && c.limiter == p.limiter {
		return c
	}
	c := newQueuedCaller(ctx, p.limiter, id, p.key, p.cost)
	c.several = !w.alone()
	if w.first == nil {
		w.first = c
	}
	return c
}

// newQueuedCaller returns a caller that waits for n tokens of a key. It is not in a queue yet.
func newQueuedCaller(ctx context.Context, l *Limiter, id local.ID, key string, n int64) *queuedCaller {
	c := &queuedCaller{limiter: l, id: id, key: key, cost: n, until: forever}
	if deadline, ok := ctx.Deadline(); ok {
		c.until = l.group.now() + time.Until(deadline)
	}
	return c
}

// enter waits for the turn of a place, unless w has it. It leaves w's previous place first. It reports true if w was served
// while it waited for its turn.
func (w *wait) enter(ctx context.Context, c *queuedCaller) (wasServed bool, err error) {
	if w.place == c {
		return false, nil
	}
	w.leave()
	c.since = w.first.since // it counts as one wait
	switch e := c.limiter.group.queues.enter(ctx, c); e.kind {
	case gaveUp:
		return false, ctx.Err()
	case outOfTime:
		return false, c.late(e.retry)
	case served:
		c.served()
		return true, nil
	}
	w.place = c
	return false, nil
}

// leave leaves w's place, if it has one.
func (w *wait) leave() {
	if c := w.place; c != nil {
		c.release()
		c.limiter.group.queues.leave(c)
		w.place = nil
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
	if d <= 0 {
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
	c.limiter.requests.Add(c.key, report.FallbackSpent, c.cost, -1)
}

// bucket returns the key's bucket.
func (c *queuedCaller) bucket() *bucket {
	g := c.limiter.group
	return g.find(g.now(), c.limiter.id(c.key))
}

// served counts that c has its token, which came with those of the first in the queue, and reports it to the hook.
func (c *queuedCaller) served() {
	l := c.limiter
	l.requests.Add(c.key, report.Granted, c.cost, 1)
	l.requests.Add(c.key, report.GrantedByRedis, c.cost, 1)
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

// beginWait counts that c has to wait, once.
func (c *queuedCaller) beginWait() {
	if c.since == 0 {
		c.since = max(c.limiter.group.now(), 1)
		c.limiter.waits.Begin()
	}
}

// countEnd counts and reports the end of a wait, and returns err. A caller that was admitted or refused at once, as by
// Allow, did not wait. A caller that left because it could not be served in time gave up.
func (c *queuedCaller) countEnd(err error) error {
	var e *LimitedError
	if c.since == 0 && (err == nil || errors.As(err, &e) && !e.late) {
		return err
	}
	l := c.limiter
	end := WaitEvent{Policy: l.name, Key: c.key, Tokens: c.cost, Err: err}
	if c.since > 0 {
		end.Time = l.group.now() - c.since
	}
	end.Waiting = l.waits.End(end.Time, c.since > 0, err == nil)
	l.group.trace.wait(end)
	return err
}
