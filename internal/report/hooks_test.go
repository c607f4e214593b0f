package report_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// Calls that wait for a slow hook are bounded, those beyond are counted, and those that wait are
// called at the end, in order.
func TestHooksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, release := report.NewHooks(), make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		ended := false
		go func() {
			h.Run(ctx, func(what string) { t.Error(what) })
			ended = true
		}()
		var called []int
		for i := range 3 * report.HookRoom {
			h.Call(func() { <-release; called = append(called, i) })
			if i == 0 {
				synctest.Wait() // it is being called
			}
		}
		if h.Dropped() != 2*report.HookRoom-1 {
			t.Errorf("%d dropped", h.Dropped())
		}
		stop()
		close(release)
		synctest.Wait()
		if len(called) != report.HookRoom+1 || !ended || h.Dropped() != 2*report.HookRoom-1 {
			t.Errorf("%d called, %d dropped, ended: %v", len(called), h.Dropped(), ended)
		}
		for i, n := range called {
			if i != n {
				t.Fatalf("call %d is the %dth", n, i)
			}
		}
	})
}

// A hook that panics is counted, and the next one is called. One that causes an event each time
// does not keep Run from ending.
func TestHooksThatPanicOrNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := report.NewHooks()
		var panics []string
		ctx, stop := context.WithCancel(t.Context())
		ended := false
		go func() {
			h.Run(ctx, func(what string) { panics = append(panics, what) })
			ended = true
		}()
		calls := 0
		var again func()
		again = func() {
			time.Sleep(time.Millisecond)
			calls++
			h.Call(again)
			panic("again")
		}
		h.Call(again)
		time.Sleep(100*time.Millisecond + 1)
		stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if !ended || calls < 100 || calls > 130 || h.Panics() != int64(calls) || len(panics) != calls {
			t.Errorf("%d calls, %d panics, %d told, ended: %v", calls, h.Panics(), len(panics), ended)
		}
		if !strings.HasPrefix(panics[0], "string in ") || strings.Contains(panics[0], "again") {
			t.Errorf("%q", panics[0])
		}
	})
}

// none returns a zero value, of which a linter knows nothing.
func none[T any]() (zero T) { return zero }

// A function of the user may panic with a key. The log says where it panicked, and never repeats
// the value.
func TestPanicsWithoutTheirValue(t *testing.T) {
	const secret = "ann@example.com"
	var plans []int
	for name, c := range map[string]struct {
		panics func()
		want   string
	}{
		"text":    {func() { panic("no plan for " + secret) }, "string in "},
		"error":   {func() { panic(fmt.Errorf("no plan for %s", secret)) }, "*errors.errorString in "},
		"key":     {func() { panic(report.RefusedKey{Key: secret}) }, "report.RefusedKey in "},
		"nil":     {func() { panic(none[any]()) }, "panic called with nil argument"},
		"runtime": {func() { plans[len(secret)]++ }, "index out of range [15] with length 0 in "},
		"pointer": {func() { *none[*int]() = 1 }, "nil pointer dereference in "},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				got := report.PanicOf(recover())
				if !strings.Contains(got, c.want) || !strings.Contains(got, "TestPanicsWithoutTheirValue") ||
					strings.Contains(got, secret) {
					t.Errorf("%q, want %q", got, c.want)
				}
			}()
			c.panics()
		})
	}
}
