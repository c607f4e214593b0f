package tiered_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// spendAll takes tokens of a key one by one until it is refused.
func spendAll(t *testing.T, l *tiered.Limiter, key string) (n int64) {
	t.Helper()
	for l.Allow(ctx, key).Allowed {
		n++
	}
	return n
}

// A higher rate counts from the first call after the change, and the old one until then. A lower
// one counts from the first call that comes ten seconds after the last use of the old one. It does
// not matter how the limit is changed and what is leased.
func TestNewRateCountsFromTheNextCallOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		from, to tiered.Limit
		idle     time.Duration // from the last token to the change
		later    time.Duration // from the change on
		want     int64
	}{
		{"raised by hour", tiered.PerHour(10), tiered.PerHour(1000).WithBurst(1000), 30 * time.Minute, 0, 5},
		{"raised from minutes to seconds", tiered.PerMinute(1).WithBurst(100), tiered.PerSecond(100), 2 * second, 0, 0},
		{"raised, and a while later", tiered.PerMinute(1).WithBurst(100), tiered.PerSecond(100), 2 * second, 300 * ms, 0},
		{"a larger burst", tiered.PerSecond(10), tiered.PerSecond(10).WithBurst(1000), 500 * ms, 0, 5},
		{
			"a larger burst, soon after it was full", tiered.PerSecond(10), tiered.PerSecond(10).WithBurst(1000), 1200 * ms,
			0, 10,
		},
		{"lowered", tiered.PerSecond(10).WithBurst(100), tiered.PerHour(10).WithBurst(100), 8 * second, 0, 80},
		{"lowered, just spent", tiered.PerSecond(10).WithBurst(100), tiered.PerHour(1).WithBurst(90), 0, 2500 * ms, 25},
		{
			"lowered, just spent, and an hour later", tiered.PerSecond(100), tiered.PerHour(1).WithBurst(90), 0, time.Hour,
			90,
		},
		{
			"lowered, unused for long", tiered.PerHour(100), tiered.PerHour(1).WithBurst(90), 36 * time.Minute,
			3 * time.Hour, 90,
		},
		{"lowered to a small burst", tiered.PerSecond(100), tiered.PerHour(1).WithBurst(2), 30 * ms, 3 * second, 2},
	} {
		for _, how := range []string{"direct", "leased", "also", "per key"} {
			bubble(t, c.name+", "+how, func(t *testing.T) {
				p := tiered.Policy{Name: "api", Limit: c.from, Lease: neverLeased, FailMode: tiered.FailClosed}
				var now atomic.Pointer[tiered.Limit]
				now.Store(&c.from)
				to := c.to
				switch how {
				case "leased":
					p.Lease = tiered.Lease{}
				case "also":
					fast := tiered.PerSecond(1 << 30)
					p.Limit, to = c.from.And(fast), c.to.And(fast)
					if c.from.Per != c.to.Per || c.from.Per == second {
						t.Skip("a bucket of several is named by its period")
					}
				case "per key":
					if c.later > 0 || c.idle == 0 {
						t.Skip("a key's new limit counts from its next use on")
					}
					p.Limit, p.PerKey = tiered.PerDay(1), func(string) tiered.Limit { return *now.Load() }
				}
				l := several(t, newDistant(ms), nil, p)[0]
				time.Sleep(second)
				begin := time.Now()
				for got := spendAll(t, l, "k"); got < burstOf(c.from); got += spendAll(t, l, "k") {
					if time.Since(begin) > second {
						t.Fatalf("%d admitted, the burst is %d", got, burstOf(c.from))
					}
					time.Sleep(5 * ms)
				}
				time.Sleep(c.idle)
				if now.Store(&c.to); how == "per key" {
					l.Refresh("k")
				} else {
					set(t, l, limitTo(to))
				}
				time.Sleep(c.later)
				want := int64(0) // by rate, with what the calls of the test took
				if c.later > 0 {
					want = burstOf(c.to)
				}
				got := spendAll(t, l, "k")
				early := int64(20 * ms.Seconds() * float64(max(c.from.Tokens, 1)) / c.from.Per.Seconds())
				late := int64(100 * ms.Seconds() * float64(c.to.Tokens) / c.to.Per.Seconds())
				if got < c.want || got > min(c.want+early+late, max(want, burstOf(c.to))) {
					t.Errorf("%d admitted, want %d (or up to %d more for the trips)", got, c.want, early+late)
				}
				books(t, l.Group())
			})
		}
	}
}

// A change costs no call of its own, whatever is known of a key: its next call carries the limit.
func TestCallsOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := several(t, store, nil, tiered.Policy{Limit: tiered.PerSecond(10), Lease: neverLeased})[0]
		want(t, l.AllowN(ctx, "full", 1), tiered.Granted)
		time.Sleep(10 * second)
		want(t, l.AllowN(ctx, "used", 10), tiered.Granted)
		start := time.Now()
		set(t, l, limitTo(tiered.PerHour(20)))
		time.Sleep(10 * second)
		if calls := store.since(start); len(calls) > 0 {
			t.Errorf("%d calls for keys that nobody uses: %+v", len(calls), calls)
		}
		start = time.Now()
		for _, key := range []string{"full", "used"} {
			l.Allow(ctx, key)
		}
		for _, c := range store.since(start) {
			if c.Cap != 20 || c.Want != 1 {
				t.Errorf("%+v, want a request by the new limit", c.Call)
			}
		}
	})
}

// Of a sliding window whose length or Precision changes, each token counts as long as in the new
// window, but for a block of the old one. It makes no difference whether the key is refused or
// admitted meanwhile.
func TestChangedWindowKeepsItsCount(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		name  string
		from  tiered.Limit
		to    tiered.Limit
		spent int64
		later time.Duration // from the spending to the change
		most  time.Duration // from the change until to.Tokens/2 are there again
	}{
		{"shorter", tiered.PerHour(100), tiered.PerSecond(10), 100, 0, 3 * time.Second},
		{"shorter, and not full", tiered.PerHour(100), tiered.PerSecond(10), 9, 0, 3 * time.Second},
		{"shorter, of what was spent long ago", tiered.PerHour(100), tiered.PerMinute(50), 100, 10 * time.Minute, 0},
		{"a day, and a minute", tiered.PerDay(1000), tiered.PerMinute(100), 1000, time.Hour, 0},
		{"as long by other blocks, and full", tiered.PerHour(100), precise(tiered.PerHour(100), 2*time.Minute), 100, 30 * time.Minute, 36 * time.Minute},
		{"as long by other blocks", tiered.PerHour(100), precise(tiered.PerHour(100), 2*time.Minute), 99, 30 * time.Minute, 36 * time.Minute},
		{"longer", tiered.PerMinute(100), tiered.PerHour(100), 100, 30 * time.Second, 65 * time.Minute},
		{"longer, of what is over", tiered.PerMinute(100), tiered.PerHour(100), 100, 2 * time.Minute, 0},
	} {
		bubble(t, c.name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(),
				tiered.Policy{Limit: c.from, Algorithm: tiered.SlidingWindow, Lease: neverLeased}, nil)
			time.Sleep(time.Second)
			for range c.spent {
				if !l.Allow(ctx, "user").Allowed {
					t.Fatal("refused")
				}
			}
			time.Sleep(c.later)
			ok(t, l.SetLimit(c.to))
			change := time.Now()
			l.Allow(ctx, "user") // admitted or not, it is the first by the new window
			for refused := 0; ; refused++ {
				d := l.AllowN(ctx, "user", c.to.Tokens/2)
				after := time.Since(change)
				if d.Allowed && after <= c.most+time.Millisecond {
					return
				}
				if d.Allowed || after > 2*day {
					t.Fatalf("%d of %d again %v after the change, refused %d times", c.to.Tokens/2, c.to.Tokens, after, refused)
				}
				time.Sleep(d.RetryAfter)
			}
		})
	}
}

func precise(l tiered.Limit, block time.Duration) tiered.Limit {
	l.Precision = block
	return l
}

// Another Per or Precision of a sliding window begins with what the old one counted: whatever it is
// changed to, and however often, no instant holds more than the largest of the limits.
func TestAnotherPrecisionForgetsNothing(t *testing.T) {
	for name, change := range map[string]func(*tiered.Policy){
		"another precision":         func(p *tiered.Policy) { p.Limit.Precision = 2 * second },
		"a lower limit, Per longer": func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 90, Per: 61 * second} },
		"Per shorter than a lease":  func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 100, Per: 500 * ms} },
		"an hour":                   func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 100, Per: time.Hour} },
	} {
		for _, lease := range []tiered.Lease{{}, {Size: tiered.NoLease}, {Size: 20}} {
			bubble(t, fmt.Sprint(name, lease), func(t *testing.T) {
				p := tiered.Policy{
					Name: "api", Limit: tiered.PerMinute(100), Algorithm: tiered.SlidingWindow, Lease: lease,
				}
				l := limiter(t, newDistant(ms), p, nil)
				time.Sleep(10 * ms)
				admitted := int64(0)
				take := func(each int64) {
					for range 90 / each {
						if d := l.AllowN(ctx, "k", each); d.Allowed {
							admitted += each
						}
					}
				}
				take(30)
				take(1)
				for range 3 {
					set(t, l, change)
					take(90)
					take(1)
					set(t, l, func(p *tiered.Policy) { p.Limit = tiered.PerMinute(100); p.Limit.Precision = 3 * second })
					take(10)
				}
				if admitted > 100 || admitted < 80 {
					t.Errorf("%d admitted at once, the limit was never above 100", admitted)
				}
				if s := l.Stats(); s.Faults.Rejected > 0 {
					t.Errorf("%d calls were refused for what they say", s.Faults.Rejected)
				}
			})
		}
	}
}

// A call that is under way when a limit is raised asks by the old one. What it says is full refuses
// nobody by the new one: a raised limit shows with the next call.
func TestCallUnderWayDoesNotRefuseByTheOldLimit(t *testing.T) {
	for _, algorithm := range choices() {
		if algorithm == tiered.TokenBucket { // a larger burst brings no tokens
			continue
		}
		for _, size := range []int64{0, tiered.NoLease} {
			bubble(t, fmt.Sprint(algorithm, size), func(t *testing.T) {
				const trip = 100 * time.Millisecond
				p := tiered.Policy{Name: "p", Limit: tiered.PerHour(5), Algorithm: algorithm, Lease: tiered.Lease{Size: size}}
				l := limiter(t, newDistant(trip), p, patientOptions(nil))
				spendAll(t, l, "k")
				time.Sleep(10 * time.Second) // it asks again
				go l.Allow(t.Context(), "k")
				time.Sleep(trip * 3 / 4)
				p.Limit = tiered.PerHour(7)
				ok(t, l.SetPolicy(p))
				time.Sleep(trip / 2)
				if d := l.Allow(t.Context(), "k"); !d.Allowed {
					t.Errorf("refused: %v", d)
				}
			})
		}
	}
}
