package tiered_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// While a call is under way, no method of a Group waits for it. Stats takes every lock of a Group.
// If a lock were held across the call, the bubble's time would stop and the test would not end.
func TestNoLockIsHeldAcrossTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(40 * ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100_000)}, &tiered.Options{Budget: time.Second})
		warm(t, l, "leased", 200)
		var all sync.WaitGroup
		all.Go(func() { want(t, l.Allow(ctx, "cold"), tiered.Granted) })
		time.Sleep(ms) // the call is under way
		start := time.Now()
		if d := l.Allow(ctx, "leased"); d.Tier != tiered.Local {
			t.Fatalf("%+v", d)
		}
		l.Group().Stats()
		if _, err := l.Group().NewLimiter(tiered.Policy{Name: "another", Limit: tiered.PerSecond(1)}); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v for another goroutine's call", d)
		}
		all.Wait()
	})
}

// A request for more tokens than there were also refused a cheap one, for which there were enough.
func TestDearRequestDoesNotRefuseACheapOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10)}, nil)
		want(t, l.AllowN(ctx, "k", 5), tiered.Granted)
		var all sync.WaitGroup
		all.Go(func() {
			if d := l.AllowN(ctx, "k", 8); d.Reason != tiered.Limited || d.Remaining != 5 {
				t.Errorf("%+v", d)
			}
		})
		time.Sleep(100 * time.Microsecond)
		want(t, l.Allow(ctx, "k"), tiered.Granted)
		all.Wait()
	})
}

// A key without leases took everything directly, as long as somebody waited: what it owed, and what
// was given back, never left.
func TestBusyKeyWithoutLeasesSettlesAndRefunds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(1000), Lease: neverLeased},
			&tiered.Options{Processes: 1})
		r := l.ReserveN(context.Background(), "k", 1) // before the crowd, which would not let it through
		want(t, r.Decision, tiered.Granted)
		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { // somebody waits whenever a call leaves
				for ctx.Err() == nil {
					l.Allow(context.Background(), "k")
					time.Sleep(100 * time.Microsecond)
				}
			})
		}
		time.Sleep(100 * ms)
		before := l.Stats().Leases.Returned
		r.Cancel()
		time.Sleep(50 * ms)
		if l.Stats().Leases.Returned == before {
			t.Error("the refund has not left within 50 ms")
		}
		store.loseRequests.Store(true)
		time.Sleep(3 * time.Second)
		store.loseRequests.Store(false)
		time.Sleep(3 * time.Second)
		if s := l.Stats(); s.Tokens.Fallback == 0 || s.Costs.Settled != s.Tokens.Fallback {
			t.Errorf("%d admitted alone, %d settled", s.Tokens.Fallback, s.Costs.Settled)
		}
		stop()
		all.Wait()
	})
}

// A program that ignores the error of New has a nil Limiter. All methods of it refuse, and none
// panics.
func TestNilAndZeroRefuse(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	usable := []any{ctx, "k", int64(1), tiered.PerSecond(1), tiered.Policy{Name: "p", Limit: tiered.PerSecond(1)}}
	for _, receiver := range []any{(*tiered.Limiter)(nil), new(tiered.Limiter), (*tiered.Group)(nil), new(tiered.Group)} {
		for _, arguments := range [][]any{nil, usable} {
			v := reflect.ValueOf(receiver)
			for i := range v.NumMethod() {
				t.Run(v.Type().Method(i).Name, func(t *testing.T) {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("%v with %v panics: %v", v, arguments, p)
						}
					}()
					for _, out := range v.Method(i).Call(pick(v.Method(i).Type(), arguments)) {
						if !refuses(ctx, out) {
							t.Errorf("%v with %v returns %+v: must be an error or nothing", v, arguments, out)
						}
					}
				})
			}
		}
	}
}

// pick returns arguments for a function: for each the first value that fits, or else zero.
func pick(function reflect.Type, values []any) (in []reflect.Value) {
	for i := range function.NumIn() {
		one := reflect.Zero(function.In(i))
		for _, v := range values {
			if reflect.TypeOf(v).AssignableTo(one.Type()) {
				one = reflect.ValueOf(v)
				break
			}
		}
		in = append(in, one)
	}
	return in
}

// refuses reports whether the result of a method is what a nil Limiter or Group returns.
func refuses(ctx context.Context, out reflect.Value) bool {
	switch r := out.Interface().(type) {
	case error:
		return true
	case tiered.Reservation:
		r.Settle(2)
		return r.Decision == tiered.Decision{}
	case tiered.Use:
		return r.WithLimit(tiered.PerSecond(1)).Allow(ctx) == tiered.Decision{}
	}
	return out.IsZero() && out.Type() != reflect.TypeFor[error]()
}

func TestNilLimiterIsUnavailable(t *testing.T) {
	l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerHour(1)}, nil)
	var none *tiered.Limiter
	for _, err := range []error{none.Wait(ctx, "k"), none.For("k").N(1).Charge(), tiered.All(none.For("k"), l.For("k")).Wait(ctx)} {
		if !errors.Is(err, tiered.ErrUnavailable) {
			t.Errorf("%v: must be ErrUnavailable", err)
		}
	}
	want(t, l.Allow(ctx, "k"), tiered.Granted) // nothing was taken
}

func TestNilLimitedError(t *testing.T) {
	var e *tiered.LimitedError
	if e.Error() == "" || errors.Is(e, tiered.ErrLimited) {
		t.Errorf("%v is over a limit", e)
	}
}
