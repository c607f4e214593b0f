package tiered_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// queue is those who wait for a key, in the order of their arrival.
type queue struct {
	t    *testing.T
	l    *tiered.Limiter
	all  sync.WaitGroup
	mu   sync.Mutex
	done []waited
}

// waited is how a wait ended.
type waited struct {
	who int
	at  time.Duration // since the bubble began
	err error
}

// join lets one more wait for n tokens, behind all that wait already.
func (q *queue) join(ctx context.Context, who int, key string, n int64) {
	q.all.Go(func() {
		err := q.l.WaitN(ctx, key, n)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.done = append(q.done, waited{who, tiered.Engine(q.l.Group()).Now(), err})
	})
	synctest.Wait()
}

// ended returns those who do not wait any more.
func (q *queue) ended() []waited {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := slices.Clone(q.done)
	// Those who go at the same instant may come to say so in any order.
	slices.SortStableFunc(done, func(a, b waited) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.who, b.who))
	})
	return done
}

// granted checks that all of them were, in order.
func (q *queue) granted() {
	q.t.Helper()
	for i, w := range q.ended() {
		if w.err != nil || w.who != i {
			q.t.Fatalf("number %d to end was number %d to come, at %v: %v", i, w.who, w.at, w.err)
		}
	}
}

// noTurns checks that nothing is left of those who waited.
func noTurns(t *testing.T, g *tiered.Group) {
	t.Helper()
	if n := tiered.Engine(g).KeysWaitedFor(); n > 0 {
		t.Errorf("%d keys are waited for, and nobody waits", n)
	}
}

// A wait that is canceled at any stage takes nothing, and does not affect the waiters behind it.
func TestCanceledWaitTakesNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		before int64         // taken before
		n      int64         // waited for by the one who gives up
		second bool          // who stands behind somebody else
		after  time.Duration // before it gives up
		left   int64
	}{
		{"before", 0, 4, false, 0, 10},
		{"in the queue", 10, 1, true, 300 * ms, 0},
		{"asleep until tokens come", 8, 4, false, 300 * ms, 2},
		{"while the call is on its way", 0, 4, false, 3 * ms, 10},
		{"while the reply is on its way", 0, 4, false, 7 * ms, 10},
	} {
		bubble(t, c.name, func(t *testing.T) {
			store := newDistant(10 * ms)
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(10)}, nil)
			time.Sleep(20 * ms)
			if c.before > 0 {
				want(t, l.AllowN(t.Context(), "k", c.before), tiered.Granted)
			}
			others, leave := context.WithCancel(t.Context())
			q := &queue{t: t, l: l}
			if c.second {
				q.join(others, 1, "k", 1)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if c.after == 0 {
				cancel()
			}
			q.join(ctx, 2, "k", c.n)
			q.join(others, 3, "k", 10)
			time.Sleep(c.after)
			if !c.second && c.after > 0 && len(q.ended()) > 0 {
				t.Fatalf("%v: this is not the stage that was meant", q.ended())
			}
			given := tiered.Engine(l.Group()).Now()
			cancel()
			synctest.Wait()
			//nolint:errorlint // that very value
			if done := q.ended(); len(done) != 1 || done[0].who != 2 || done[0].err != context.Canceled ||
				c.after > 0 && done[0].at != given {
				t.Fatalf("%+v, want number 2 to end at %v with ctx.Err()", done, given)
			}
			leave()
			q.all.Wait()
			time.Sleep(tiered.DefaultTimeout + 20*ms) // what was granted to nobody is back by then
			if got := level(t, store.Memory, l, "k"); got != c.left {
				t.Errorf("%d tokens left, want %d", got, c.left)
			}
			if s := l.Stats(); s.Leases.Spent != c.before {
				t.Errorf("%d spent, want %d", s.Leases.Spent, c.before)
			}
			noTurns(t, l.Group())
			books(t, l.Group())
		})
	}
}

// If a waiter gives up at the moment at which it gets the turn, the turn passes on.
func TestTurnIsNotLostToOneWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerSecond(1000).WithBurst(1000)}, nil)
		for range 200 {
			first, leaveFirst := context.WithCancel(ctx)
			second, leaveSecond := context.WithCancel(ctx)
			release := tiered.Core(l).HoldTurn(first, "k") // nobody is there
			q := &queue{t: t, l: l}
			q.join(second, 0, "k", 1)
			q.join(ctx, 1, "k", 1)
			go leaveSecond()
			release()
			q.all.Wait()
			leaveFirst()
			if done := q.ended(); len(done) != 2 {
				t.Fatal(done)
			}
		}
		noTurns(t, l.Group())
	})
}

func TestWaitRefusesAtOnceWhatWaitingDoesNotHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		time.Sleep(10 * ms)
		release := tiered.Core(l).HoldTurn(t.Context(), "k") // somebody waits already
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		for _, c := range []struct {
			key    string
			n      int64
			reason tiered.Reason
		}{
			{"", 1, tiered.InvalidKey},
			{strings.Repeat("k", tiered.MaxKeyLength+1), 1, tiered.InvalidKey},
			{"k", 0, tiered.InvalidCost},
			{"k", -1, tiered.InvalidCost},
			{"k", math.MinInt64, tiered.InvalidCost},
			{"k", 11, tiered.ExceedsBurst},
			{"k", math.MaxInt64, tiered.ExceedsBurst},
		} {
			var limited *tiered.LimitedError
			if err := l.WaitN(ctx, c.key, c.n); !errors.As(err, &limited) || limited.Decision.Reason != c.reason {
				t.Errorf("key of %d bytes, cost %d: %v", len(c.key), c.n, err)
			}
		}
		if time.Since(start) != 0 || store.calls.Load() != 0 {
			t.Errorf("%v and %d calls", time.Since(start), store.calls.Load())
		}
		release()
		noTurns(t, l.Group())
	})
}

func TestWaitersDoNotPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		var looks atomic.Int64
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(1)},
			&tiered.Options{Trace: &tiered.Trace{Decision: func(tiered.Decision) { looks.Add(1) }}})
		ctx, cancel := context.WithCancel(t.Context())
		q := &queue{t: t, l: l}
		for i := range 50 {
			q.join(ctx, i, "k", 1)
		}
		time.Sleep(10*time.Second + 500*ms)
		q.granted()
		if n := len(q.ended()); n != 11 {
			t.Errorf("%d went, want 11", n)
		}
		// Each token is asked for once, when it is there; and one call comes too early, to learn
		// when that is.
		if n := store.calls.Load(); n > 11+1 {
			t.Errorf("%d calls for 11 tokens: somebody polls", n)
		}
		if n := looks.Load(); n != 11 {
			t.Errorf("the hook was told of %d decisions, want those that admit: who asks again is not refused", n)
		}
		cancel()
		q.all.Wait()
		for _, w := range q.ended()[11:] {
			if w.err != context.Canceled { //nolint:errorlint // that very value
				t.Fatal(w)
			}
		}
		noTurns(t, l.Group())
	})
}

func TestWaitDuringAnOutage(t *testing.T) {
	wait := func(t *testing.T, l *tiered.Limiter, key string, n int64) (time.Duration, error) {
		start := time.Now()
		err := l.WaitN(ctx, key, n)
		return time.Since(start), err
	}
	bubble(t, "fail-closed", func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed}, nil)
		store.loseRequests.Store(true)
		if d, err := wait(t, l, "k", 1); d > tiered.DefaultBudget || !errors.Is(err, tiered.ErrUnavailable) {
			t.Errorf("nobody knows yet: %v after %v, want the budget at most", err, d)
		}
		silence(t, store, l)
		var limited *tiered.LimitedError
		if d, err := wait(t, l, "k", 1); d != 0 || !errors.As(err, &limited) ||
			limited.Decision.Reason != tiered.Unavailable {
			t.Errorf("%v after %v, want to be refused at once", err, d)
		}
		store.loseRequests.Store(false)
		noTurns(t, l.Group())
	})
	bubble(t, "fail-local", func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, &tiered.Options{Processes: 2})
		silence(t, store, l)
		q := &queue{t: t, l: l} // the share is 5, and 5 per second
		start := tiered.Engine(l.Group()).Now()
		for i := range 15 {
			q.join(ctx, i, "k", 1)
		}
		q.all.Wait()
		q.granted()
		for i, w := range q.ended() {
			if d := w.at - start - time.Duration(max(i-4, 0))*200*ms; d < 0 || d > ms {
				t.Errorf("number %d went after %v", i, w.at-start)
			}
		}
		if s := l.Stats(); s.Tokens.Fallback < 15 {
			t.Errorf("%+v: this shows nothing", s)
		}
		var limited *tiered.LimitedError
		if d, err := wait(t, l, "k", 6); d != 0 || !errors.As(err, &limited) ||
			limited.Decision.Reason != tiered.FallbackSpent {
			t.Errorf("more than the share's burst: %v after %v, want to be refused at once", err, d)
		}
		store.loseRequests.Store(false)
	})
	bubble(t, "fail-open", func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10), FailMode: tiered.FailOpen}, nil)
		silence(t, store, l)
		for range 50 {
			if d, err := wait(t, l, "k", 10); d != 0 || err != nil {
				t.Fatalf("%v after %v", err, d)
			}
		}
		store.loseRequests.Store(false)
	})
}

// A waiter whose share brings a token in 100 s slept through the end of the outage, and so did all
// behind it.
func TestWaitNoticesTheEndOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerMinute(6)}, &tiered.Options{Processes: 10})
		silence(t, store, l)
		if d := l.Allow(ctx, "k"); d.Reason != tiered.Fallback {
			t.Fatalf("%+v", d)
		}
		q := &queue{t: t, l: l}
		for i := range 3 {
			q.join(ctx, i, "k", 1)
		}
		time.Sleep(5 * time.Second)
		if done := q.ended(); len(done) > 0 {
			t.Fatalf("%v: this shows nothing", done)
		}
		store.loseRequests.Store(false)
		start := time.Now()
		q.all.Wait()
		q.granted()
		// A probe that just failed, an open time of 1 s at most, a look that is the probe, and the
		// look after it.
		if d := time.Since(start); d > 3*time.Second+100*ms {
			t.Errorf("waited %v after the end of the outage for tokens that were there", d)
		}
	})
}

// Tokens that another process returns, and a Reset, are noticed within about 5 s, by waiters and by
// other requests.
func TestWaitNoticesTokensThatCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		a := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(10)}, nil)
		b := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(10)}, nil)
		r := a.ReserveN(ctx, "k", 10)
		want(t, r.Decision, tiered.Granted)
		q := &queue{t: t, l: b}
		for i := range 3 {
			q.join(ctx, i, "k", 1)
		}
		time.Sleep(10 * time.Second)
		if len(q.ended()) > 0 {
			t.Fatal(q.ended())
		}
		start := time.Now()
		r.Cancel()
		q.all.Wait()
		q.granted()
		if d := time.Since(start); d > 5500*ms+10*ms {
			t.Errorf("waited %v for tokens that were there", d)
		}
	})
}
