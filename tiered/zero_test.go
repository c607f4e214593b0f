package tiered_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A program that ignores the error of New has a nil Limiter. All methods of it refuse, and none panics.
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
