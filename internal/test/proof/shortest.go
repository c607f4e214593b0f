// Package proof has what the random proofs below it share.
package proof

import (
	"reflect"
	"slices"
	"time"
)

// Shortest leaves out of a list what it can, as long as the list is still broken: all of it first, then parts of half of
// what is left, then smaller ones.
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

// Simplest makes fields and elements of a value zero, or else one, or a round time, as long as it is still broken. A
// value that cannot be played is not.
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
