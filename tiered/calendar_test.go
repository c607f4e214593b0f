package tiered_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that the tests do not depend on the machine

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// untilDate lets time pass until a date in a zone.
func untilDate(zone string, y int, m time.Month, d, hour int) time.Time {
	at := time.Date(y, m, d, hour, 0, 0, 0, must(time.LoadLocation(zone)))
	time.Sleep(time.Until(at))
	return at
}

// Each customer's quota ends on his own billing day, at midnight of the zone: so much is admitted
// before it and so much after it, by leases or not, in one process or several.
func TestQuotaPerMonth(t *testing.T) {
	t.Parallel()
	quota := func(n int64) tiered.Limit { return tiered.PerMonth(n).In("America/New_York") }
	billed := map[string]int{"ann": 17, "bob": 31, "eve": 1}
	for _, size := range []int64{0, 7, tiered.NoLease} {
		for _, processes := range []int{1, 3} {
			for _, day := range []struct {
				key   string
				month time.Month
				last  int // of its month: the edge is at its end
			}{{"ann", time.February, 16}, {"bob", time.February, 28}, {"eve", time.March, 31}} {
				bubble(t, fmt.Sprint(size, processes, day.key), func(t *testing.T) {
					edge := untilDate("America/New_York", 2000, day.month, day.last, 23).Add(time.Hour)
					time.Sleep(time.Until(edge) - 10*second) // without heartbeats
					p := tiered.Policy{
						Limit: quota(200), Algorithm: tiered.FixedWindow, FailMode: tiered.FailClosed, Lease: tiered.Lease{Size: size},
						PerKey: func(key string) tiered.Limit { return quota(200).From(billed[key]) },
					}
					store := newDistant(ms)
					var all []*tiered.Limiter
					for range processes {
						all = append(all, limiter(t, store, p, nil))
					}
					admitted := map[bool]int{}
					for time.Until(edge) > -30*second {
						if d := until(edge, 5*second); d > 0 {
							time.Sleep(d)
						}
						for _, l := range all {
							d := l.Allow(ctx, day.key)
							now := time.Now()
							if before := now.Before(edge); d.Allowed {
								admitted[before]++
							} else if end := now.Add(d.ResetAfter); before && d.Reason == tiered.Limited &&
								(end.Before(edge) || end.After(edge.Add(20*ms)) || now.Add(d.RetryAfter).After(edge.Add(20*ms))) {
								t.Fatalf("%v before the edge: %v", edge.Sub(now), d)
							}
						}
						time.Sleep(20 * ms)
					}
					if admitted[true] != 200 || admitted[false] != 200 {
						t.Fatalf("%v were admitted before and after %v, want 200 each", admitted, edge)
					}
				})
			}
		}
	}
}

// until returns how long to sleep so that what is left until the edge is d, once much more is left.
func until(edge time.Time, d time.Duration) time.Duration {
	if left := time.Until(edge); left < time.Hour && left > 10*d {
		return left - d
	}
	return 0
}

// What an operator and a user do with any window they do with one of the calendar.
func TestCalendarHasWhatWindowsHave(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		untilDate("UTC", 2000, time.February, 28, 12)
		p := tiered.Policy{Limit: tiered.PerMonth(100).In("Europe/London"), Algorithm: tiered.FixedWindow}
		l := limiter(t, remote.NewMemory(), p, nil)
		left := func(want int64) {
			t.Helper()
			time.Sleep(100 * ms)
			if d := l.Peek(ctx, "k"); d.Remaining != want || !d.Allowed {
				t.Fatalf("%v, want %d left", d, want)
			}
		}
		left(100)
		r := l.ReserveN(ctx, "k", 30)
		want(t, r.Decision, tiered.Granted)
		left(70)
		r.Settle(10)
		left(90)
		ok(t, l.For("k").N(50).Charge())
		left(40)
		l.ReserveN(ctx, "k", 40).Cancel()
		left(40)
		ok(t, l.Reset(ctx, "k"))
		left(100)
		want(t, l.AllowN(ctx, "k", 100), tiered.Granted)
		d := l.Allow(ctx, "k")
		want(t, d, tiered.Limited)
		if at := time.Now().Add(d.RetryAfter); !at.Truncate(second).Equal(time.Date(2000, 3, 1, 0, 0, 0, 0, time.UTC)) {
			t.Fatalf("retry at %v", at)
		}
		raised := p
		raised.Name, raised.Limit = "api", tiered.PerMonth(120).In("Europe/London")
		ok(t, l.SetPolicy(raised))
		time.Sleep(6 * second)
		want(t, l.AllowN(ctx, "k", 20), tiered.Granted)
		raised.Limit = tiered.PerYear(120)
		if err := l.SetPolicy(raised); err == nil {
			t.Fatal("a year replaces a month")
		}
	})
}

// A FixedWindow of 28 days or more is probably meant to be a month: New says so, and takes it.
func TestMonthThatIsNone(t *testing.T) {
	days := func(n int64) tiered.Limit { return tiered.Per(100, time.Duration(n)*24*time.Hour) }
	for _, c := range []struct {
		p    tiered.Policy
		told bool
	}{
		{tiered.Policy{Limit: days(30), Algorithm: tiered.FixedWindow}, true},
		{tiered.Policy{Limit: days(28), Algorithm: tiered.FixedWindow, Calendar: true}, true},
		{tiered.Policy{Limit: days(366), Algorithm: tiered.FixedWindow}, true},
		{tiered.Policy{Limit: days(27), Algorithm: tiered.FixedWindow}, false},
		{tiered.Policy{Limit: tiered.PerMonth(100), Algorithm: tiered.FixedWindow}, false},
		{tiered.Policy{Limit: days(30), Algorithm: tiered.SlidingWindow}, false}, // right, if not what a bill says
		{tiered.Policy{Limit: days(30)}, false},
	} {
		bubble(t, c.p.Limit.String(), func(t *testing.T) {
			var log logged
			c.p.Name = "api"
			l := must(tiered.New(remote.NewMemory(), c.p, &tiered.Options{Logger: log.logger()}))
			again := c.p
			again.FailMode = tiered.FailOpen
			ok(t, l.SetPolicy(again)) // which is no news
			ok(t, l.Close(ctx))
			if n := strings.Count(log.String(), "not what was meant"); n > 1 {
				t.Errorf("%v is told %d times", c.p, n)
			}
			for _, text := range []string{log.String(), fmt.Sprint(c.p.Warnings())} {
				if strings.Contains(text, "Policy.Limit.Per is "+c.p.Limit.Per.String()+": a month?") != c.told {
					t.Errorf("%v: %s", c.p, text)
				}
			}
		})
	}
}
