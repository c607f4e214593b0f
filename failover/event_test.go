package failover_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// TestEvents: each change is told once, in order, with its time and its cause.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list[string]
		start := time.Now()
		g := failover.New(failover.Options{Uniform: draws(0), OnChange: func(e failover.Event) {
			got.add(fmt.Sprint(e.At.Sub(start), " ", e.From, " ", e.To, " ", e.Err))
		}})
		run(t, g, "sfff")
		time.Sleep(time.Second)
		g.Begin(nil)
		time.Sleep(time.Second)
		run(t, g, "pcs")
		run(t, g, "m")
		want := []string{
			"0s closed open unreachable",
			"1s open probing <nil>",
			"1.05s probing open failover: the attempt took longer than its timeout",
			"2s open probing <nil>",
			"2s probing open redis: connection pool timeout",
			"2s open probing <nil>",
			"2s probing open context canceled",
			"2s open probing <nil>",
			"2s probing closed <nil>",
			"2s closed open NOAUTH Authentication required.",
		}
		if !slices.Equal(got.get(), want) {
			t.Errorf("got  %q\nwant %q", got.get(), want)
		}
	})
}

// TestEventsCallTheGuard: OnChange may call everything, and what that changes is told after it has
// returned.
func TestEventsCallTheGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g *failover.Guard
		var other *failover.Attempt
		var got []failover.State
		inside := false
		g = failover.New(failover.Options{Timeout: time.Hour, Uniform: draws(0), OnChange: func(e failover.Event) {
			if inside {
				t.Error("told one while telling another")
			}
			inside = true
			defer func() { inside = false }()
			got = append(got, e.To)
			_, _ = g.State(), g.Ready()
			other.End(nil)
			switch len(got) {
			case 1: // open
				if _, ok := g.Begin(nil); ok {
					t.Error("let through while open")
				}
				time.Sleep(500 * ms)
				if a, ok := g.Begin(nil); !ok || !a.End(nil) { // probe, and close
					t.Error("no probe")
				}
			case 3: // closed
				for range 3 {
					a, ok := g.Begin(nil)
					if !ok {
						t.Fatal("refused while closed")
					}
					a.Abort()
				}
			}
		}})
		other = begin(t, g)
		run(t, g, "fff")
		if want := []failover.State{failover.Open, failover.Probing, failover.Closed, failover.Open}; !slices.Equal(got,
			want) {
			t.Errorf("got %v, want %v", got, want)
		}
		expect(t, g, failover.Open, false)
	})
}

// TestEventsSlow: while OnChange takes its time nobody else waits, the timers go on, and no change
// is lost.
func TestEventsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list[failover.State]
		g := failover.New(failover.Options{Uniform: draws(0), Timeout: 50 * ms, OnChange: func(e failover.Event) {
			if got.add(e.To) == 1 {
				time.Sleep(time.Hour)
			}
		}})
		go func() {
			for range 3 {
				a, _ := g.Begin(nil)
				a.Abort()
			}
		}()
		synctest.Wait()
		for range 3 {
			start := time.Now()
			expect(t, g, failover.Open, false)
			time.Sleep(500 * ms)
			begin(t, g)
			time.Sleep(50 * ms) // its timer ends it
			synctest.Wait()
			if waited := time.Since(start); waited != 550*ms {
				t.Fatalf("held up for %v", waited)
			}
		}
		if told := got.get(); len(told) != 1 {
			t.Fatalf("told %v too early", told[1:])
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []failover.State{
			failover.Open, failover.Probing, failover.Open, failover.Probing, failover.Open,
			failover.Probing, failover.Open,
		}; !slices.Equal(got.get(), want) {
			t.Errorf("got %v, want %v", got.get(), want)
		}
	})
}

// TestEventsBroken: an OnChange that panics or ends its goroutine loses no later change, and the
// breaker goes on.
func TestEventsBroken(t *testing.T) {
	for name, stop := range map[string]func(){"panic": func() { panic("OnChange") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got list[failover.State]
				g := failover.New(failover.Options{Uniform: draws(0), OnChange: func(e failover.Event) {
					// the first in End, the second in Begin: that attempt never reaches its caller
					if got.add(e.To) <= 2 {
						stop()
					}
				}})
				apart := func(f func()) {
					go func() {
						defer func() { _ = recover() }()
						f()
					}()
					synctest.Wait()
				}
				apart(func() { run(t, g, "fff") })
				time.Sleep(500 * ms)
				apart(func() { g.Begin(nil) })
				expect(t, g, failover.Probing, false)
				time.Sleep(550 * ms)
				expect(t, g, failover.Open, true)
				run(t, g, "s")
				if want := []failover.State{
					failover.Open, failover.Probing, failover.Open, failover.Probing,
					failover.Closed,
				}; !slices.Equal(got.get(), want) {
					t.Errorf("got %v, want %v", got.get(), want)
				}
			})
		})
	}
}

// TestEventsBrokenInARow: a change that was waiting behind an OnChange that panics is told by the
// next caller.
func TestEventsBrokenInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list[failover.State]
		g := failover.New(failover.Options{Uniform: draws(0), OnChange: func(e failover.Event) {
			if got.add(e.To) == 1 {
				time.Sleep(time.Second)
				panic("OnChange")
			}
		}})
		go func() {
			defer func() { _ = recover() }()
			a, _ := g.Begin(nil)
			a.End(outcomes['m'])
		}()
		time.Sleep(700 * ms)
		run(t, g, "l") // a probe; its two changes have to wait
		time.Sleep(400 * ms)
		synctest.Wait()
		if told := got.get(); len(told) != 1 {
			t.Fatalf("told %v, by nobody", told[1:])
		}
		time.Sleep(time.Second)
		run(t, g, "s")
		if want := []failover.State{
			failover.Open, failover.Probing, failover.Open, failover.Probing,
			failover.Closed,
		}; !slices.Equal(got.get(), want) {
			t.Errorf("got %v, want %v", got.get(), want)
		}
	})
}

// TestExpiredComesFirst: those who wait for an attempt hear of its end before OnChange may take its
// time.
func TestExpiredComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list[string]
		g := failover.New(failover.Options{OnChange: func(failover.Event) { got.add("change") }})
		run(t, g, "ff")
		g.Begin(func() { got.add("expired") })
		time.Sleep(time.Second)
		synctest.Wait()
		if want := []string{"expired", "change"}; !slices.Equal(got.get(), want) {
			t.Errorf("got %v, want %v", got.get(), want)
		}
	})
}

// TestTogether: many goroutines, all kinds of ends at once; the changes told are one unbroken chain
// of legal steps.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last, steps := failover.Closed, 0
		var telling atomic.Int32
		g := failover.New(failover.Options{Timeout: 20 * ms, OnChange: func(e failover.Event) {
			if telling.Add(1) != 1 {
				t.Error("told two at once")
			}
			defer telling.Add(-1)
			if e.From != last || e.From == e.To || e.From == failover.Closed && e.To == failover.Probing ||
				e.From == failover.Open && e.To == failover.Closed {
				t.Errorf("%v, then from %v to %v", last, e.From, e.To)
			}
			last, steps = e.To, steps+1
		}})
		var all sync.WaitGroup
		for i := range 50 {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			all.Go(func() {
				for range 1000 {
					time.Sleep(time.Duration(random.IntN(int(50 * ms))))
					if !g.Ready() {
						continue
					}
					a, ok := g.Begin(func() {})
					if !ok {
						continue
					}
					time.Sleep(time.Duration(random.IntN(int(15 * ms))))
					switch kind := random.IntN(10); {
					case kind < 6:
						a.End(errors.New("lost"))
					case kind == 6: // never
					default:
						go a.Abort()
						a.End(outcomes["skcpf"[random.IntN(5)]])
					}
				}
			})
		}
		all.Wait()
		time.Sleep(time.Hour)
		synctest.Wait()
		if last != g.State() || steps < 20 {
			t.Errorf("%d changes, the last one to %v, and it is %v", steps, last, g.State())
		}
		run(t, g, "s")
		expect(t, g, failover.Closed, true)
	})
}
