package tiered_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// leased gives a Limiter a lease of key "k" that is neither about to be renewed nor to go home.
func leased(t *testing.T, l *tiered.Limiter) *engine.Bucket {
	t.Helper()
	warm(t, l, "k", 300)
	b, _ := tiered.Engine(l.Group()).Cache.Find(tiered.Core(l).ID("k"))
	for range 1000 {
		calls := node(l).Calls.Sent
		r := l.ReserveN(context.Background(), "k", 3)
		time.Sleep(2 * ms)
		if held, _ := b.Peek(tiered.Engine(l.Group()).Now()); held > 20 && node(l).Calls.Sent == calls &&
			r.Tier == tiered.Local {
			return b
		}
	}
	t.Fatal("no lease")
	return nil
}

func TestCancelPutsBackIntoTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10_000)}, nil)
		b := leased(t, l)
		start := time.Now()
		held, _ := b.Peek(tiered.Engine(l.Group()).Now())
		r := l.ReserveN(t.Context(), "k", 5)
		want(t, r.Decision, tiered.Granted)
		if now, _ := b.Peek(tiered.Engine(l.Group()).Now()); now != held-5 || r.Tier != tiered.Local {
			t.Fatalf("%d held, %d before: this shows nothing", now, held)
		}
		r.Cancel()
		if now, _ := b.Peek(tiered.Engine(l.Group()).Now()); now != held {
			t.Errorf("%d held after Cancel, want %d", now, held)
		}
		r.Cancel()
		r.Settle(100)
		if now, _ := b.Peek(tiered.Engine(l.Group()).Now()); now != held {
			t.Errorf("%d held after another Cancel, want %d", now, held)
		}
		time.Sleep(60 * ms)
		if calls := store.since(start); len(calls) > 0 {
			t.Errorf("%+v: nothing had to be sent", calls)
		}
		books(t, l.Group())
	})
}

func TestCancelAfterARenewalIsARefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10_000)}, nil)
		b := leased(t, l)
		r := l.ReserveN(t.Context(), "k", 5)
		start := time.Now()
		for len(store.since(start)) == 0 { // until a renewal has left, which tells the five as spent
			want(t, l.Allow(t.Context(), "k"), tiered.Granted)
			time.Sleep(ms)
		}
		time.Sleep(2 * ms)
		held, _ := b.Peek(tiered.Engine(l.Group()).Now())
		start = time.Now()
		r.Cancel()
		if now, _ := b.Peek(tiered.Engine(l.Group()).Now()); now != held {
			t.Errorf("%d held after Cancel, %d before: Redis has the five as spent", now, held)
		}
		time.Sleep(tiered.DefaultTimeout)
		var refunded int64
		for _, c := range store.since(start) {
			refunded += c.Refund
		}
		if refunded != 5 {
			t.Errorf("%d refunded within 50ms, want 5", refunded)
		}
		books(t, l.Group())
	})
}

func TestCancelOfADirectTakeIsARefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(10)}, nil)
		time.Sleep(10 * ms)
		r := l.ReserveN(t.Context(), "k", 4)
		if d := r.Decision; !d.Allowed || d.Tier != tiered.Remote || level(t, store.Memory, l, "k") != 6 {
			t.Fatalf("%+v", d)
		}
		r.Cancel()
		r.Cancel()
		time.Sleep(tiered.DefaultTimeout)
		if n := level(t, store.Memory, l, "k"); n != 10 {
			t.Errorf("%d in Redis 50ms after Cancel, want 10", n)
		}
		time.Sleep(time.Minute)
		if n := store.distant.calls.Load(); n != 2 {
			t.Errorf("%d calls, want the take and the refund", n)
		}
		if s := l.Stats(); s.Leases.Spent != 0 || s.Leases.Returned != 4 || s.Leases.Held != 0 {
			t.Errorf("%+v", s)
		}
		books(t, l.Group())
	})
}

// A refund is sent once. If it is lost, its tokens are burnt, so they are never credited twice.
func TestLostRefundIsBurnt(t *testing.T) {
	for _, lose := range []func(*tape) func(bool){
		func(s *tape) func(bool) { return s.loseRequests.Store },
		func(s *tape) func(bool) { return s.loseReplies.Store },
		func(s *tape) func(bool) { return s.twice.Store },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(10)}, nil)
			time.Sleep(10 * ms)
			keep, r := l.ReserveN(t.Context(), "k", 5), l.ReserveN(t.Context(), "k", 4)
			want(t, keep.Decision, tiered.Granted)
			want(t, r.Decision, tiered.Granted)
			lose(store)(true)
			r.Cancel()
			time.Sleep(40 * ms)
			lose(store)(false)
			time.Sleep(10 * time.Second)
			if n := level(t, store.Memory, l, "k"); n != 1 && n != 5 {
				t.Errorf("%d in Redis, want 1 or 5", n)
			}
			refunds := 0
			for _, c := range store.since(time.Time{}) {
				if c.Refund > 0 {
					refunds++
				}
			}
			if refunds != 1 {
				t.Errorf("%d refunds were sent", refunds)
			}
			books(t, l.Group())
		})
	}
}

func TestCancelAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerHour(10_000)}, nil))
		leased(t, l)
		var all []tiered.Reservation
		for range 6 {
			all = append(all, l.ReserveN(t.Context(), "k", 2), l.ReserveN(t.Context(), "cold", 1))
		}
		closeIn(t, l, time.Second)
		after := l.ReserveN(t.Context(), "k", 1)
		if after.Reason != tiered.Fallback {
			t.Fatalf("%+v", after.Decision)
		}
		start := time.Now()
		for i, r := range append(all, after) {
			r.Settle([]int64{0, 1, 5}[i%3])
		}
		time.Sleep(time.Minute)
		if calls := store.since(start); len(calls) > 0 {
			t.Errorf("%+v after Close", calls)
		}
		books(t, l.Group())
	})
}

// Tokens that were admitted without Redis and then returned are not charged.
func TestCancelOfWhatWasAdmittedAlone(t *testing.T) {
	for _, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(100), FailMode: mode}, nil)
			want(t, l.AllowN(t.Context(), "k", 10), tiered.Granted)
			silence(t, store.distant, l)
			var all []tiered.Reservation
			for range 10 {
				r := l.ReserveN(t.Context(), "k", 5)
				if r.Reason != tiered.Fallback && r.Reason != tiered.Open {
					t.Fatalf("%+v", r.Decision)
				}
				all = append(all, r)
			}
			for i, r := range all {
				if i < 4 {
					r.Cancel()
				}
			}
			all[4].Settle(2)
			all[5].Settle(15)
			store.loseRequests.Store(false)
			time.Sleep(5 * time.Second)
			l.Allow(t.Context(), "k") // the debt goes with the next call
			time.Sleep(time.Second)
			// 90 − 50 + 4·5 + 3 − 10 − 1.
			if n := level(t, store.Memory, l, "k"); n != 52 {
				t.Errorf("%v: %d in Redis, want 52", mode, n)
			}
			var debt, refund int64
			for _, c := range store.since(time.Time{}) {
				if c.Bucket == store.Key("api", "k") {
					debt, refund = debt+c.Debt, refund+c.Refund
				}
			}
			if debt != 37 || refund != 0 { // a refund would be credited even where lost refill has paid for the debt
				t.Errorf("%v: a debt of %d and a refund of %d were sent, want 37 and none", mode, debt, refund)
			}
			all[9].Cancel() // too late: it was charged, and is not given back twice over
			time.Sleep(time.Second)
			if n := level(t, store.Memory, l, "k"); n > 57 {
				t.Errorf("%v: %d in Redis", mode, n)
			}
			books(t, l.Group())
		})
	}
}

// Cancel gives all tokens back, whether they were leased, and whatever was told to Redis since in which block.
func TestCancelGivesBackInALaterBlock(t *testing.T) {
	limits := map[tiered.Algorithm]tiered.Limit{
		tiered.TokenBucket: tiered.PerDay(10_000), tiered.FixedWindow: tiered.PerDay(10_000),
		tiered.SlidingWindow: tiered.PerSecond(10_000), tiered.SlidingLog: tiered.PerSecond(10_000), // blocks of 25 ms
	}
	for a, limit := range limits {
		for _, between := range []int64{0, 1, 300} { // tokens taken before the Cancel
			for _, later := range []time.Duration{0, 60 * time.Millisecond, 400 * time.Millisecond} {
				bubble(t, fmt.Sprint(a, " ", between, " ", later), func(t *testing.T) {
					l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: limit, Algorithm: a}, nil)
					time.Sleep(4 * time.Second)
					l.AllowN(t.Context(), "user", 2500)
					time.Sleep(60 * time.Millisecond)
					r := l.ReserveN(t.Context(), "user", 100)
					time.Sleep(later / 2)
					for range between {
						if !l.Allow(t.Context(), "user").Allowed {
							t.Fatal("refused")
						}
						time.Sleep(100 * time.Microsecond)
					}
					time.Sleep(later / 2)
					r.Cancel()
					time.Sleep(60 * time.Millisecond)
					if d := l.Peek(t.Context(), "user"); d.Remaining < 7500-between {
						t.Errorf("%d of 10000 are used, 100 were reserved and canceled, and %d remain", 2500+between, d.Remaining)
					}
				})
			}
		}
	}
}
