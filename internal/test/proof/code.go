package proof

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// names are what a program writes for values of package tiered.
var names = map[any]string{
	tiered.Unlimited(): "tiered.Unlimited()", tiered.Blocked(): "tiered.Blocked()",
	tiered.Lease{Size: tiered.NoLease}: "tiered.Lease{Size: tiered.NoLease}",
	tiered.FixedWindow:                 "tiered.FixedWindow", tiered.SlidingLog: "tiered.SlidingLog",
	tiered.SlidingWindow: "tiered.SlidingWindow", tiered.FailOpen: "tiered.FailOpen", tiered.FailClosed: "tiered.FailClosed",
}

// Code returns a value as Go, without the fields that are zero and without functions. Other words
// for numbers are as their String says: that is to be read only.
func Code(of any) string { return code(reflect.ValueOf(of)) }

func code(v reflect.Value) string {
	if v.Comparable() {
		if name := names[v.Interface()]; name != "" {
			return name
		}
	}
	var parts []string
	switch x := v.Interface().(type) {
	case time.Duration:
		return duration(x)
	case string:
		return fmt.Sprintf("%q", x)
	case tiered.Limit:
		if each := x.Each(); len(each) > 1 {
			for _, l := range each[1:] {
				parts = append(parts, code(reflect.ValueOf(l)))
			}
			return code(reflect.ValueOf(each[0])) + ".And(" + strings.Join(parts, ", ") + ")"
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !v.Field(i).IsZero() && f.Type.Kind() != reflect.Func {
				parts = append(parts, f.Name+": "+code(v.Field(i)))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			parts = append(parts, code(v.Index(i)))
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(code(a), code(b)) })
		for _, k := range keys {
			parts = append(parts, code(k)+": "+code(v.MapIndex(k)))
		}
	default:
		return fmt.Sprint(v.Interface())
	}
	return v.Type().String() + "{" + strings.Join(parts, ", ") + "}"
}

// duration returns a duration as Go.
func duration(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "Hour"}, {time.Minute, "Minute"}, {time.Second, "Second"}, {time.Millisecond, "Millisecond"}, {time.Microsecond, "Microsecond"}} {
		if d >= u.unit && d%u.unit == 0 {
			return fmt.Sprintf("%d * time.%s", d/u.unit, u.name)
		}
	}
	return fmt.Sprint(int64(d))
}
