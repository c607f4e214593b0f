package tiered

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

const (
	// lookAgain is the longest that a waiter sleeps: longer than a denial is believed (5 s and a sixteenth), so that Redis
	// is asked again.
	lookAgain = 5500 * time.Millisecond

	// lookAgainAlone is the same while Redis does not answer: no call, unless a probe is due; it may be back, and full.
	lookAgainAlone = time.Second
)

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until n tokens of key are admitted, first come, first served among the waiters of this process. It returns
// nil when they were taken, ctx.Err() when ctx ended first (and then nothing was taken), or a *[LimitedError] at once
// when waiting cannot help: the key or the cost is invalid, the cost exceeds the burst (or, alone, the share's), or Redis
// does not answer and the policy fails closed.
//
// Nothing polls: a waiter sleeps until the reply to a call or until tokens can be there. But what others give back, a
// Reset and the end of an outage announce themselves to nobody: the first in turn looks again after 5.5 s, alone after 1 s.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if r := valid(key, n); r != Granted {
		return l.refusal(key, r).Err()
	}
	id := l.id(key)
	if p := l.numbers(id, key); p.Rule != local.ByLimit || n > p.Cap { // nobody has to wait for that
		return l.AllowN(ctx, key, n).Err()
	}
	if err := l.group.turns.enter(ctx, id); err != nil {
		return err
	}
	defer l.group.turns.leave(id)
	for {
		d := l.AllowN(ctx, key, n)
		switch {
		case d.Allowed:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case d.Reason != Limited && d.Reason != ShareSpent, d.RetryAfter == 0:
			return d.Err()
		}
		pause := min(d.RetryAfter, lookAgain)
		if d.Reason == ShareSpent {
			pause = min(pause, lookAgainAlone)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// turns lets those who wait for a key go one after the other: only the first asks.
type turns struct {
	mu   sync.Mutex
	keys map[local.ID]*list.List // of chan struct{}: those behind the first; nil while there was none
}

// enter waits for the turn, or for the end of ctx.
func (t *turns) enter(ctx context.Context, id local.ID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.keys == nil {
		t.keys = make(map[local.ID]*list.List)
	}
	behind, busy := t.keys[id]
	if !busy {
		t.keys[id] = nil
		t.mu.Unlock()
		return nil
	}
	if behind == nil {
		behind = list.New()
		t.keys[id] = behind
	}
	turn := make(chan struct{})
	place := behind.PushBack(turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	select {
	case <-turn: // it came at the same moment: it passes on
		t.mu.Unlock()
		t.leave(id)
	default:
		behind.Remove(place) // thousands may leave at once, and all keys wait for this lock
		t.mu.Unlock()
	}
	return ctx.Err()
}

// busy reports whether anybody has the turn.
func (t *turns) busy(id local.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, busy := t.keys[id]
	return busy
}

// leave passes the turn on.
func (t *turns) leave(id local.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	behind := t.keys[id]
	if behind == nil || behind.Len() == 0 {
		delete(t.keys, id)
		return
	}
	close(behind.Remove(behind.Front()).(chan struct{}))
}
