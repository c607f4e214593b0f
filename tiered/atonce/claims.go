package atonce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/places"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// This file sends claims to Redis, and decides when. l.mu is held where nothing else is said.

// run looks at keys when they are due, until ctx ends.
func (l *Limiter) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l.mu.Lock()
		pause := l.look(l.group.Now())
		l.mu.Unlock()
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// watch has a key looked at until it is at rest.
func (l *Limiter) watch(k *key) {
	if len(l.watched) == 0 {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	l.watched[k] = struct{}{}
}

// look looks at all keys that are watched, and returns how long to pause.
func (l *Limiter) look(now time.Duration) time.Duration {
	for k := range l.watched {
		due, rest := k.Look(now)
		if (due || k.queue.Len() > 0 && now >= k.askAt) && now >= k.retryAt {
			l.push(k)
		}
		switch {
		case k.queue.Len() > 0 || now < k.fullUntil || k.pending:
		case k.Empty():
			delete(l.watched, k)
			delete(l.keys, k.name)
		case rest:
			delete(l.watched, k)
		}
	}
	p := l.policy.Load()
	if now >= l.renewedAt+p.period() {
		l.renewedAt = now
		l.renew(p, now)
	}
	switch {
	case len(l.watched) > 0:
		return places.Tick
	case len(l.keys) > 0:
		return max(places.Tick, l.renewedAt+p.period()-now)
	}
	return time.Hour
}

// renew states all that was not stated lately, and takes back what runs for too long.
func (l *Limiter) renew(p *Policy, now time.Duration) {
	var lost []*Place
	for _, k := range l.keys {
		for at := k.running.First(); at != nil && p.MaxRun > 0 && now-at.Member.at > p.MaxRun; at = k.running.First() {
			lost = append(lost, at.Member)
			l.end(at.Member)
			l.settle(k, now)
		}
		if now-k.Sent() >= p.period()/2 {
			l.push(k)
		}
		l.watch(k)
	}
	l.lose(lost)
}

// guarded calls a function of the user. If it panics, the log has a line, and the Limiter goes on.
func (l *Limiter) guarded(do func()) {
	defer func() {
		if v := recover(); v != nil {
			l.group.Journal.Tally("hook", 1, slog.LevelError, "a hook panicked",
				"policy", l.policy.Load().Name, "panic", fmt.Sprintf("%T", v))
		}
	}()
	do()
}

// lose counts and reports lost places.
func (l *Limiter) lose(all []*Place) {
	all = slices.DeleteFunc(all, func(p *Place) bool { return p.lost })
	for _, p := range all {
		if p.lost = true; p.lose != nil {
			p.lose(ErrLost)
		}
		l.stats.Lost += p.n
	}
	if hook := l.policy.Load().Lost; hook != nil && len(all) > 0 {
		l.tasks.Go(func() {
			for _, p := range all {
				l.guarded(func() { hook(p.asked, int(p.n)) })
			}
		})
	}
}

// push has a claim of the key sent.
func (l *Limiter) push(k *key) {
	if id, o := l.post(k); o != nil {
		l.startSender(id, o)
	}
}

// pushSoon has a claim of the key sent with the next one of another key, or after a moment.
func (l *Limiter) pushSoon(k *key) {
	if id, o := l.post(k); o != nil && !o.soon {
		o.soon = true
		time.AfterFunc(places.Tick/4, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if o.soon = false; !l.ended {
				l.startSender(id, o)
			}
		})
	}
}

// post puts a key into the outbox of its node, unless a claim of it is under way.
func (l *Limiter) post(k *key) (remote.Node, *outbox) {
	if k.UnderWay() || l.ended {
		return "", nil
	}
	id := l.group.Store.Node(k.bucket)
	o := l.outboxes[id]
	if o == nil {
		o = new(outbox)
		l.outboxes[id] = o
	}
	if !k.pending {
		k.pending = true
		o.due = append(o.due, k)
	}
	return id, o
}

func (l *Limiter) startSender(id remote.Node, o *outbox) {
	if len(o.due) > 0 && o.senders < maxSenders {
		o.senders++
		l.tasks.Go(func() { l.send(id, o) })
	}
}

// send sends what is due at a node until nothing is. The lock is not held.
func (l *Limiter) send(id remote.Node, o *outbox) {
	for {
		l.mu.Lock()
		n := min(len(o.due), dispatch.MaxClaims)
		if n == 0 {
			o.senders--
			l.settled()
			l.mu.Unlock()
			return
		}
		due := slices.Clone(o.due[:n])
		o.due = slices.Delete(o.due, 0, n)
		l.mu.Unlock()
		if id == "" {
			l.find(due)
			continue
		}
		if l.claim(l.group.Dispatch.Node(id), id, o, due) {
			return
		}
	}
}

// find finds the nodes of keys. One answer teaches all of them. The lock is not held.
func (l *Limiter) find(due []*key) {
	ctx, cancel := context.WithTimeout(context.Background(), l.group.Budget)
	defer cancel()
	_, err := l.group.Dispatch.Find(ctx, due[0].bucket)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range due {
		k.pending = false
		if err == nil {
			l.push(k)
		} else {
			l.unanswered(k, l.group.Now())
		}
	}
}

// claim sends one claim of each key. It reports that the sender was replaced, because there was no
// answer in time. The lock is not held.
func (l *Limiter) claim(node *dispatch.Node, id remote.Node, o *outbox, due []*key) (replaced bool) {
	l.group.WatchClock(l.group.Now())
	l.mu.Lock()
	now := l.group.Now()
	c := &lua.Claims{Process: fmt.Sprintf("%s.%x", *l.group.Lease.Load(), l.number)}
	for _, k := range due {
		l.seq++
		k.pending = false
		var want, need int64
		waits := false
		if first := k.queue.First(); first != nil {
			k.Places = first.Member.most
		}
		for at := k.queue.First(); at != nil; at = at.Next() {
			waits = waits || at.Member.waits
			if want += at.Member.n; need == 0 {
				need = at.Member.n
			}
			k.asked = at.Member.number
		}
		one := k.Claim(now, c.Process, l.seq, min(want, lua.MostPlaces), need, waits)
		one.Bucket = k.bucket
		c.Each = append(c.Each, one)
	}
	l.stats.Calls++
	l.mu.Unlock()
	done := make(chan struct{})
	node.Claim(c, func(results []remote.ClaimResult, err error) {
		defer close(done)
		l.mu.Lock()
		defer l.mu.Unlock()
		now := l.group.Now()
		replaced = err == dispatch.ErrNoAnswer //nolint:errorlint // it is not wrapped
		for i, k := range due {
			switch {
			case err == nil && results[i].Err == nil:
				l.accept(k, c.Each[i].Seq, now, results[i].Reply)
			case k.Fail(c.Each[i].Seq, err == nil || replaced):
				l.unanswered(k, now)
			}
		}
		if replaced {
			o.senders--
			l.startSender(id, o)
			l.settled()
		}
	})
	<-done // the node may be about to give up
	return replaced
}

// unanswered says that a claim of the key came to nothing.
func (l *Limiter) unanswered(k *key, now time.Duration) {
	k.failing = true
	k.retryAt = now + 10*places.Poll
	l.failed(k, now)
	l.watch(k)
}

// accept takes the reply to a claim.
func (l *Limiter) accept(k *key, seq int64, now time.Duration, r lua.ClaimReply) {
	sent := k.Sent()
	lost, ok := k.Accept(seq, r)
	if !ok {
		return
	}
	if r.Code != lua.ClaimDone { // somebody else uses this name
		l.stats.Damaged++
		l.unanswered(k, now)
		return
	}
	k.failing = false
	k.askAt = now + places.Poll/2 + time.Duration(l.group.Uniform()*float64(places.Poll/2))
	if lost {
		var all []*Place
		for at := k.running.First(); at != nil && at.Member.at < sent; at = at.Next() {
			all = append(all, at.Member)
		}
		l.lose(all)
	}
	if p := l.policy.Load(); r.Flags&lua.DifferentPlaces != 0 && !l.told && p.Plans == nil && p.PerKey == nil {
		l.told = true
		l.group.Journal.Line(slog.LevelInfo, "another process has another number of places for a key: the larger number may run",
			"policy", p.Name, "places", k.Places)
	}
	l.serve(k, now)
	for at := k.queue.First(); at != nil; {
		w := at.Member
		at = at.Next()
		switch {
		case w.number > k.asked: // it came since
			k.askAt = now
		case !w.waits:
			if now >= k.fullUntil || w.n < k.fullFor {
				k.fullFor = w.n
			}
			k.fullUntil, k.fullOf = now+places.Tick/4, k.Places
			l.stats.Refused++
			l.answer(k, w, nil, ErrFull)
		}
	}
	if l.closed && k.Idle() > 0 { // it was under way when close gave the others back
		k.Drain()
		l.push(k)
	}
	if last := k.queue.First(); last != nil && k.askAt == now || k.Yields() {
		l.push(k)
	}
	l.watch(k)
}

var errForeign = errors.New("the key in Redis is not one of places")

// Peek asks for the plan of the request; see [Limiter.Peek].
func (u Use) Peek(ctx context.Context) (Usage, error) {
	l := u.limiter
	if l == nil || l.group == nil || u.key == "" {
		return Usage{}, fmt.Errorf("%w: no key, or a zero Limiter", ErrInvalid)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	p := l.policy.Load()
	most := p.places(u.key, u.plan)
	ctx, cancel := context.WithTimeout(ctx, l.group.Budget)
	defer cancel()
	bucket := l.group.Store.PlacesName(p.Name, remote.Digest(u.key))
	node, err := l.group.Dispatch.Find(ctx, bucket)
	if err != nil {
		return Usage{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	answered := make(chan remote.ClaimResult, 1)
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.tasks.Go(func() {
			node.Claim(&lua.Claims{Process: *l.group.Lease.Load(), Each: []lua.Claim{{
				Bucket: bucket, Places: int64(most), Life: p.Life.Microseconds(),
			}}}, func(results []remote.ClaimResult, err error) {
				if err != nil {
					results = []remote.ClaimResult{{Err: err}}
				}
				answered <- results[0]
			})
		})
	}
	l.mu.Unlock()
	if closed {
		return Usage{}, ErrClosed
	}
	a := remote.ClaimResult{}
	select {
	case a = <-answered:
	case <-ctx.Done():
		a.Err = ctx.Err()
	}
	if a.Err == nil && a.Reply.Code != lua.ClaimDone {
		a.Err = errForeign
	}
	if a.Err != nil {
		return Usage{}, fmt.Errorf("%w: %w", ErrUnavailable, a.Err)
	}
	return Usage{Running: int(a.Reply.Held), Places: most}, nil
}

// close ends the Limiter: waiters are refused, and spare places go back. Places of requests that
// still run stay counted in Redis until the process was silent for Policy.Life. The lock is not
// held.
func (l *Limiter) close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	for _, k := range l.keys {
		for at := k.queue.First(); at != nil; at = k.queue.First() {
			l.answer(k, at.Member, nil, ErrClosed)
		}
		k.Drain()
		l.push(k)
	}
	l.settled()
	l.mu.Unlock()
	wait := func(done <-chan struct{}) {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	wait(l.idle)
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.stop()
	ended := make(chan struct{})
	go func() {
		l.tasks.Wait()
		close(ended)
	}()
	wait(ended)
}

// settled tells close that nothing is under way.
func (l *Limiter) settled() {
	if !l.closed {
		return
	}
	for _, o := range l.outboxes {
		if o.senders > 0 {
			return
		}
	}
	select {
	case <-l.idle:
	default:
		close(l.idle)
	}
}
