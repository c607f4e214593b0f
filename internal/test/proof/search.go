// Package proof has what the random proofs below it share.
package proof

import (
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// First plays count random things, some at once, and returns the number of the first that is
// broken, or count. Each worker has a test of its own, for its bubbles. After a broken one only
// those before it are played, unless all are.
func First(t *testing.T, count int, all bool, broken func(t *testing.T, n int) bool) int {
	var next, first atomic.Int64
	first.Store(int64(count))
	t.Run("workers", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(count) && (all || n < first.Load()); n = next.Add(1) - 1 {
					if broken(t, int(n)) {
						for f := first.Load(); n < f && !first.CompareAndSwap(f, n); f = first.Load() {
						}
					}
				}
			})
		}
	})
	return int(first.Load())
}

// Shortest leaves out of a list what it can, as long as the list is still broken: all of it first,
// then parts of half of what is left, then smaller ones.
func Shortest[T any](list []T, broken func([]T) bool) []T {
	for size := len(list); size > 0; {
		smaller := false
		for at := 0; at+size <= len(list); {
			if without := slices.Concat(list[:at], list[at+size:]); broken(without) {
				list, smaller = without, true
			} else {
				at += size
			}
		}
		if !smaller || size > len(list)/2 {
			size /= 2
		}
	}
	return list
}

// Simplest makes fields and elements of a value zero, or else one, or a round time, as long as it
// is still broken. A value that cannot be played is not.
func Simplest[T any](of T, broken func(T) bool) T {
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		before, to := reflect.New(v.Type()).Elem(), []reflect.Value{reflect.Zero(v.Type())}
		before.Set(v)
		if v.CanInt() {
			to = append(to, reflect.ValueOf(1).Convert(v.Type()))
		}
		if d, ok := v.Interface().(time.Duration); ok {
			to[1] = reflect.ValueOf(d.Round(time.Millisecond))
		}
		for _, x := range to {
			if v.IsZero() || v.CanInt() && v.Equal(x) {
				return
			}
			if v.Set(x); broken(of) {
				return
			}
			v.Set(before)
		}
		switch v.Kind() {
		case reflect.Slice:
			v.Set(reflect.AppendSlice(reflect.Zero(v.Type()), v)) // that of the caller stays as it is
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		}
	}
	walk(reflect.ValueOf(&of).Elem())
	return of
}
