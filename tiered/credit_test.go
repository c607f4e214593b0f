package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The case of issue 19: ten streams reserve one token each, and each turns out to cost 9000 of 10
// 000 per minute.
func TestMaxDebt(t *testing.T) {
	for _, c := range []struct {
		maxDebt  int64
		wait     time.Duration // of the next request
		forgiven int64
	}{
		{0, 61 * time.Second, 90_000 - 10_000 - 10_000 - 166}, // one burst, and a second of refill
		{10_000, 61 * time.Second, 90_000 - 10_000 - 10_000 - 166},
		{40_000, 241 * time.Second, 90_000 - 10_000 - 40_000 - 166},
		{100_000, 480 * time.Second, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			events := make(chan tiered.Event, 100)
			l := limiter(t, newTape(), tiered.Policy{
				Name: "llm", Limit: tiered.PerMinute(10_000), MaxDebt: c.maxDebt, Lease: neverLeased,
			},
				&tiered.Options{Trace: &tiered.Trace{Lease: func(e tiered.Event) { events <- e }}})
			time.Sleep(10 * ms)
			var streams []tiered.Reservation
			for range 10 {
				streams = append(streams, l.Reserve(ctx, "team"))
			}
			for _, r := range streams {
				r.Settle(9000)
			}
			start := time.Now()
			time.Sleep(tiered.DefaultTimeout)
			ok(t, l.Wait(ctx, "team"))
			if d := time.Since(start); d < c.wait-time.Second || d > c.wait+time.Second {
				t.Errorf("MaxDebt %d: the next waited %v, want %v", c.maxDebt, d, c.wait)
			}
			synctest.Wait()
			told := int64(0)
			for len(events) > 0 {
				told += (<-events).Forgiven
			}
			// The refill of the 50 ms in which Redis hears of the charges pays a few tokens of
			// them.
			if n := l.Group().Stats().Policies["llm"].Costs.Forgiven; n != told || n > c.forgiven || n < c.forgiven-20 {
				t.Errorf("MaxDebt %d: %d forgiven, %d by the events, want %d", c.maxDebt, n, told, c.forgiven)
			}
			books(t, l.Group())
		})
	}
}

func TestCharge(t *testing.T) {
	for _, c := range []struct {
		name     string
		policy   tiered.Policy
		charge   int64
		level    int64 // afterwards
		forgiven int64
	}{
		{"what is there", tiered.Policy{Limit: tiered.PerDay(10)}, 3, 7, 0},
		{"more than is there", tiered.Policy{Limit: tiered.PerDay(10)}, 15, -5, 0},
		{"more than it may owe", tiered.Policy{Limit: tiered.PerDay(10)}, 25, -10, 5},
		{"with a larger debt", tiered.Policy{Limit: tiered.PerDay(10), MaxDebt: 40}, 25, -15, 0},
		{"too much for that", tiered.Policy{Limit: tiered.PerDay(10), MaxDebt: 40}, 99, -40, 49},
		{"with a second limit", tiered.Policy{
			Limit: tiered.PerDay(10).And(tiered.PerHour(30)), MaxDebt: 40,
		}, 25, -15, 0},
		{"a window", tiered.Policy{Limit: tiered.PerDay(10), Algorithm: tiered.FixedWindow, Calendar: true}, 4, 6, 0},
		{"a log", tiered.Policy{Limit: tiered.PerDay(10), Algorithm: tiered.SlidingLog}, 4, 6, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, newTape(), c.policy, nil)
			if err := l.For("k").N(c.charge).Charge(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if d := l.Peek(ctx, "k"); d.Remaining != max(c.level, 0) {
				t.Errorf("%s, before Redis hears of it: %+v, want %d left", c.name, d, c.level)
			}
			time.Sleep(tiered.DefaultTimeout)
			d := l.Peek(ctx, "k")
			if d.Remaining != max(c.level, 0) || d.Allowed != (c.level > 0) {
				t.Errorf("%s: %+v, want %d left", c.name, d, c.level)
			}
			if wait := engine.ResetAfter(1-c.level, nanosPerTokenOf(c.policy.Limit)); c.level < 0 &&
				d.RetryAfter < wait-time.Minute {
				t.Errorf("%s: wait %v, want %v", c.name, d.RetryAfter, wait)
			}
			if n := l.Stats().Costs.Forgiven; n != c.forgiven {
				t.Errorf("%s: %d forgiven, want %d", c.name, n, c.forgiven)
			}
			books(t, l.Group())
		})
	}
	l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.Unlimited()}, nil)
	if err := errors.Join(l.For("k").N(5).Charge()); err != nil || l.For("").N(1).Charge() == nil || l.For("k").N(0).Charge() == nil {
		t.Errorf("%v, %v, %v", err, l.For("").N(1).Charge(), l.For("k").N(0).Charge())
	}
}

// A number of tokens and a key that are not valid are named, with the rule. The key itself is not.
func TestInvalidCredits(t *testing.T) {
	l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(1)}, nil)
	for _, c := range []struct {
		key  string
		n    int64
		want string
	}{
		{"k", 0, "invalid cost (0: must be 1 to 2^40)"},
		{"k", -3, "invalid cost (-3: must be 1 to 2^40)"},
		{"k", tiered.MaxTokens + 1, "invalid cost (1099511627777: must be 1 to 2^40)"},
		{"", 1, "invalid key (0 bytes: must be 1 to 65536)"},
		{strings.Repeat("k", tiered.MaxKeyLength+1), 1, "invalid key (65537 bytes: must be 1 to 65536)"},
	} {
		all := []error{l.For(c.key).N(c.n).Charge(), l.Refund(ctx, c.key, c.n)}
		if c.n == 1 {
			all = append(all, l.Reset(ctx, c.key))
		}
		for _, err := range all {
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "kkk") {
				t.Errorf("%v, want %s", err, c.want)
			}
		}
	}
	for _, a := range algorithms[1:] { // tokens cannot be put into a window
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerDay(10), Algorithm: a}, nil)
		if err := l.Refund(ctx, "k", 1); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v: %v", a, err)
		}
	}
	ok(t, limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.Unlimited()}, nil).Refund(ctx, "k", 1))
}

func TestRefund(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy tiered.Policy
		used   int64
		refund int64
		level  int64 // afterwards
	}{
		{"a part", tiered.Policy{Limit: tiered.PerDay(10)}, 7, 3, 6},
		{"never above the burst", tiered.Policy{Limit: tiered.PerDay(10)}, 7, 1 << 40, 10},
		{"of an unused key", tiered.Policy{Limit: tiered.PerDay(10)}, 0, 5, 10},
		{"out of debt", tiered.Policy{Limit: tiered.PerDay(10), MaxDebt: 50}, 40, 35, 5},
		{"with a second limit", tiered.Policy{Limit: tiered.PerDay(10).And(tiered.PerHour(30))}, 7, 3, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, newTape(), c.policy, nil)
			if c.used > 0 {
				ok(t, l.For("k").N(c.used).Charge())
			}
			time.Sleep(tiered.DefaultTimeout)
			if err := l.Refund(ctx, "k", c.refund); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if d := l.Peek(ctx, "k"); d.Remaining != c.level {
				t.Errorf("%s: %d left, want %d", c.name, d.Remaining, c.level)
			}
			books(t, l.Group())
		})
	}
}

// A refund ends a known denial, and gives what it says while tokens are leased.
func TestRefundOfARefusedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newTape(), tiered.Policy{Limit: tiered.PerHour(200)}, nil)
		time.Sleep(10 * ms)
		for l.Allow(ctx, "k").Allowed {
			time.Sleep(ms)
		}
		ok(t, l.Refund(ctx, "k", 20))
		n := 0
		for l.Allow(ctx, "k").Allowed {
			n++
			time.Sleep(ms)
		}
		if n != 20 {
			t.Errorf("%d admitted after 20 were given", n)
		}
		books(t, l.Group())
	})
}

// Redis hears of a cost that was known afterwards within 50 ms, or when it answers again. A key
// that is full there refills nothing until then, as the documentation of Charge says.
func TestDelayOfADeficit(t *testing.T) {
	t.Parallel()
	charge := func(l *tiered.Limiter) { _ = l.For("ann").N(50).Charge() }
	settle := func(l *tiered.Limiter) { l.ReserveN(context.Background(), "ann", 1).Settle(51) }
	for _, c := range []struct {
		name   string
		cost   func(*tiered.Limiter)
		outage time.Duration
		left   int64 // of 100, once another process sees it
	}{
		{"Charge", charge, 0, 50},
		{"Settle", settle, 0, 49},
		{"Charge in an outage of an hour, which is 100 tokens", charge, time.Hour, 50},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, ctx := remote.NewMemory(), context.Background()
			of := func() *tiered.Limiter {
				l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(100)}, &tiered.Options{
					Logger: slog.New(slog.DiscardHandler),
				})
				return l
			}
			l, other := of(), of()
			time.Sleep(time.Second)
			delay := 50 * time.Millisecond
			if c.outage > 0 {
				store.Fail(errors.New("down"))
				delay = 5 * time.Second // a probe and the pause of the key
			}
			c.cost(l)
			time.Sleep(c.outage)
			store.Fail(nil)
			time.Sleep(delay)
			if left := other.Peek(ctx, "ann").Remaining; left != c.left {
				t.Errorf("%s: %d left after %v, want %d", c.name, left, delay, c.left)
			}
		})
	}
}

// Costs that are known after the request, as of language models, are charged to a key with standing
// shares as to one without: the key uses its burst, MaxDebt and rate·t at most. Beyond that, each
// of N shares may admit one request before anybody knows what it costs.
func TestChargesBesideStandingShares(t *testing.T) {
	t.Parallel()
	charge := func(l *tiered.Limiter, cost int64) bool {
		if !l.Allow(ctx, "team").Allowed {
			return false
		}
		ok(t, l.For("team").N(cost-1).Charge())
		return true
	}
	settle := func(l *tiered.Limiter, cost int64) bool {
		r := l.Reserve(ctx, "team")
		r.Settle(cost)
		return r.Allowed
	}
	for name, ask := range map[string]func(*tiered.Limiter, int64) bool{"Charge": charge, "Settle": settle} {
		for _, c := range []struct {
			processes int
			cost      int64
		}{{1, 11}, {1, 101}, {1, 1001}, {4, 11}, {4, 101}, {4, 1001}, {12, 101}, {12, 1001}} {
			if testing.Short() && c.cost == 101 && c.processes < 12 {
				continue
			}
			t.Run(fmt.Sprint(name, " of ", c.cost, " by ", c.processes), func(t *testing.T) {
				const length = time.Minute
				used := func(standing float64) (used, forgiven int64) {
					synctest.Test(t, func(t *testing.T) {
						s := remote.NewMemory()
						var all []*tiered.Limiter
						for range c.processes {
							l := limiter(t, s, tiered.Policy{
								Limit: tiered.PerSecond(100).WithBurst(200), MaxDebt: 2000, Standing: standing,
							}, nil)
							all = append(all, l)
						}
						time.Sleep(90 * time.Second) // the table of shares is no longer new, and they are full
						began := time.Now()
						for i := 0; time.Since(began) < length; i++ {
							if ask(all[i%len(all)], c.cost) {
								used += c.cost
							}
							time.Sleep(50 * time.Millisecond)
						}
						for _, l := range all {
							forgiven += l.Stats().Costs.Forgiven
						}
					})
					return used, forgiven
				}
				bound := 200 + 2000 + 100*int64(length/time.Second)
				without, _ := used(0)
				with, forgiven := used(1.0 / 8)
				beyond := c.cost * int64(c.processes)
				if c.processes == 1 {
					beyond = 0
				}
				// A cost of more than a lease is forgiven in part with and without shares.
				if most := max(bound, without) + beyond; with > most || with-forgiven > bound+beyond {
					t.Errorf("%d tokens used, and %d forgiven: the bound is %d and %d; without shares %d are used", with, forgiven,
						bound, beyond, without)
				}
			})
		}
	}
}

// Reset and Refund fill what this process' share lacks too.
func TestCreditsFillTheStandingShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerHour(800), Standing: 1.0 / 8}, nil)
		time.Sleep(3 * time.Hour)
		for range 100 {
			l.Allow(ctx, "reset")
		}
		ok(t, l.Reset(ctx, "reset"))
		if d := l.Peek(ctx, "reset"); d.Remaining < d.Burst {
			t.Errorf("after Reset %d of %d remain", d.Remaining, d.Burst)
		}
		if err := l.For("refund").N(150).Charge(); err != nil { // 50 more than the share has
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ok(t, l.Refund(ctx, "refund", 150))
		if d := l.Peek(ctx, "refund"); d.Remaining < d.Burst {
			t.Errorf("after Charge and Refund of 150 %d of %d remain", d.Remaining, d.Burst)
		}
	})
}

// A cost that is known afterwards is taken from the lease first. A lease that went on admitting
// beside a debt that Redis forgives would be worth many times its tokens.
func TestChargesBesideALease(t *testing.T) {
	for _, processes := range []int{1, 3} {
		for _, cost := range []int64{2, 21, 201} {
			bubble(t, fmt.Sprint(cost, " by ", processes), func(t *testing.T) {
				ctx, s := context.Background(), remote.NewMemory()
				var all []*tiered.Limiter
				for range processes {
					l := limiter(t, s, tiered.Policy{Limit: tiered.PerSecond(100).WithBurst(400)}, nil)
					all = append(all, l)
				}
				began, used := time.Now(), int64(0)
				for i := range 5000 {
					l := all[i%len(all)]
					if l.Allow(ctx, "team").Allowed {
						ok(t, l.For("team").N(cost-1).Charge())
						used += cost
					}
					time.Sleep(2 * time.Millisecond)
				}
				bound := 400 + 400 + int64(100*time.Since(began).Seconds()) + int64(processes)*cost
				if least := int64(100 * time.Since(began).Seconds()); used > bound || used < least*9/10 {
					t.Errorf("%d tokens used: the bound is %d, and %d were refilled", used, bound, least)
				}
			})
		}
	}
}

// A share that could not bear the costs of late is left alone, and AllowAtMost and requests over
// several keys know it.
func TestSharesThatCannotBearTheCostsOfLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerHour(800), Standing: 1.0 / 8}, nil)
		time.Sleep(3 * time.Hour)
		ok(t, l.For("other").N(1600).Charge())
		before := l.Stats().Standing.Spent
		if n, d := l.AllowAtMost(ctx, "user", 10_000); n != 700 || !d.Allowed {
			t.Errorf("AllowAtMost took %d: %v", n, d.Reason)
		}
		if d := tiered.All(l.For("user"), l.For("third")).Allow(ctx); d.Allowed {
			t.Errorf("Redis has nothing left of a key, and a request over it is %v", d.Reason)
		}
		if n := l.Stats().Standing.Spent - before; n != 0 {
			t.Errorf("%d tokens of shares", n)
		}
	})
}

// What was charged counts for what a Decision says of a key from then on, before Redis has heard of
// it, and if it does not answer.
func TestDecisionsAfterACharge(t *testing.T) {
	for _, a := range algorithms {
		for _, down := range []bool{false, true} {
			bubble(t, fmt.Sprint(a, down), func(t *testing.T) {
				s := remote.NewMemory()
				l := limiter(t, s, tiered.Policy{Limit: tiered.PerMinute(100), Algorithm: a, Lease: neverLeased}, nil)
				l.AllowN(ctx, "k", 53)
				l.AllowN(ctx, "k", 60)
				if down {
					s.Fail(errors.New("down"))
				}
				ok(t, l.For("k").N(45).Charge())
				d := l.PeekN(ctx, "k", 0)
				if d.Remaining > 2 || d.ResetAfter < 50*time.Second {
					t.Errorf("2 of 100 are left: %v", d)
				}
				ok(t, l.For("k").N(90).Charge())
				for range 3 {
					all := []tiered.Decision{l.PeekN(ctx, "k", 0), l.Peek(ctx, "k")}
					if !down {
						all = append(all, l.Allow(ctx, "k"))
					}
					for _, d := range all {
						if d.Remaining > 0 || d.Allowed && !down {
							t.Errorf("nothing is left: %v", d)
						}
					}
					time.Sleep(25 * ms)
				}
			})
		}
	}
}

// An answer that was under way when a charge came does not know of it.
func TestAnswerThatDoesNotKnowOfACharge(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := limiter(t, newDistant(4*ms), tiered.Policy{Limit: tiered.PerMinute(100), Lease: neverLeased}, nil)
		time.Sleep(time.Second)
		l.AllowN(ctx, "k", 50)
		var d tiered.Decision
		asked := make(chan struct{})
		go func() { d = l.AllowN(ctx, "k", 60); close(asked) }()
		time.Sleep(ms)
		ok(t, l.For("k").N(90).Charge())
		<-asked
		if d = l.PeekN(ctx, "k", 0); d.Allowed || d.Remaining > 0 || d.RetryAfter < 20*time.Second {
			t.Errorf("40 are owed: %v", d)
		}
	})
}
