package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

const (
	// maxSleep is the longest that a waiter sleeps. It is longer than a denial is believed, which
	// is 5 s, so the waiter asks Redis again.
	maxSleep = 5500 * time.Millisecond

	// maxSleepFallback is the same while Redis does not answer. It may be back, and full. Asking
	// again makes no call unless a probe is due.
	maxSleepFallback = time.Second

	// maxSpread is the longest random delay of a caller that returned tokens. The tokens take that
	// long to arrive in Redis.
	maxSpread = 50 * time.Millisecond
)

// TakeLeased takes n tokens of a key from its lease, unless others wait for the key. It reports
// false if it took nothing: then a wait does the same and more, but takes five times as long.
func (l *Limiter) TakeLeased(key string, n int64) bool {
	if l.mode.Load() != 0 || Valid(key, n) != local.Granted {
		return false
	}
	id := l.ID(key)
	if l.Group.queues.hasCallers(id) {
		return false
	}
	now := l.Group.Now()
	b := l.Group.find(now, id)
	left, ok, renew := b.Hot().Take(now, n)
	if renew {
		b.apply(now, b.Renew(now))
	}
	if ok && n != 1 {
		l.countRequest(local.Decided(b.Policy(), local.Granted, local.Local, left, 0), key, n)
	}
	return ok
}

// Wait waits until all parts are admitted together, and takes their tokens: all or nothing. It
// returns nil if the tokens were taken, ctx.Err() if ctx ended first, and a *[Refusal] if waiting
// cannot help.
func (r Request) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := wait{request: r}
	defer w.leave()
	err := w.wait(ctx)
	if w.first == nil {
		return err
	}
	return w.first.countEnd(err)
}

// Refusal is the error of a wait that cannot help.
type Refusal struct {
	Told
	Late bool // the wait could not end before its deadline
}

// Error is for the engine's own errors. Package tiered makes a LimitedError of it.
func (r *Refusal) Error() string { return "refused" }

// wait is one call of [Request.Wait].
type wait struct {
	request Request
	first   *queuedCaller // its first place in a queue, which has its figures; nil before
	place   *queuedCaller // its present place; nil if it is in no queue
}

// wait waits for the tokens. A caller for one key queues before it asks, so that callers are served
// in their order. One for several keys does so only if others wait already.
func (w *wait) wait(ctx context.Context) error {
	for i := range w.request {
		p := &w.request[i]
		if !p.canWait() || !w.alone() && !p.Limiter.Group.queues.hasCallers(p.Limiter.ID(p.Key)) {
			continue
		}
		if served, err := w.enter(ctx, w.at(ctx, p)); served || err != nil {
			return err
		}
		if err := w.place.sleep(ctx, w.place.limiter.Group.queues.idleTime(w.place)); err != nil {
			return err
		}
		break
	}
	for {
		p := w.ask(ctx)
		switch {
		case p != nil && p.Allowed():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case p == nil:
			return new(Refusal)
		case !p.WaitHelps():
			return &Refusal{Told: p.Told()}
		}
		if err := w.sleep(ctx, p); err != nil {
			return err
		}
	}
}

// alone reports whether the caller needs one key only. Then others can take tokens for it, and it
// for others.
func (w *wait) alone() bool { return len(w.request) == 1 }

// canWait reports whether waiting may help the part.
func (p *Part) canWait() bool {
	l := p.Limiter
	if l == nil || Valid(p.Key, p.Cost) != local.Granted || p.shadow() {
		return false
	}
	if c := p.carried(); c != nil {
		return c.Limit.Rule() == local.ByLimit && p.Cost <= c.Most()
	}
	by := l.PolicyFor(l.ID(p.Key), p.Key)
	return by.Rule == local.ByLimit && p.Cost <= by.Cap
}

// ofSeveral marks a request over several keys as one of a caller that waits.
var ofSeveral = &queuedCaller{several: true}

// ask requests all tokens together.
func (w *wait) ask(ctx context.Context) (strictest *Part) {
	for i := range w.request { // anew
		p := &w.request[i]
		*p = Part{Tokens: Tokens{Limiter: p.Limiter, Key: p.Key, Cost: p.Cost}, limit: p.carried()}
	}
	caller := w.place
	if !w.alone() {
		caller = ofSeveral
	}
	for i := range w.request {
		if p := &w.request[i]; p.Limiter != nil && !p.shadow() {
			p.caller = caller
		}
	}
	if w.place != nil {
		w.place.limiter.Group.queues.startAsking(w.place)
	}
	strictest = w.request.Decide(ctx)
	w.request.End()
	switch {
	case w.place == nil:
	case !strictest.Allowed():
		w.place.limiter.Group.queues.stopAsking(w.place)
	case w.alone():
		w.place.handOut(&strictest.Tokens)
	}
	return strictest
}

// sleep waits in the queue of the part p, which refused, until it is w's turn and p's tokens can be
// there.
func (w *wait) sleep(ctx context.Context, p *Part) error {
	c := w.at(ctx, p)
	pause, err := c.pause(p.Outcome)
	if err != nil {
		return err
	}
	for i := range w.request { // the fallback refused other parts too
		if other := &w.request[i]; other != p && other.state == refused && other.Reason == local.FallbackSpent {
			w.at(ctx, other).notRefused()
		}
	}
	if w.request.has(taken) { // two callers may have refused each other: they must not collide again
		pause += time.Duration(p.Limiter.Group.Uniform() * float64(maxSpread))
	}
	if w.alone() && w.place == c {
		c.reserve(p.Outcome, pause)
	}
	w.first.beginWait()
	end := c.limiter.Group.Now() + pause
	if _, err := w.enter(ctx, c); err != nil {
		return err
	}
	return c.sleep(ctx, end-c.limiter.Group.Now())
}

// at returns w's place in the queue of a part's key: the present one, or a new one.
func (w *wait) at(ctx context.Context, p *Part) *queuedCaller {
	id := p.Limiter.ID(p.Key)
	if c := w.place; c != nil && c.id == id && c.limiter == p.Limiter {
		return c
	}
	c := newQueuedCaller(ctx, p.Limiter, id, p.Key, p.Cost)
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
		c.until = l.Group.Now() + time.Until(deadline)
	}
	return c
}

// enter waits for the turn of a place, unless w has it. It leaves w's previous place first. It
// reports true if w was served while it waited for its turn.
func (w *wait) enter(ctx context.Context, c *queuedCaller) (wasServed bool, err error) {
	if w.place == c {
		return false, nil
	}
	w.leave()
	c.since = w.first.since // it counts as one wait
	switch e := c.limiter.Group.queues.enter(ctx, c); e.kind {
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
		c.limiter.Group.queues.leave(c)
		w.place = nil
	}
}

// reserve keeps the tokens that come to this process for c, the first in the queue, which was
// refused and sleeps for pause, and for those behind it. Other calls of this process for the key
// would take one token after the other, and c would never get many together.
//
// Other processes may still take the tokens. If the wait should be over and less than half of it
// is, c reserves nothing for as long again, so that its process does not refuse all other callers
// in vain. If the wait turns out more than twice as long, too little was known.
func (c *queuedCaller) reserve(o local.Outcome, pause time.Duration) {
	now := c.limiter.Group.Now()
	if now >= c.due {
		c.yields = !c.yields && c.due > 0 && c.lack/2 < o.Retry && o.Retry < 2*c.lack
		c.due, c.lack = now+o.Retry, o.Retry
	}
	if c.yields || o.Reason != local.Limited {
		c.release()
		return
	}
	b := c.bucket()
	if c.reserved != b {
		c.release()
	}
	c.reserved = b
	b.Reserve(c.limiter.Group.queues.want(c), now+pause)
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

// pause returns how long c, the first in the queue, sleeps after it was refused. It returns an
// error if the deadline of c is sooner.
func (c *queuedCaller) pause(o local.Outcome) (time.Duration, error) {
	g := c.limiter.Group
	left := c.until - g.Now()
	if o.Retry > left {
		return 0, c.outOfTime(o)
	}
	if o.Reason == local.FallbackSpent {
		c.notRefused()
		return min(o.Retry, maxSleepFallback), nil
	}
	g.queues.dropLate(c)
	pause := o.Retry + c.bucket().Hot().Yield(c.active)
	if pause > left {
		pause = o.Retry
	}
	return min(pause, maxSleep), nil
}

// outOfTime returns the error of a caller that was refused and cannot be served in time. It counts
// as refused now.
func (c *queuedCaller) outOfTime(o local.Outcome) error {
	l, b := c.limiter, c.bucket()
	if o.Reason == local.Limited {
		b.Hot().CountRefused(c.cost)
		l.countRequest(o, c.key, c.cost)
	}
	e := &Refusal{Told{Outcome: o, Key: c.key, Cost: c.cost, Bucket: b, Now: l.Group.Now()}, true}
	l.observe(&e.Told)
	return e
}

// late is outOfTime of a caller that was never first. retry is the time until it could be served.
func (c *queuedCaller) late(retry time.Duration) error {
	b := c.bucket()
	return c.outOfTime(local.Decided(b.Policy(), local.Limited, local.Local, b.seenLeft(c.limiter.Group.Now()), retry))
}

// notRefused undoes the count of a refusal by the fallback, because c goes on waiting.
func (c *queuedCaller) notRefused() {
	for !c.bucket().FallbackNotSpent(c.cost) { // the bucket was evicted meanwhile
	}
	c.limiter.Requests.Add(c.key, report.FallbackSpent, c.cost, -1)
}

// served counts that c has its token, which came with those of the first in the queue, and reports
// it to the hook.
func (c *queuedCaller) served() {
	l := c.limiter
	l.Requests.Add(c.key, report.Granted, c.cost, 1)
	l.Requests.Add(c.key, report.GrantedByRedis, c.cost, 1)
	if l.mode.Load()&ModeTraced == 0 {
		return
	}
	b, now := c.bucket(), l.Group.Now()
	o := local.Decided(b.Policy(), local.Granted, local.Remote, b.seenLeft(now), 0)
	l.observe(&Told{Outcome: o, Key: c.key, Cost: c.cost, Bucket: b, Now: now})
}

// handOut gives the tokens that came with those of c to the callers behind it. What they do not
// take goes back.
func (c *queuedCaller) handOut(t *Tokens) {
	if c.more == 0 {
		return
	}
	g := c.limiter.Group
	if left := g.queues.handOut(c, c.more); left > 0 {
		back := *t
		back.Cost = left
		back.correctCost(0)
	}
}

// countEnd counts and reports the end of a wait, and returns err. A caller that was admitted or
// refused at once, as by Allow, did not wait. A caller that left because it could not be served in
// time gave up.
func (c *queuedCaller) countEnd(err error) error {
	var e *Refusal
	if c.since == 0 && (err == nil || errors.As(err, &e) && !e.Late) {
		return err
	}
	l := c.limiter
	end := WaitEnd{Limiter: l, Key: c.key, Cost: c.cost, Err: err}
	if c.since > 0 {
		end.Time = l.Group.Now() - c.since
	}
	end.Waiting = l.Waits.End(end.Time, c.since > 0, err == nil)
	l.Group.Hooks.Waited(end)
	return err
}
