package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// outOfTimeError checks that a wait was refused because its deadline cannot be met.
func outOfTimeError(t *testing.T, err error) *tiered.LimitedError {
	t.Helper()
	var limited *tiered.LimitedError
	if !errors.As(err, &limited) || !errors.Is(err, tiered.ErrLimited) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want a LimitedError that is ErrLimited and context.DeadlineExceeded", err)
	}
	return limited
}

// A waiter that cannot be served before its deadline gets an error as soon as that is known, and
// takes nothing.
func TestWaitRefusesAtOnceWhatItsDeadlineForbids(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy tiered.Policy
		spent  int64
		n      int64
		time   time.Duration // that it has
		retry  time.Duration // when it could be served
	}{
		{"a token an hour", tiered.Policy{Limit: tiered.PerHour(1)}, 1, 1, 7 * time.Second, time.Hour},
		{
			"a dear request",
			tiered.Policy{Limit: tiered.PerSecond(10).WithBurst(100)},
			70, 100, 5 * time.Second,
			7 * time.Second,
		},
		{
			"leased",
			tiered.Policy{Limit: tiered.PerSecond(100), Lease: tiered.Lease{Size: 25}},
			100, 100, 500 * ms,
			time.Second,
		},
		{
			"a fixed window",
			tiered.Policy{Limit: tiered.PerMinute(10), Algorithm: tiered.FixedWindow, Calendar: true},
			10, 1, 50 * time.Second, time.Minute,
		},
		{
			"a sliding window",
			tiered.Policy{Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingWindow},
			10, 1,
			50 * time.Second, time.Minute,
		},
		{
			"a log",
			tiered.Policy{Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingLog},
			10, 1, 50 * time.Second,
			time.Minute,
		},
		{
			"several limits",
			tiered.Policy{Limit: tiered.PerSecond(10).And(tiered.PerMinute(10))},
			10,
			10, 50 * time.Second, time.Minute,
		},
	} {
		bubble(t, c.name, func(t *testing.T) {
			store := newDistant(ms)
			l := limiter(t, store, c.policy, nil)
			for left := c.spent; left > 0; left-- {
				want(t, l.Allow(t.Context(), "k"), tiered.Granted)
			}
			for range 2 {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.time)
				defer cancel()
				err := outOfTimeError(t, l.WaitN(ctx, "k", c.n))
				if d := time.Since(start); d > 3*ms || ctx.Err() != nil {
					t.Errorf("refused after %v, want at once", d)
				}
				if d := err.Decision; d.Reason != tiered.Limited || d.RetryAfter < c.time ||
					d.RetryAfter > c.retry+c.retry/10 {
					t.Errorf("%+v, want to be told of %v", d, c.retry)
				}
			}
			if p := l.Stats(); p.Leases.Spent != c.spent || p.Waiting.GaveUp != 2 || p.Tokens.Limited != 2*c.n ||
				p.Waiting.Now != 0 || p.Waiting.Admitted != 0 {
				t.Errorf("%+v", p)
			}
			noTurns(t, l.Group())
		})
	}
}

// A refusal is remembered from the first instant of a Group on: time.Now stands still in a bubble,
// so a service's test is there.
func TestHopelessWaitInTheFirstInstant(t *testing.T) {
	for _, late := range []time.Duration{0, time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, newDistant(0), tiered.Policy{Limit: tiered.PerSecond(10).WithBurst(2)}, nil)
			time.Sleep(late)
			want(t, l.AllowN(t.Context(), "k", 2), tiered.Granted)
			q := &queue{t: t, l: l}
			q.join(t.Context(), 0, "k", 1) // its turn is in 100 ms
			ctx, cancel := context.WithTimeout(t.Context(), 101*ms)
			defer cancel()
			start := time.Now()
			err := l.Wait(ctx, "k") // its turn would be in 200 ms
			outOfTimeError(t, err)
			if waited := time.Since(start); waited > 0 {
				t.Errorf("%v after the Group began, a hopeless wait took %v", late, waited)
			}
			q.all.Wait()
		})
	}
}

// The estimate counts the waiters in front, because they take the refill first.
func TestDeadlineCountsThoseInFront(t *testing.T) {
	for _, early := range []bool{false, true} { // all come before the first answer tells what there is
		bubble(t, fmt.Sprintf("early %v", early), func(t *testing.T) {
			l := limiter(t, newDistant(2*ms), tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
			want(t, l.AllowN(t.Context(), "k", 10), tiered.Granted)
			start := tiered.Engine(l.Group()).Now()
			q := &queue{t: t, l: l}
			for i := range 20 {
				q.join(t.Context(), i, "k", 1)
			}
			if !early {
				time.Sleep(5 * ms)
			}
			for i, d := range []time.Duration{time.Second, 1900 * ms, 2250 * ms, 2150 * ms} {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				q.join(ctx, 20+i, "k", 1)
			}
			q.all.Wait()
			for _, w := range q.ended() {
				switch {
				case w.who == 20 || w.who == 21 || w.who == 23: // after 20 others, and of the last after one more
					outOfTimeError(t, w.err)
					if w.at-start > 10*ms {
						t.Errorf("number %d was refused after %v, want at once", w.who, w.at-start)
					}
				case w.err != nil:
					t.Errorf("%+v", w)
				}
			}
			if s := l.Stats(); s.Waiting.Admitted != 21 || s.Waiting.GaveUp != 3 || s.Tokens.Limited != 3 ||
				s.Leases.Spent != 31 {
				t.Errorf("%+v", s)
			}
			noTurns(t, l.Group())
		})
	}
}

// waitingCase is waiters of one process, and how each ended.
type waitingCase struct {
	limit  tiered.Limit
	lease  tiered.Lease
	trip   time.Duration
	comers []comer
}

type comer struct {
	after    time.Duration // behind the one before
	cost     int64
	patience time.Duration // 0 for ever

	came, ended time.Duration
	err         error
}

func (c *waitingCase) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(c.trip), tiered.Policy{Limit: c.limit, Lease: c.lease},
			&tiered.Options{Random: dice(1, 1)})
		start := time.Now()
		var all sync.WaitGroup
		for i := range c.comers {
			w := &c.comers[i]
			time.Sleep(w.after)
			w.came = time.Since(start)
			all.Go(func() {
				ctx, cancel := context.Background(), func() {}
				if w.patience > 0 {
					ctx, cancel = context.WithTimeout(ctx, w.patience)
				}
				defer cancel()
				w.err = l.WaitN(ctx, "k", w.cost)
				w.ended = time.Since(start)
			})
			synctest.Wait()
		}
		all.Wait()
		noTurns(t, l.Group())
		books(t, l.Group())
	})
}

// fault is what is wrong with how they ended; empty when nothing is.
func (c *waitingCase) fault() string {
	var last time.Duration
	// came for those who left meanwhile, and went back: it counted when it was taken, and again
	// when it is
	var back int64
	var admissions []ideal.Admission
	for i, w := range c.comers {
		if w.patience > 0 && w.ended > w.came+w.patience {
			return fmt.Sprintf("number %d waited beyond its deadline", i)
		}
		if w.err == nil {
			if w.ended < last {
				return fmt.Sprintf("number %d went before one that came earlier", i)
			}
			last = w.ended
			before := int64(max(w.came, w.ended-c.trip))
			admissions = append(admissions, ideal.Admission{Before: before, After: int64(w.ended), Tokens: w.cost})
			continue
		}
		if w.patience == 0 || !errors.Is(w.err, context.DeadlineExceeded) {
			return fmt.Sprintf("number %d: %v", i, w.err)
		}
		if !errors.Is(w.err, tiered.ErrLimited) {
			back += w.cost
		}
		// What it may lose beside an ideal bucket: some round trips, the pace, part of a token; and
		// one round trip for each in front that wants more than one token.
		slack := 6*c.trip + 10*ms + time.Duration(2*nanosPerTokenOf(c.limit))
		for _, front := range c.comers[:i] {
			if front.cost > 1 {
				slack += c.trip
			}
		}
		// It gave up. Had it stayed, those in front would have left it nothing before its deadline.
		bucket := ideal.NewBucket(c.limit.Tokens, c.limit.Per, burstOf(c.limit))
		at := int64(0)
		pending := w.cost
		for _, front := range c.comers[:i] {
			switch {
			case front.err == nil && front.ended <= w.came+w.patience-slack:
				at = max(at, int64(front.ended-min(c.trip, front.ended)))
				if !bucket.Take(at, front.cost) {
					bucket.Take(int64(front.ended), front.cost)
				}
			// it left a call under way
			case front.err == nil || front.ended > w.ended, !errors.Is(front.err, tiered.ErrLimited):
				pending += front.cost
			}
		}
		deadline := int64(w.came + w.patience - slack)
		if deadline > max(at, int64(w.came)) && pending <= burstOf(c.limit) && bucket.Take(max(deadline, at), pending) {
			return fmt.Sprintf("number %d gave up at %v and could have been served", i, w.ended)
		}
	}
	if e := ideal.Worst(admissions, c.limit.Tokens, c.limit.Per,
		burstOf(c.limit)); e.Over > float64(back)+tolerance(c.limit) {
		return fmt.Sprint(e)
	}
	return ""
}

// With any arrivals and deadlines: waiters are served in turn, none waits beyond its deadline, none
// gives up that the refill could have served, and no more is admitted than by an ideal bucket.
func TestWaitersWithDeadlines(t *testing.T) {
	var served, gaveUp int
	rapid.Check(t, func(rt *rapid.T) {
		c := &waitingCase{
			limit: rapid.SampledFrom([]tiered.Limit{
				tiered.PerSecond(10), tiered.PerSecond(100), tiered.PerSecond(100).WithBurst(20), thousand,
			}).Draw(rt, "limit"),
			lease: tiered.Lease{Size: rapid.SampledFrom([]int64{0, tiered.NoLease}).Draw(rt, "lease")},
			trip:  rapid.SampledFrom([]time.Duration{ms, 5 * ms}).Draw(rt, "trip"),
		}
		interval := nanosPerTokenOf(c.limit)
		most := rapid.SampledFrom([]int64{1, 5, burstOf(c.limit)}).Draw(rt, "most")
		if c.lease.Size == tiered.NoLease { // what comes for a dear request that left keeps its room in Redis for a second
			most = min(most, 5)
		}
		for range rapid.IntRange(2, 60).Draw(rt, "waiters") {
			w := comer{
				after: time.Duration(rapid.IntRange(0, 20).Draw(rt, "after")) * time.Duration(interval/8),
				cost:  rapid.Int64Range(1, most).Draw(rt, "cost"),
			}
			if rapid.Bool().Draw(rt, "deadline") {
				w.patience = time.Duration(rapid.IntRange(1, 100).Draw(rt,
					"patience")) * time.Duration(math.Max(interval, 2e6))
			}
			c.comers = append(c.comers, w)
		}
		c.run(t)
		if f := c.fault(); f != "" {
			rt.Fatalf("%s of %+v", f, c)
		}
		for _, w := range c.comers {
			if w.err == nil {
				served++
			} else {
				gaveUp++
			}
		}
	})
	if (served < 100 || gaveUp < 20) && !testing.Short() {
		t.Errorf("%d were served and %d gave up: this shows little", served, gaveUp)
	}
}
