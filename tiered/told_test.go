package tiered_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// told makes a Limiter on a Memory, which is closed at the end.
func told(t *testing.T, p tiered.Policy) (*tiered.Limiter, *remote.Memory) {
	t.Helper()
	store := remote.NewMemory()
	p.Name = "api"
	l := limiter(t, store, p, nil)
	time.Sleep(time.Second)
	return l, store
}

// A client that is refused, and comes back exactly when it was told, is admitted, whatever was refused, charged or given
// back before. Package answers draws what nobody thought of here.
func TestComeBackWhenTold(t *testing.T) {
	use := func(n, gap int64) func(*testing.T, *tiered.Limiter) {
		return func(t *testing.T, l *tiered.Limiter) {
			for l.AllowN(t.Context(), "k", n).Allowed {
				time.Sleep(time.Duration(gap))
			}
		}
	}
	for name, c := range map[string]struct {
		policy tiered.Policy
		before func(*testing.T, *tiered.Limiter) // the last of it may be refused, and is remembered
		cost   int64
	}{
		"a log, dearer than what was refused": {
			tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.SlidingLog}, use(1, int64(4*time.Minute)), 5,
		},
		"a window, dearer": {
			tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.SlidingWindow}, use(1, int64(4*time.Minute)), 5,
		},
		"several limits, dearer": {
			tiered.Policy{Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(30)}}, use(1,
				int64(time.Second)), 5,
		},
		"a rate that does not divide":      {tiered.Policy{Limit: tiered.PerMinute(7)}, use(1, 0), 1},
		"a rate that does not divide, one": {tiered.Policy{Limit: tiered.PerDay(86399).WithBurst(1)}, use(1, 0), 1},
		"a fixed window that is leased": {tiered.Policy{
			Limit:     tiered.PerSecond(409),
			Algorithm: tiered.FixedWindow,
		}, use(33, 0), 33},
		"a sliding window that is leased": {tiered.Policy{
			Limit:     tiered.PerSecond(409),
			Algorithm: tiered.SlidingWindow,
		}, use(33, 0), 33},
		"a charge after the refusal": {tiered.Policy{
			Limit: tiered.PerSecond(10).WithBurst(100), MaxDebt: 1000,
			Lease: neverLeased,
		}, charged, 7},
		"tokens that came back with a request": {tiered.Policy{
			Limit: tiered.Per(274, 10*time.Second),
			Lease: neverLeased,
		}, settled, 7},
	} {
		bubble(t, name, func(t *testing.T) {
			l, _ := told(t, c.policy)
			for range 3 {
				c.before(t, l)
				d := l.AllowN(t.Context(), "k", c.cost)
				if d.Allowed {
					t.Fatal("nothing was refused: this shows nothing")
				}
				time.Sleep(d.RetryAfter)
				if e := l.AllowN(t.Context(), "k", c.cost); !e.Allowed {
					t.Fatalf("told %v by %v, came back then, and is told %v", d.RetryAfter, d.Tier, e.RetryAfter)
				}
			}
		})
	}
}

func charged(t *testing.T, l *tiered.Limiter) {
	for l.AllowN(t.Context(), "k", 100).Allowed {
	}
	l.Allow(t.Context(), "k")
	ok(t, l.Charge("k", 100))
	time.Sleep(100 * time.Millisecond) // Redis has heard of it
}

func settled(t *testing.T, l *tiered.Limiter) {
	time.Sleep(20 * time.Second)
	r := l.ReserveN(t.Context(), "k", 64)
	time.Sleep(3 * time.Second)
	r.Settle(18)
	l.AllowN(t.Context(), "k", 273)
}

// Peek says what Allow says at the same instant: of a key that is refused all of it, and of one that is admitted what was
// left before. In an outage that is what the fail mode says.
func TestPeekSaysWhatAllowSays(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"token bucket":     {Limit: tiered.PerDay(1)},
		"several limits":   {Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(1000)}},
		"sliding log":      {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingLog},
		"sliding window":   {Limit: tiered.PerMinute(10), Algorithm: tiered.SlidingWindow},
		"fixed window":     {Limit: tiered.PerMinute(10), Algorithm: tiered.FixedWindow},
		"standing":         {Limit: tiered.PerMinute(60), Standing: tiered.StandingOn},
		"share, then":      {Limit: tiered.PerMinute(10), FailMode: tiered.FailLocal},
		"nothing, then":    {Limit: tiered.PerMinute(10), FailMode: tiered.FailClosed},
		"everything, then": {Limit: tiered.PerMinute(10), FailMode: tiered.FailOpen},
		"a limit by its key": {
			Limit:  tiered.PerMinute(10),
			PerKey: func(string) tiered.Limit { return tiered.PerMinute(5) },
		},
		"nothing is refused":   {Limit: tiered.PerMinute(10), Shadow: true},
		"a lease that is held": {Limit: tiered.PerSecond(500), Lease: tiered.Lease{Size: 100}},
	} {
		bubble(t, name, func(t *testing.T) {
			l, store := told(t, p)
			same := func() (d tiered.Decision) {
				t.Helper()
				synctest.Wait() // for what is under way
				peek := l.Peek(t.Context(), "k")
				d = l.Allow(t.Context(), "k")
				want := peek
				want.Tier = d.Tier
				if want.ResetAfter = d.ResetAfter; !peek.Allowed {
					want.ResetAfter = peek.ResetAfter
				} else if peek.Reason == tiered.Granted {
					want.Remaining--
				}
				if d != want {
					t.Fatalf("Peek says %+v\nand Allow at the same instant %+v", peek, d)
				}
				return d
			}
			for i := 0; i < 700 && same().Reason == tiered.Granted; i++ {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(p.Limit.Per / 2)
			for i := 0; i < 700 && same().Reason == tiered.Granted; i++ {
			}
			ok(t, l.Charge("k", 1))
			same()
			time.Sleep(2 * p.Limit.Per)
			store.Fail(errors.New("down"))
			l.Allow(t.Context(), "k") // so that the breaker knows
			for range 5 {
				same()
				time.Sleep(time.Second)
			}
			if s := l.Stats(); s.Requests.Invalid+s.Requests.Canceled > 0 || p.Shadow &&
				s.Requests.Shadowed != s.Requests.Refused {
				t.Errorf("a look counts as a request: %+v", s.Requests)
			}
			store.Fail(nil)
		})
	}
}

// With several limits ResetAfter is that of the limit that is named, and never less than RetryAfter.
func TestResetIsOfTheLimitThatIsNamed(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.SlidingWindow} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := told(t, tiered.Policy{
				Algorithm: a, Limit: tiered.PerMinute(5), Also: []tiered.Limit{tiered.Per(1000, 30*24*time.Hour)},
			})
			d := l.Allow(t.Context(), "k")
			for d.Allowed {
				d = l.Allow(t.Context(), "k")
			}
			if d.LimitNumber != 1 || d.ResetAfter > 63*time.Second || d.ResetAfter < d.RetryAfter {
				t.Errorf("%v: refused by limit %d, come back in %v, and it is full in %v", a, d.LimitNumber, d.RetryAfter,
					d.ResetAfter)
			}
		})
	}
}

// What remains of a log does not depend on how many entries are over and not yet forgotten.
func TestRemainingOfALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := told(t, tiered.Policy{Limit: tiered.PerHour(1000), Algorithm: tiered.SlidingLog})
		for range 999 {
			l.Allow(t.Context(), "k")
			time.Sleep(time.Millisecond)
		}
		time.Sleep(30 * time.Minute)
		l.Allow(t.Context(), "k")
		time.Sleep(31 * time.Minute) // one entry counts
		peek, allow := l.PeekN(t.Context(), "k", 500), l.AllowN(t.Context(), "k", 500)
		if peek.Remaining != 999 || !peek.Allowed || allow.Remaining != 499 {
			t.Errorf("one of 1000 is used: Peek says %+v, and after 500 more %+v", peek, allow)
		}
	})
}

// Who is refused while another process holds tokens of a slow limit is told when these may be back, and not when the
// refill brings one: in a bucket as in a window.
func TestToldWhenOthersMayGiveBack(t *testing.T) {
	day := tiered.PerDay(400)
	for name, p := range map[string]tiered.Policy{
		"token bucket":   {Limit: day},
		"several limits": {Limit: day, Also: []tiered.Limit{tiered.PerHour(1000)}},
		"fixed window":   {Limit: day, Algorithm: tiered.FixedWindow},
		"sliding window": {Limit: day, Algorithm: tiered.SlidingWindow},
	} {
		bubble(t, name, func(t *testing.T) {
			holder, store := told(t, p)
			p.Name = "api"
			other := limiter(t, store, p, nil)
			held := func() int64 { return holder.Group().Stats().Policies["api"].Leases.Held }
			for i := 0; i < 200 || held() == 0; i++ {
				holder.Allow(t.Context(), "k")
				time.Sleep(time.Millisecond)
			}
			d := other.Allow(t.Context(), "k")
			for d.Allowed {
				d = other.Allow(t.Context(), "k")
			}
			if held() == 0 {
				t.Fatal("nobody holds anything: this shows nothing")
			}
			if d.RetryAfter > time.Second {
				t.Errorf("told %v by %v while the other holds %d", d.RetryAfter, d.Tier, held())
			}
		})
	}
}
