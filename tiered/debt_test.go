package tiered_test

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// eachDebt plays both fail modes that admit, with each algorithm.
func eachDebt(t *testing.T, p tiered.Policy, play func(t *testing.T, s *remote.Memory, l *tiered.Limiter)) {
	for _, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen} {
		for _, a := range algorithms {
			bubble(t, fmt.Sprint(mode, " ", a), func(t *testing.T) {
				s := remote.NewMemory()
				p.Name, p.Algorithm, p.FailMode = "api", a, mode
				l := limiter(t, s, p, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
				time.Sleep(4 * time.Second)
				play(t, s, l)
			})
		}
	}
}

// breaks begins an outage.
func breaks(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
	s.Fail(io.EOF)
	for range 20 { // opens the breaker
		l.Allow(ctx, "another")
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Second)
}

// heals ends an outage. Another key finds out.
func heals(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
	s.Fail(nil)
	for range 100 {
		if l.Allow(ctx, "another").Reason == tiered.Granted {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("it is not over")
}

// A key that was busy in an outage has its limit again as soon as a key that had Redis would have.
func TestDebtAges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		outage, idle time.Duration // until and after the requests
		requests     int
		least        int64 // what is there then, in a bucket and in a window of 100 per minute
		least2       int64
	}{
		{0, 10 * time.Minute, 30, 100, 100},
		{0, 66 * time.Second, 30, 100, 100}, // two blocks of a window more than its length
		{0, 15 * time.Second, 30, 92, 65},
		{10 * time.Minute, 10 * time.Minute, 90, 100, 100},
		{10 * time.Minute, 15 * time.Second, 90, 30, 5},
	} {
		t.Run(fmt.Sprint(c.outage, " ", c.idle, " ", c.requests), func(t *testing.T) {
			eachDebt(t, tiered.Policy{Limit: tiered.PerMinute(100)}, func(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
				breaks(t, s, l)
				time.Sleep(c.outage)
				for range c.requests {
					if !l.Allow(ctx, "user").Allowed {
						t.Fatal("refused in the outage")
					}
				}
				heals(t, s, l)
				time.Sleep(c.idle)
				least := c.least2
				if l.Policy().Algorithm == tiered.TokenBucket {
					least = c.least
				}
				if d := l.AllowN(ctx, "user", least); !d.Allowed {
					t.Errorf("%v later %d of 100 remain, want %d", c.idle, d.Remaining, least)
				}
				// And no more than that, however it was admitted.
				if d := l.AllowN(ctx, "user", 100-least+1); d.Allowed {
					t.Errorf("%v later more than %d of 100 remained", c.idle, least)
				}
			})
		})
	}
}

// What fail-open admits beyond any limit takes a key as low as it may go, at the time, and not
// later.
func TestFailOpenOwesNoMoreThanABucketCan(t *testing.T) {
	eachDebt(t, tiered.Policy{Limit: tiered.PerMinute(100)}, func(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
		p := l.Policy()
		if p.FailMode == tiered.FailLocal {
			t.Skip("it admits no more")
		}
		other := limiter(t, s, p, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
		time.Sleep(10 * time.Second)
		l.AllowN(ctx, "user", 50) // so that the bucket lives on in the outage
		breaks(t, s, l)
		for range 5000 {
			l.Allow(ctx, "user")
		}
		heals(t, s, l)
		for range 800 {
			time.Sleep(900 * time.Millisecond)
			other.Allow(ctx, "user") // so that it lives on: at two thirds of its limit
		}
		if d := l.AllowN(ctx, "user", 30); !d.Allowed {
			t.Errorf("twelve minutes later %d of 100 remain: %v", d.Remaining, d.RetryAfter)
		}
	})
}

// What fail-open admitted at the end of a long outage takes a bucket below zero, as if it had been
// there.
func TestFailOpenIsChargedBelowZero(t *testing.T) {
	eachDebt(t, tiered.Policy{Limit: tiered.PerMinute(100)}, func(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
		if p := l.Policy(); p.FailMode == tiered.FailLocal || p.Algorithm != tiered.TokenBucket {
			t.Skip("nothing goes below zero")
		}
		breaks(t, s, l)
		time.Sleep(10 * time.Minute)
		for range 180 {
			l.Allow(ctx, "user")
		}
		start := time.Now()
		heals(t, s, l)
		for !l.Allow(ctx, "user").Allowed {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(start).Seconds(); took < 47 || took > 51 {
			t.Errorf("180 of 100 per minute were admitted, and the next %.1f s later, want 48.6 s", took)
		}
	})
}

// After an outage of many windows a key at three quarters of its limit is refused nothing: what
// counts in no window any more is not charged, and the rest where it was admitted.
func TestOutageOfManyWindows(t *testing.T) {
	eachDebt(t, tiered.Policy{Limit: tiered.PerMinute(100)}, func(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
		admitted := func(n int) (got int) {
			for range n {
				if l.Allow(ctx, "user").Allowed {
					got++
				}
				time.Sleep(800 * time.Millisecond)
			}
			return got
		}
		admitted(10)
		s.Fail(io.EOF)
		if n := admitted(500); n != 500 {
			t.Fatalf("%d of 500 admitted in the outage", n)
		}
		s.Fail(nil)
		if n := admitted(100); n < 99 {
			t.Errorf("after an outage, at three quarters of the limit as always, %d of 100 are admitted", n)
		}
	})
}

// A reset forgives what was admitted without Redis before it, however long that took.
func TestResetForgivesDebts(t *testing.T) {
	eachDebt(t, tiered.Policy{Limit: tiered.PerHour(1000)}, func(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
		breaks(t, s, l)
		for range 500 {
			l.Allow(ctx, "user")
			time.Sleep(4 * time.Second)
		}
		heals(t, s, l)
		ok(t, l.Reset(ctx, "user"))
		time.Sleep(time.Second)
		if d := l.AllowN(ctx, "user", 1000); !d.Allowed {
			t.Errorf("after Reset %d of 1000 remain", d.Remaining)
		}
	})
}

// What an outage admitted is charged once, however often it is reported: also if answers are lost
// for longer than a lease lives. (Issue 38; random plan 4883.)
func TestLostAnswersChargeADebtOnce(t *testing.T) {
	const outage, mute = 20, 5 // requests
	for _, c := range []struct {
		algorithm tiered.Algorithm
		also      []tiered.Limit
	}{
		{tiered.TokenBucket, nil},
		{tiered.TokenBucket, []tiered.Limit{tiered.PerDay(1000)}},
		{tiered.FixedWindow, nil},
		{tiered.SlidingWindow, nil},
		{tiered.SlidingWindow, []tiered.Limit{tiered.PerDay(1000)}},
		{tiered.SlidingLog, nil},
	} {
		bubble(t, fmt.Sprint(c.algorithm, " ", len(c.also)), func(t *testing.T) {
			s := newDistant(0)
			p := tiered.Policy{Name: "api", Algorithm: c.algorithm, Limit: tiered.PerHour(100).And(c.also...)}
			l := limiter(t, s, p, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
			time.Sleep(4 * time.Second)
			ask := func(n int, pause time.Duration) {
				for range n {
					if d := l.Allow(ctx, "user"); d.Tier != tiered.Failover || !d.Allowed {
						t.Fatalf("%+v", d)
					}
					time.Sleep(pause)
				}
			}
			s.Fail(io.EOF)
			ask(outage, time.Millisecond)
			s.Fail(nil)
			s.loseReplies.Store(true)
			ask(mute, 5*time.Second)
			s.loseReplies.Store(false)
			time.Sleep(10 * time.Second)
			l.Allow(ctx, "another") // finds out
			d := l.Allow(ctx, "user")
			for end := time.Now().Add(10 * time.Second); d.Tier == tiered.Failover && time.Now().Before(end); {
				time.Sleep(100 * time.Millisecond)
				d = l.Allow(ctx, "user")
			}
			// A grant whose answer is lost is used by nobody: up to four tokens for each request
			// here.
			if least := int64(100 - outage - 5*mute - 2); d.Remaining < least || d.Tier == tiered.Failover {
				t.Errorf("%d remain, want %d at least: %v %v", d.Remaining, least, d.Reason, d.Tier)
			} else {
				t.Logf("%d remain, %v", d.Remaining, d.Reason)
			}
		})
	}
}

// A process that nobody asks again tells of what its fail mode admitted: of a quota, another
// process would admit it a second time. The outage may be over before it would tell.
func TestDebtOfAKeyThatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	for _, left := range []time.Duration{0, 2 * time.Second, 5 * time.Second, time.Minute} { // of the outage
		t.Run(left.String(), func(t *testing.T) {
			eachDebt(t, tiered.Policy{Limit: tiered.PerHour(1000)}, func(t *testing.T, s *remote.Memory, l *tiered.Limiter) {
				breaks(t, s, l)
				since := time.Now()
				for range 300 {
					if !l.Allow(ctx, "user").Allowed {
						t.Fatal("refused in the outage")
					}
				}
				time.Sleep(left) // it is tried, and makes no call
				heals(t, s, l)
				time.Sleep(15 * time.Second)
				other := limiter(t, s, l.Policy(), nil)
				n, _ := other.AllowAtMost(ctx, "user", 1000)
				refill := int64(1000 * time.Since(since).Hours()) // a bucket is refilled meanwhile
				if n < 700 || n > 700+refill {
					t.Errorf("another process has %d of 1000, of which 300 were used, and %d came since", n, refill)
				}
			})
		})
	}
}

// The burst may come before anybody knows of the outage: the breaker opens with the third failure.
func TestDebtOfTheFirstMoment(t *testing.T) {
	for _, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen} {
		for _, burst := range []time.Duration{60 * ms, 120 * ms, 250 * ms} {
			bubble(t, fmt.Sprint(mode, " ", burst), func(t *testing.T) {
				s := newDistant(ms)
				p := tiered.Policy{Name: "api", Limit: tiered.PerHour(1000), FailMode: mode}
				l := limiter(t, s, p, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
				time.Sleep(4 * time.Second)
				l.Allow(ctx, "user")
				s.loseRequests.Store(true)
				start, n := time.Now(), int64(1)
				for time.Since(start) < burst {
					if l.Allow(ctx, "user").Allowed {
						n++
					}
					time.Sleep(ms)
				}
				time.Sleep(10 * time.Second)
				s.loseRequests.Store(false)
				time.Sleep(15 * time.Second)
				other := limiter(t, s, p, nil)
				had, _ := other.AllowAtMost(ctx, "user", 1000)
				if refill := int64(1000 * time.Since(start).Hours()); had > 1000-n+refill+1 {
					t.Errorf("another process has %d of 1000, of which %d were used, and %d came since", had, n, refill)
				}
			})
		}
	}
}

// There may be as many debts to tell of as a process keeps keys. Redis, which is just back, is told
// of 500 in a second.
func TestDebtsOfManyKeys(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		const keys = 5000
		s := newDistant(time.Millisecond)
		l := limiter(t, s, tiered.Policy{Limit: tiered.PerDay(1000), FailMode: tiered.FailOpen}, nil)
		time.Sleep(4 * time.Second)
		breaks(t, s.Memory, l)
		for i := range keys {
			l.Allow(ctx, fmt.Sprint("user", i))
		}
		time.Sleep(time.Minute)
		heals(t, s.Memory, l)
		for range 8 { // of the ten that it takes
			before := s.calls.Load()
			time.Sleep(time.Second)
			if calls := s.calls.Load() - before; calls > 500+50+10 { // a tenth of a second at once, and what else is asked
				t.Errorf("%d calls in a second", calls)
			}
		}
		time.Sleep(keys/500*time.Second + 10*time.Second) // each looks again when it was not its turn
		if settled := l.Stats().Costs.Settled; settled < keys {
			t.Errorf("%d of %d tokens are charged", settled, keys)
		}
	})
}
