package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Reset forgives what was used, also by leases of other processes that are over.
func TestResetForgivesWhatOthersLeased(t *testing.T) {
	for _, a := range algorithms {
		for _, later := range []time.Duration{1500 * time.Millisecond, time.Hour} {
			bubble(t, fmt.Sprint(a, " ", later), func(t *testing.T) {
				s := remote.NewMemory()
				var all []*tiered.Limiter
				for range 3 {
					l := limiter(t, s, tiered.Policy{Limit: tiered.PerDay(100), Algorithm: a}, nil)
					all = append(all, l)
				}
				time.Sleep(4 * time.Second)
				var crowd sync.WaitGroup
				for i := range 30 {
					crowd.Go(func() { all[i%3].Allow(ctx, "user") })
				}
				crowd.Wait()
				time.Sleep(later)
				ok(t, all[2].Reset(ctx, "user"))
				if d := all[2].Peek(ctx, "user"); d.Remaining < d.Burst {
					t.Errorf("%v after the last request, after Reset, %d of %d remain", later, d.Remaining, d.Burst)
				}
			})
		}
	}
}

// What a Reset has forgiven does not come back once more when its request is canceled, in place of
// what others took since.
func TestCancelAfterResetGivesBackNothing(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog} {
		bubble(t, fmt.Sprint(a), func(t *testing.T) {
			s := remote.NewMemory()
			var all []*tiered.Limiter
			for range 2 {
				l := limiter(t, s, tiered.Policy{
					Limit: tiered.PerHour(10), Algorithm: a, Calendar: a == tiered.FixedWindow,
				}, nil)
				all = append(all, l)
			}
			time.Sleep(4 * time.Second)
			forgiven := all[0].ReserveN(ctx, "user", 4)
			time.Sleep(time.Second)
			ok(t, all[1].Reset(ctx, "user"))
			admitted := func() (n int) {
				for all[1].Allow(ctx, "user").Allowed {
					n++
				}
				return n
			}
			time.Sleep(time.Second)
			before := admitted()
			forgiven.Cancel()
			time.Sleep(6 * time.Second) // Redis hears of it, and no refusal is believed any more
			if after := admitted(); before != 10 || after != 0 {
				t.Errorf("%d and then %d of 10 an hour were admitted after the Reset", before, after)
			}
		})
	}
}

// If Reset returns nil, the bucket is reset, also if Redis' clock was set back or ahead before the
// process noticed it.
func TestResetWhenTheClockIsSet(t *testing.T) {
	const back, hour, ahead = -2 * second, -time.Hour, 2 * second
	for _, c := range []struct {
		name   string
		before time.Duration   // it is set before Reset is called, and nothing is heard of it
		during []time.Duration // before the look of Reset, before its first call and before its second
		fails  bool
	}{
		{name: "before", before: back},
		{name: "an hour before", before: hour},
		{name: "before, ahead", before: ahead},
		{name: "after the look", during: []time.Duration{0, back}},
		{name: "an hour after the look", during: []time.Duration{0, hour}},
		{name: "after the look, ahead", during: []time.Duration{0, ahead}},
		{name: "again and again", during: []time.Duration{0, back, back}, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, p tiered.Policy) {
				store := &setting{distant: newDistant(ms)}
				l := limiter(t, store, p, nil)
				for range 10 {
					want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
				}
				time.Sleep(10 * ms)
				store.Step(c.before)
				time.Sleep(100 * ms)
				store.steps = c.during
				err := l.Reset(ctx, "k")
				left := remaining(t, l)
				if fails := c.fails && p.Algorithm != tiered.SlidingLog; fails && !errors.Is(err, tiered.ErrUnavailable) ||
					!fails && err != nil {
					t.Errorf("Reset: %v", err)
				} else if err == nil && left != 100 {
					t.Errorf("Reset returned nil, and %d of 100 are left", left)
				}
				if err == nil && !l.AllowN(ctx, "k", 100).Allowed {
					t.Error("what is denied was not forgotten")
				}
			})
		})
	}
}

func TestResetOutOfDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newTape(), tiered.Policy{Limit: tiered.PerDay(10), MaxDebt: 100}, nil)
		ok(t, l.For("k").N(100).Charge())
		time.Sleep(tiered.DefaultTimeout)
		ok(t, l.Reset(ctx, "k"))
		if d := l.Peek(ctx, "k"); d.Remaining != 10 {
			t.Errorf("%d left after a reset from -90", d.Remaining)
		}
	})
}

// Reset fills a key whose debt is that of a larger limit, by which another process goes.
func TestResetByTheSmallerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := context.Background(), remote.NewMemory()
		var all []*tiered.Limiter
		for _, limit := range []tiered.Limit{tiered.PerHour(1000), tiered.PerHour(10)} {
			l := limiter(t, s, tiered.Policy{Limit: limit}, nil)
			all = append(all, l)
		}
		ok(t, all[0].For("user").N(1800).Charge())
		time.Sleep(time.Second)
		ok(t, all[1].Reset(ctx, "user"))
		for i, want := range []int64{1000, 10} {
			if d := all[i].Peek(ctx, "user"); d.Remaining != want {
				t.Errorf("%d of %d remain, want %d", d.Remaining, d.Burst, want)
			}
		}
	})
}

// A refund is credited only under a deadline within one ttl: with a Timeout beyond that, Reset
// reported nil and did nothing.
func TestResetWithALongTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10)},
			&tiered.Options{Timeout: 10 * time.Second})
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		ok(t, l.Reset(ctx, "k"))
		want(t, l.Allow(ctx, "k"), tiered.Granted)
	})
}
