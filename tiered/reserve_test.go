package tiered

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// tape is a store that remembers the calls, as Redis executes them.
type tape struct {
	*distant
	mu    sync.Mutex
	calls []taped
}

type taped struct {
	remote.Call
	at    time.Time // when it left
	reply remote.Reply
}

func newTape() *tape { return &tape{distant: newDistant(ms)} }

func (s *tape) Run(ctx context.Context, timeout time.Duration, calls []remote.Call, results []remote.Result) {
	at := time.Now()
	s.distant.Run(ctx, timeout, calls, results)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range calls {
		s.calls = append(s.calls, taped{c, at, results[i].Reply})
	}
}

// since returns what left at a time or later.
func (s *tape) since(at time.Time) []taped {
	s.mu.Lock()
	defer s.mu.Unlock()
	var late []taped
	for _, c := range s.calls {
		if !c.at.Before(at) {
			late = append(late, c)
		}
	}
	return late
}

// leased gives a Limiter a lease of key "k" that is neither about to be renewed nor to go home.
func leased(t *testing.T, l *Limiter) *bucket {
	t.Helper()
	warm(t, l, "k", 300)
	b, _ := l.group.cache.Find(l.id("k"))
	for range 1000 {
		calls := l.group.Stats().Nodes["memory"].Calls
		r := l.Reserve(context.Background(), "k", 3)
		time.Sleep(2 * ms)
		if held, _ := b.Look(l.group.now()); held > 20 && l.group.Stats().Nodes["memory"].Calls == calls && r.Tier == Local {
			return b
		}
	}
	t.Fatal("no lease")
	return nil
}

func TestCancelPutsBackIntoTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerHour(10_000)}, nil)
		b := leased(t, l)
		start := time.Now()
		held, _ := b.Look(l.group.now())
		r := l.Reserve(t.Context(), "k", 5)
		want(t, r.Decision, Granted)
		if now, _ := b.Look(l.group.now()); now != held-5 || r.Tier != Local {
			t.Fatalf("%d held, %d before: this shows nothing", now, held)
		}
		r.Cancel()
		if now, _ := b.Look(l.group.now()); now != held {
			t.Errorf("%d held after Cancel, want %d", now, held)
		}
		r.Cancel()
		r.Settle(100)
		if now, _ := b.Look(l.group.now()); now != held {
			t.Errorf("%d held after another Cancel, want %d", now, held)
		}
		time.Sleep(60 * ms)
		if calls := store.since(start); len(calls) > 0 {
			t.Errorf("%+v: nothing had to be sent", calls)
		}
		books(t, l.group)
	})
}

func TestCancelAfterARenewalIsARefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerHour(10_000)}, nil)
		b := leased(t, l)
		r := l.Reserve(t.Context(), "k", 5)
		start := time.Now()
		for len(store.since(start)) == 0 { // until a renewal has left, which tells the five as spent
			want(t, l.Allow(t.Context(), "k"), Granted)
			time.Sleep(ms)
		}
		time.Sleep(2 * ms)
		held, _ := b.Look(l.group.now())
		start = time.Now()
		r.Cancel()
		if now, _ := b.Look(l.group.now()); now != held {
			t.Errorf("%d held after Cancel, %d before: Redis has the five as spent", now, held)
		}
		time.Sleep(DefaultTimeout)
		var refunded int64
		for _, c := range store.since(start) {
			refunded += c.Refund
		}
		if refunded != 5 {
			t.Errorf("%d refunded within 50ms, want 5", refunded)
		}
		books(t, l.group)
	})
}

func TestCancelOfADirectTakeIsARefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, nil)
		time.Sleep(10 * ms)
		r := l.Reserve(t.Context(), "k", 4)
		if d := r.Decision; !d.Allowed || d.Tier != Remote || level(t, store.Memory, l, "k") != 6 {
			t.Fatalf("%+v", d)
		}
		r.Cancel()
		r.Cancel()
		time.Sleep(DefaultTimeout)
		if n := level(t, store.Memory, l, "k"); n != 10 {
			t.Errorf("%d in Redis 50ms after Cancel, want 10", n)
		}
		time.Sleep(time.Minute)
		if n := store.distant.calls.Load(); n != 2 {
			t.Errorf("%d calls, want the take and the refund", n)
		}
		if s := l.group.Stats().Policies["api"]; s.Spent != 0 || s.Returned != 4 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
		books(t, l.group)
	})
}

// A refund is sent once: a lost one is burnt, never credited twice.
func TestLostRefundIsBurnt(t *testing.T) {
	for _, lose := range []func(*tape) func(bool){
		func(s *tape) func(bool) { return s.loseRequests.Store },
		func(s *tape) func(bool) { return s.loseReplies.Store },
		func(s *tape) func(bool) { return s.twice.Store },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, nil)
			time.Sleep(10 * ms)
			keep, r := l.Reserve(t.Context(), "k", 5), l.Reserve(t.Context(), "k", 4)
			want(t, keep.Decision, Granted)
			want(t, r.Decision, Granted)
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
			books(t, l.group)
		})
	}
}

func TestReservationEndsOnce(t *testing.T) {
	first, second := []func(Reservation){Reservation.Cancel, settle(1), settle(4), settle(9)}, []func(Reservation){Reservation.Cancel, settle(0), settle(4), settle(10)}
	lefts := []int64{10, 9, 6, 1}
	for i, end := range first {
		for _, again := range second {
			synctest.Test(t, func(t *testing.T) {
				store := newTape()
				l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, nil)
				time.Sleep(10 * ms)
				r := l.Reserve(t.Context(), "k", 4)
				copied := r
				end(r)
				again(r)
				again(copied)
				time.Sleep(DefaultTimeout)
				again(copied)
				time.Sleep(DefaultTimeout)
				if n := level(t, store.Memory, l, "k"); n != lefts[i] {
					t.Errorf("end %d: %d in Redis, want %d", i, n, lefts[i])
				}
				books(t, l.group)
			})
		}
	}
	synctest.Test(t, func(t *testing.T) { // at the same time
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerDay(100)}, nil)
		time.Sleep(10 * ms)
		keep, r := l.Reserve(t.Context(), "k", 50), l.Reserve(t.Context(), "k", 4)
		want(t, keep.Decision, Granted)
		want(t, r.Decision, Granted)
		var all sync.WaitGroup
		for range 100 {
			all.Go(r.Cancel)
		}
		all.Wait()
		time.Sleep(time.Second)
		if n := level(t, store.Memory, l, "k"); n != 50 {
			t.Errorf("%d in Redis, want 50", n)
		}
	})
}

func settle(actual int64) func(Reservation) { return func(r Reservation) { r.Settle(actual) } }

func TestReservationThatHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, nil)
		want(t, l.AllowN(t.Context(), "k", 8), Granted)
		start := time.Now()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		for reason, r := range map[Reason]Reservation{
			Unknown:      {},
			Limited:      l.Reserve(t.Context(), "k", 5),
			ExceedsBurst: l.Reserve(t.Context(), "k", 11),
			InvalidCost:  l.Reserve(t.Context(), "k", -5),
			InvalidKey:   l.Reserve(t.Context(), "", 1),
			Canceled:     l.Reserve(canceled, "other", 1),
		} {
			if r.Allowed || r.Reason != reason {
				t.Errorf("%+v, want %v", r.Decision, reason)
			}
			r.Cancel()
			r.Settle(7)
		}
		time.Sleep(time.Second)
		for _, c := range store.since(start) {
			if c.Debt > 0 || c.Refund > 0 && c.Bucket == store.Key("api", "k") {
				t.Errorf("%+v was sent for nothing", c)
			}
		}
		if n := level(t, store.Memory, l, "k"); n != 2 {
			t.Errorf("%d in Redis, want 2", n)
		}
	})
}

func TestSettle(t *testing.T) {
	for _, c := range []struct {
		before, cost, actual int64
		level                int64 // 50 ms later, of a burst of 10
		calls                int
	}{
		{0, 5, 2, 8, 1},
		{0, 5, 5, 5, 0},
		{0, 5, 0, 10, 1},
		{0, 5, -3, 10, 1},
		{0, 5, math.MinInt64, 10, 1},
		{0, 5, 8, 2, 1},
		{3, 5, 12, -5, 1},
		{3, 5, 500, -8, 1}, // one burst more at most
		{3, 5, math.MaxInt64, -8, 1},
		{5, 5, math.MaxInt64, -10, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, nil)
			time.Sleep(10 * ms)
			if c.before > 0 {
				want(t, l.AllowN(t.Context(), "k", c.before), Granted)
			}
			r := l.Reserve(t.Context(), "k", c.cost)
			want(t, r.Decision, Granted)
			start := time.Now()
			r.Settle(c.actual)
			time.Sleep(DefaultTimeout)
			if n := level(t, store.Memory, l, "k"); n != c.level {
				t.Errorf("%+v: %d in Redis", c, n)
			}
			time.Sleep(time.Minute)
			if calls := store.since(start); len(calls) != c.calls {
				t.Errorf("%+v: %d calls: %+v", c, len(calls), calls)
			}
			if n := level(t, store.Memory, l, "k"); n != c.level {
				t.Errorf("%+v: %d in Redis a minute later", c, n)
			}
			books(t, l.group)
		})
	}
}

func TestNextRequestsWaitForWhatSettleOwes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newTape(), Policy{Name: "api", Limit: PerSecond(10)}, nil)
		time.Sleep(10 * ms)
		r := l.Reserve(t.Context(), "k", 10)
		start := time.Now()
		r.Settle(15)
		if err := l.Wait(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		// Six tokens at 10/s, asked for in Redis' time, half a round trip later.
		if d := time.Since(start); d < 590*ms || d > 620*ms {
			t.Errorf("waited %v, want 600ms: five were owed", d)
		}
	})
}

// A key that was evicted before its cost was known was never charged for it.
func TestSettleAfterEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, &Options{MaxKeys: 1})
		time.Sleep(10 * ms)
		r, back := l.Reserve(t.Context(), "k", 2), l.Reserve(t.Context(), "k2", 2)
		want(t, l.Allow(t.Context(), "other"), Granted)
		time.Sleep(time.Minute)
		if s := l.group.Stats(); s.Leaving != 0 || s.Evictions != 2 {
			t.Fatalf("%+v: this shows nothing", s)
		}
		r.Settle(7)
		back.Cancel() // lost, or given back
		time.Sleep(time.Second)
		if n := level(t, store.Memory, l, "k"); n != 3 {
			t.Errorf("%d in Redis, want 3", n)
		}
		if n := level(t, store.Memory, l, "k2"); n != 8 && n != 10 {
			t.Errorf("%d in Redis, want 8 or 10", n)
		}
		books(t, l.group)
	})
}

func TestCancelAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l, err := New(store, Policy{Name: "api", Limit: PerHour(10_000)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		leased(t, l)
		var all []Reservation
		for range 6 {
			all = append(all, l.Reserve(t.Context(), "k", 2), l.Reserve(t.Context(), "cold", 1))
		}
		closeIn(t, l, time.Second)
		after := l.Reserve(t.Context(), "k", 1)
		if after.Reason != Shared {
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
		books(t, l.group)
	})
}

// What was admitted without Redis and then given back is not charged.
func TestCancelOfWhatWasAdmittedAlone(t *testing.T) {
	for _, mode := range []FailMode{FailLocal, FailOpen} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, Policy{Name: "api", Limit: PerDay(100), FailMode: mode}, nil)
			want(t, l.AllowN(t.Context(), "k", 10), Granted)
			silence(t, store.distant, l)
			var all []Reservation
			for range 10 {
				r := l.Reserve(t.Context(), "k", 5)
				if r.Reason != Shared && r.Reason != Open {
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
			books(t, l.group)
		})
	}
}

func TestDoCountsSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, Policy{Name: "api", Limit: PerDay(10)}, nil)
		time.Sleep(10 * ms)
		left := func(want int64) {
			t.Helper()
			time.Sleep(3 * time.Second) // a lease that came along goes home too
			if n := level(t, store.Memory, l, "k"); n != want {
				t.Fatalf("%d in Redis, want %d", n, want)
			}
		}
		type contextKey struct{}
		ctx := context.WithValue(t.Context(), contextKey{}, true)
		if err := l.Do(ctx, "k", func(got context.Context) error {
			if got != ctx {
				t.Error("another context")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		left(9)
		if err := l.Do(ctx, "k", func(context.Context) error { return io.EOF }); err != io.EOF { //nolint:errorlint // that very value
			t.Fatal(err)
		}
		left(9)
		func() {
			defer func() {
				if v := recover(); v != "boom" {
					t.Errorf("recovered %v", v)
				}
			}()
			_ = l.Do(ctx, "k", func(context.Context) error { panic("boom") })
		}()
		left(9)
		var all sync.WaitGroup
		all.Go(func() {
			_ = l.Do(ctx, "k", func(context.Context) error { runtime.Goexit(); return nil })
		})
		all.Wait()
		left(9)
		want(t, l.AllowN(ctx, "k", 9), Granted)
		var limited *LimitedError
		if err := l.Do(ctx, "k", func(context.Context) error { t.Error("called"); return nil }); !errors.As(err, &limited) || !errors.Is(err, ErrLimited) {
			t.Fatal(err)
		}
		left(0)
		books(t, l.group)
	})
}

// A fleet reserves, cancels and settles at random: what was admitted, less what was given back, keeps the bound at any
// time of the run, and no pot holds more than its record in Redis covers.
func TestGivingBackKeepsTheBound(t *testing.T) {
	for _, c := range []struct {
		name  string
		lease Lease
		loss  float64 // part of the replies that are lost
		dear  bool    // some turn out to cost more: that is charged when it is known, and may be over by one burst
		least float64 // of what an ideal bucket would admit
	}{
		{"leases", Lease{}, 0, false, 0.95},
		{"small leases", Lease{Size: 5}, 0, false, 0.95},
		{"direct takes", Lease{Size: NoLease}, 0, false, 0.95},
		{"replies are lost", Lease{}, 0.05, false, 0.85},
		{"dearer than thought", Lease{}, 0, true, 0.95},
	} {
		for seed := range uint64(3) {
			synctest.Test(t, func(t *testing.T) {
				limit := PerSecond(500).WithBurst(200)
				store := newTape()
				lossy := rand.New(rand.NewPCG(seed, 99))
				var lossMu sync.Mutex
				store.lossy = func() bool {
					lossMu.Lock()
					defer lossMu.Unlock()
					return lossy.Float64() < c.loss
				}
				start := time.Now()
				var mu sync.Mutex
				var net int64
				over := math.Inf(-1)
				count := func(n int64) {
					mu.Lock()
					defer mu.Unlock()
					net += n
					over = max(over, float64(net)-200-500*time.Since(start).Seconds())
				}
				var fleet []*Limiter
				var all sync.WaitGroup
				for i := range 4 {
					l := limiter(t, store, Policy{Name: "api", Limit: limit, FailMode: FailClosed, Lease: c.lease}, nil)
					fleet = append(fleet, l)
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					all.Go(func() {
						for time.Since(start) < 20*time.Second {
							time.Sleep(time.Duration(random.ExpFloat64() * float64(6*ms)))
							n, wait, how := 1+random.Int64N(8), time.Duration(random.ExpFloat64()*float64(40*ms)), random.IntN(4)
							actual := random.Int64N(n)
							if c.dear {
								actual *= 5
							}
							all.Go(func() {
								r := l.Reserve(context.Background(), "k", n)
								if !r.Allowed {
									return
								}
								count(n)
								if how > 1 {
									time.Sleep(wait)
								}
								switch how {
								case 0, 2:
									count(-n)
									r.Cancel()
								case 3:
									count(actual - n)
									r.Settle(actual)
								}
							})
						}
					})
				}
				for time.Since(start) < 20*time.Second {
					time.Sleep(7 * ms)
					covered(t, store, fleet)
				}
				all.Wait()
				ideal := 200 + 500*time.Since(start).Seconds()
				t.Logf("%s, seed %d: %d admitted net of what was given back, an ideal bucket %.0f at most; at worst %.1f over",
					c.name, seed, net, ideal, over)
				allowed := tolerance(limit)
				if c.dear {
					allowed += 200
				}
				if over > allowed {
					t.Errorf("over by %.1f", over)
				}
				if float64(net) < c.least*ideal {
					t.Errorf("%d admitted, want %.0f at least", net, c.least*ideal)
				}
				for _, l := range fleet {
					books(t, l.group)
				}
			})
			if c.loss == 0 && testing.Short() {
				break
			}
		}
	}
}

// covered checks that what the processes hold was told to Redis and has not ended there.
func covered(t *testing.T, store *tape, fleet []*Limiter) {
	t.Helper()
	store.mu.Lock()
	defer store.mu.Unlock()
	records := map[string]taped{} // the last executed call of each lease
	for _, c := range store.calls {
		if c.Lease != "" && (c.reply.Code == remote.Granted || c.reply.Code == remote.Denied) && c.Seq > records[c.Lease].Seq {
			records[c.Lease] = c
		}
	}
	for i, l := range fleet {
		b, ok := l.group.cache.Find(l.id("k"))
		if !ok {
			continue
		}
		held, _ := b.Look(l.group.now())
		r := records[*l.group.lease.Load()]
		if known := r.Hold + r.reply.Grant; held > known {
			t.Errorf("process %d holds %d, and Redis knows of %d: %+v", i, held, known, r)
		}
	}
}
