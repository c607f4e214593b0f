package tiered

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

// WaitN waits until n tokens of key are admitted, first come, first served among the waiters of this process. It returns
// nil when they were taken, ctx.Err() when ctx ended first (and then nothing was taken), or a *[LimitedError] at once
// when waiting cannot help: the key or the cost is invalid, the cost exceeds the burst (or, alone, the share's), or Redis
// does not answer and the policy fails closed.
//
// Nothing polls: a waiter sleeps until the reply to a call or until tokens can be there.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if r := l.valid(key, n); r != Granted {
		return l.decide(key, Decision{Reason: r}).Err()
	}
	id := l.id(key)
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
		case d.Reason != Limited && d.Reason != ShareSpent, d.RetryAfter == math.MaxInt64:
			return d.Err()
		}
		timer := time.NewTimer(d.RetryAfter)
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
	keys map[local.ID][]chan struct{} // those behind the first
}

// enter waits for the turn, or for the end of ctx.
func (t *turns) enter(ctx context.Context, id local.ID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.keys == nil {
		t.keys = make(map[local.ID][]chan struct{})
	}
	behind, busy := t.keys[id]
	if !busy {
		t.keys[id] = nil
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	t.keys[id] = append(behind, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	for i, other := range t.keys[id] {
		if other == turn {
			t.keys[id] = append(t.keys[id][:i:i], t.keys[id][i+1:]...)
			t.mu.Unlock()
			return ctx.Err()
		}
	}
	t.mu.Unlock()
	t.leave(id) // the turn came at the same moment: it passes on
	return ctx.Err()
}

// leave passes the turn on.
func (t *turns) leave(id local.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	behind := t.keys[id]
	if len(behind) == 0 {
		delete(t.keys, id)
		return
	}
	close(behind[0])
	t.keys[id] = behind[1:]
}
