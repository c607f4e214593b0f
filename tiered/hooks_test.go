package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hookMost is how often a hook of these tests asks: without it one that feeds itself would never end, nor would the
// test.
const hookMost = 200

// hooks makes a Trace of one hook for each kind of event, and makes that kind of event happen.
var hooks = []struct {
	name    string
	trace   func(f func()) *Trace
	happens func(t *testing.T, store *distant, l *Limiter)
}{
	{
		"decision", func(f func()) *Trace { return &Trace{Decision: func(Decision) { f() }} },
		func(t *testing.T, _ *distant, l *Limiter) {
			l.Allow(t.Context(), "k")
		},
	},
	{
		"lease", func(f func()) *Trace { return &Trace{Lease: func(LeaseEvent) { f() }} },
		func(t *testing.T, _ *distant, l *Limiter) {
			l.Allow(t.Context(), "k")
		},
	},
	{
		"error", func(f func()) *Trace { return &Trace{Error: func(ErrorEvent) { f() }} },
		func(t *testing.T, store *distant, l *Limiter) {
			store.Fail(context.DeadlineExceeded)
			l.Allow(t.Context(), "k")
		},
	},
	{
		"state", func(f func()) *Trace { return &Trace{State: func(StateEvent) { f() }} },
		func(t *testing.T, store *distant, l *Limiter) {
			store.Fail(context.DeadlineExceeded)
			for i := range 4 {
				l.Allow(t.Context(), fmt.Sprint(i))
			}
		},
	},
	{
		"fault", func(f func()) *Trace { return &Trace{Fault: func(FaultEvent) { f() }} },
		func(t *testing.T, store *distant, l *Limiter) {
			l.Allow(t.Context(), "k")
			store.Memory.Step(-time.Minute)
			l.Allow(t.Context(), "j")
		},
	},
	{
		"standing", func(f func()) *Trace { return &Trace{Standing: func(StandingEvent) { f() }} },
		func(t *testing.T, _ *distant, l *Limiter) {
			if _, err := l.group.NewLimiter(standingPolicy("users")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * second)
		},
	},
	{
		"wait", func(f func()) *Trace { return &Trace{Wait: func(WaitEvent) { f() }} },
		func(t *testing.T, _ *distant, l *Limiter) {
			l.AllowN(t.Context(), "k", 1000)
			_ = l.WaitN(t.Context(), "k", 1000)
		},
	},
}

// teller calls a function for each line that is logged.
type teller func()

func (teller) Enabled(context.Context, slog.Level) bool    { return true }
func (f teller) Handle(context.Context, slog.Record) error { f(); return nil }
func (f teller) WithAttrs([]slog.Attr) slog.Handler        { return f }
func (f teller) WithGroup(string) slog.Handler             { return f }
func loggedBy(f func()) *slog.Logger                       { return slog.New(teller(f)) }

// A hook's own requests are decided and counted, but reported to no hook. It is called as often as without them.
func TestHookThatAsks(t *testing.T) {
	asks := map[string]func(l *Limiter, n int){
		"nothing":         func(*Limiter, int) {},
		"one key":         func(l *Limiter, _ int) { l.Allow(context.Background(), "log") },
		"a key each time": func(l *Limiter, n int) { l.Allow(context.Background(), fmt.Sprint("log", n)) },
		"several keys": func(l *Limiter, n int) {
			All(l.For("log"),
				l.For(fmt.Sprint(n))).Allow(context.Background())
		},
		"what is invalid":   func(l *Limiter, _ int) { l.AllowN(context.Background(), "log", -1) },
		"a look":            func(l *Limiter, n int) { l.Peek(context.Background(), fmt.Sprint("log", n)) },
		"a reset":           func(l *Limiter, _ int) { _ = l.Reset(context.Background(), "log") },
		"a turn in a queue": func(l *Limiter, n int) { _ = l.Wait(context.Background(), fmt.Sprint("log", n)) },
		"a wait": func(l *Limiter, n int) {
			l.AllowN(context.Background(), fmt.Sprint("log", n), 1000)
			_ = l.WaitN(context.Background(), fmt.Sprint("log", n), 1000)
		},
	}
	for _, h := range hooks {
		t.Run(h.name, func(t *testing.T) {
			times := map[string]int64{}
			for name, ask := range asks {
				synctest.Test(t, func(t *testing.T) {
					var l *Limiter
					var calls atomic.Int64
					store := newDistant(ms)
					l = limiter(t, store, Policy{
						Name: "api", Limit: PerSecond(1000), Lease: Lease{Size: NoLease},
						FailMode: FailClosed,
					},
						&Options{Trace: h.trace(func() {
							if n := calls.Add(1); n < hookMost {
								ask(l, int(n))
							}
						})})
					time.Sleep(10 * ms)
					h.happens(t, store, l)
					time.Sleep(5 * second)
					store.Fail(nil)
					time.Sleep(5 * second)
					times[name] = calls.Load()
				})
			}
			for name, n := range times {
				// A breaker has its own pace: a node that is asked is also probed, twice in a second at most.
				if base := times["nothing"]; base == 0 ||
					n != base && (h.name != "state" || n > base+25) && (h.name != "error" || n > base+10) {
					t.Errorf("a hook that asks for %s was called %d times, one that asks for nothing %d times", name,
						n, base)
				}
			}
		})
	}
}

// Decisions of other goroutines are reported while a hook runs.
func TestOthersAreToldOfWhileAHookAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Limiter
		var keys []string
		l = limiter(t, newDistant(ms), Policy{Name: "api", Limit: PerSecond(1000)},
			&Options{Trace: &Trace{Decision: func(d Decision) {
				keys = append(keys, d.Key)
				l.Allow(context.Background(), "log")
				time.Sleep(10 * ms)
				l.Allow(context.Background(), "log")
			}}})
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprint(i))
			l.Allow(t.Context(), want[i])
			time.Sleep(ms)
		}
		time.Sleep(second)
		synctest.Wait()
		if !slices.Equal(keys, want) {
			t.Errorf("told of %q, want all of the user's and nothing else", keys)
		}
	})
}

// A Close in a hook does not wait for that hook.
func TestHookThatCloses(t *testing.T) {
	closes := func(l *Limiter, all chan<- error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*second)
		defer cancel()
		all <- l.Close(ctx)
	}
	for _, h := range hooks {
		t.Run(h.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l *Limiter
				all := make(chan error, traceQueue)
				store := newDistant(ms)
				l = limiter(t, store, Policy{Name: "api", Limit: PerSecond(1000)},
					&Options{Trace: h.trace(func() { closes(l, all) })})
				time.Sleep(10 * ms)
				h.happens(t, store, l)
				start := time.Now()
				if err := <-all; err != nil || time.Since(start) > 2*second {
					t.Errorf("Close: %v after %v", err, time.Since(start))
				}
				store.Fail(nil)
			})
		})
	}
	t.Run("logger", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var l *Limiter
			all := make(chan error, traceQueue)
			p := Policy{Name: "api", Limit: PerSecond(1000), PerKey: func(string) Limit { panic("no") }}
			l = limiter(t, newDistant(ms), p, &Options{Logger: loggedBy(func() { closes(l, all) })})
			time.Sleep(10 * ms)
			l.Allow(t.Context(), "k")
			start := time.Now()
			if err := <-all; err != nil || time.Since(start) > 2*second {
				t.Errorf("Close: %v after %v", err, time.Since(start))
			}
		})
	})
	t.Run("both", func(t *testing.T) { // neither waits for the other's Close
		synctest.Test(t, func(t *testing.T) {
			var l *Limiter
			all := make(chan error, traceQueue)
			p := Policy{Name: "api", Limit: PerSecond(1000), PerKey: func(string) Limit { panic("no") }}
			closing := func() { closes(l, all) }
			l = limiter(t, newDistant(ms), p, &Options{
				Logger: loggedBy(closing),
				Trace:  &Trace{Decision: func(Decision) { closing() }},
			})
			time.Sleep(10 * ms)
			l.Allow(t.Context(), "k")
			start := time.Now()
			for range 2 {
				if err := <-all; err != nil || time.Since(start) > 2*second {
					t.Errorf("Close: %v after %v", err, time.Since(start))
				}
			}
		})
	})
	t.Run("in another goroutine", func(t *testing.T) { // that the hook waits for: as documented
		synctest.Test(t, func(t *testing.T) {
			var l *Limiter
			all := make(chan error, traceQueue)
			l = limiter(t, newDistant(ms), Policy{Name: "api", Limit: PerSecond(1000)},
				&Options{Trace: &Trace{Decision: func(Decision) {
					done := make(chan struct{})
					go func() { closes(l, all); close(done) }()
					<-done
				}}})
			l.Allow(t.Context(), "k")
			if err := <-all; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close: %v", err)
			}
		})
	})
}

// A hook that makes requests on another goroutine causes events for ever. Close still ends.
func TestHookThatFeedsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Limiter
		var stop atomic.Bool // so that the test ends in any case
		l = limiter(t, newDistant(ms), Policy{Name: "api", Limit: PerSecond(1000)},
			&Options{Trace: &Trace{Decision: func(Decision) {
				time.Sleep(ms)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if !stop.Load() {
						l.Allow(context.Background(), "log")
					}
				}()
				<-done
			}}})
		l.Allow(t.Context(), "k")
		time.Sleep(second)
		closeIn(t, l, 5*second)
		stop.Store(true)
	})
}

// A Logger's handler may make requests too.
func TestLoggerThatAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Limiter
		lines := 0
		p := Policy{Name: "api", Limit: PerSecond(1000), PerKey: func(string) Limit { panic("no") }}
		l = limiter(t, newDistant(ms), p, &Options{Logger: loggedBy(func() {
			if lines++; lines < hookMost {
				l.Allow(context.Background(), fmt.Sprint("log", lines))
			}
		})})
		time.Sleep(10 * ms)
		l.Allow(t.Context(), "k")
		time.Sleep(10 * second)
		synctest.Wait()
		if lines != 1 {
			t.Errorf("%d lines, want the one of PerKey", lines)
		}
		if n := l.group.Stats().Policies["api"].Spent; n != 2 {
			t.Errorf("%d spent, want the user's and the handler's", n)
		}
	})
}

// isCurrent tells the goroutine within a call from all others, also from those that set SetPanicOnFault.
func TestCaller(t *testing.T) {
	var c callbackGoroutine
	if c.isCurrent() {
		t.Error("before a call")
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		for range 3 {
			c.call(func() {
				if !c.isCurrent() {
					t.Error("in the call")
				}
				other := make(chan bool)
				go func() {
					var own callbackGoroutine
					inside := false
					own.call(func() { inside = c.isCurrent() }) // faults are panics there as well
					other <- inside || c.isCurrent()
				}()
				if <-other {
					t.Error("in another goroutine, while the call is under way")
				}
				if !c.isCurrent() {
					t.Error("in the call, asked again")
				}
			})
			if c.isCurrent() {
				t.Error("after the call")
			}
		}
	}()
	<-ran
	if a, b := goroutineID(), goroutineID(); a <= 0 || a != b {
		t.Errorf("this goroutine's number is %d and %d", a, b)
	}
}

func BenchmarkDecisionWhileAHookRuns(b *testing.B) {
	var c callbackGoroutine
	c.busy.Store(true)
	for b.Loop() {
		c.isCurrent()
	}
}
