package failover_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// TestOpenTime: the open time is what was drawn, to the nanosecond: about 50, 100, 200 and 400 ms,
// while probes get no answer, and then always in [0.5 s, 1 s). Once the breaker has closed it
// begins anew.
func TestOpenTime(t *testing.T) {
	const us = time.Microsecond
	least := []time.Duration{37500 * us, 75 * ms, 150 * ms, 300 * ms, 500 * ms, 500 * ms}
	middle := []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 750 * ms, 750 * ms}
	for _, test := range []struct {
		uniform float64
		want    []time.Duration
	}{
		{0, least},
		{0.25, []time.Duration{43750 * us, 87500 * us, 175 * ms, 350 * ms, 625 * ms, 625 * ms}},
		{0.5, middle},
		{math.Nextafter(1, 0), []time.Duration{62500*us - 1, 125*ms - 1, 250*ms - 1, 500*ms - 1, time.Second - 1, time.Second - 1}},
		{-1, middle}, // what breaks its promise changes no bound
		{1, middle},
		{1e300, middle},
		{math.NaN(), middle},
		{math.Inf(1), middle},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := failover.New(failover.Options{Uniform: func() float64 { return test.uniform }})
			time.Sleep(time.Hour)
			for range 2 {
				run(t, g, "fff")
				for i := range 100 {
					want := test.want[min(i, len(test.want)-1)]
					expect(t, g, failover.Open, false)
					time.Sleep(want - 1)
					expect(t, g, failover.Open, false)
					time.Sleep(time.Nanosecond)
					if !g.Ready() {
						t.Fatalf("uniform %v: not ready after %v", test.uniform, want)
					}
					a := begin(t, g)
					expect(t, g, failover.Probing, false)
					a.End(errors.New("still down"))
				}
				time.Sleep(time.Second)
				run(t, g, "s")
			}
		})
	}
}

// TestFailuresTogether: attempts that are under way at one moment fail together, and that is one
// failure. Those that say something new each count: they began after the last one that counted had
// ended, or ended 50 ms later.
func TestFailuresTogether(t *testing.T) {
	type attempt struct{ from, to time.Duration } // it fails then
	for name, c := range map[string]struct {
		all   []attempt
		opens bool
	}{
		"a pause of 120 ms":               {[]attempt{{0, 50 * ms}, {1 * ms, 51 * ms}, {20 * ms, 70 * ms}, {51 * ms, 101 * ms}, {52 * ms, 102 * ms}, {71 * ms, 119 * ms}}, false},
		"a pause of 150 ms":               {[]attempt{{0, 50 * ms}, {1 * ms, 51 * ms}, {51 * ms, 101 * ms}, {101 * ms, 151 * ms}}, true},
		"a hundred at once":               {slices.Repeat([]attempt{{0, 50 * ms}}, 100), false},
		"refused one after the other":     {[]attempt{{0, 1 * ms}, {1 * ms, 2 * ms}, {2 * ms, 3 * ms}}, true},
		"a slow node, in step":            {[]attempt{{0, 500 * ms}, {0, 500 * ms}, {1 * ms, 501 * ms}, {2 * ms, 502 * ms}}, false},
		"a slow node, and no answer":      {[]attempt{{0, 500 * ms}, {50 * ms, 550 * ms}, {100 * ms, 600 * ms}}, true},
		"a slow node, and a short pause":  {[]attempt{{0, 500 * ms}, {49 * ms, 549 * ms}, {98 * ms, 598 * ms}}, false},
		"rare ones, a minute apart":       {[]attempt{{0, 50 * ms}, {time.Minute, time.Minute + ms}, {2 * time.Minute, 2*time.Minute + ms}}, true},
		"one that began before the first": {[]attempt{{50 * ms, 60 * ms}, {0, 61 * ms}, {0, 62 * ms}, {0, 63 * ms}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := failover.New(failover.Options{Timeout: time.Hour})
				time.Sleep(time.Second)
				var all sync.WaitGroup
				for i, x := range c.all {
					all.Go(func() {
						time.Sleep(x.from + time.Duration(i)) // in this order
						a, ok := g.Begin(nil)
						if !ok {
							return
						}
						time.Sleep(x.to - x.from)
						a.End(errors.New("lost"))
					})
				}
				all.Wait()
				if opened := g.State() == failover.Open; opened != c.opens {
					t.Errorf("open: %t", opened)
				}
			})
		})
	}
}

// TestAnswered: an answer that comes after its attempt is over shows that the node is there, in any
// state but while a probe finds that out.
func TestAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []failover.State
		g := failover.New(failover.Options{Uniform: draws(0), OnChange: func(e failover.Event) { told = append(told, e.To) }})
		run(t, g, "ff")
		g.Answered()
		run(t, g, "ff") // they count anew
		expect(t, g, failover.Closed, true)
		run(t, g, "f")
		expect(t, g, failover.Open, false)
		time.Sleep(ms)
		g.Answered()
		expect(t, g, failover.Closed, true)
		run(t, g, "fff")
		time.Sleep(37500 * time.Microsecond) // it has begun anew
		probe := begin(t, g)
		g.Answered()
		expect(t, g, failover.Probing, false)
		probe.End(errors.New("still down"))
		expect(t, g, failover.Open, false)
		time.Sleep(ms)
		g.Answered()
		want := []failover.State{
			failover.Open, failover.Probing, failover.Closed, failover.Open, failover.Probing, failover.Open,
			failover.Probing, failover.Closed,
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
	})
}

// TestOneProbe: of 100 that ask at once one is let through, and nobody else until it has ended.
func TestOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Uniform: draws(0), Timeout: time.Second})
		run(t, g, "fff")
		time.Sleep(37500 * time.Microsecond)
		var all sync.WaitGroup
		var through, most atomic.Int64
		for range 100 {
			all.Go(func() {
				for range 3 { // before, during and at the end of the probe
					if a, ok := g.Begin(nil); ok {
						most.Store(max(most.Load(), through.Add(1)))
						time.Sleep(15 * ms)
						through.Add(-1)
						a.End(errors.New("still down"))
					}
					time.Sleep(7 * ms)
				}
			})
		}
		all.Wait()
		if most.Load() != 1 {
			t.Errorf("%d probes at once", most.Load())
		}
		expect(t, g, failover.Open, false)
		time.Sleep(500 * ms)
		expect(t, g, failover.Open, true)
	})
}

// TestTimeout: an attempt ends by its timer at Timeout, as a failure, and its caller is told once.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Timeout: 30 * ms, Uniform: draws(0.999)})
		for i, want := range []failover.State{failover.Closed, failover.Closed, failover.Open} {
			var told list[time.Duration]
			start := time.Now()
			a, ok := g.Begin(func() {
				told.add(time.Since(start))
				if got := g.State(); got != want {
					t.Errorf("expired saw %v, want %v", got, want)
				}
				if b, ok := g.Begin(nil); ok != (i < 2) { // under no lock
					t.Errorf("from expired: %v", ok)
				} else if ok {
					b.End(outcomes['c'])
				}
			})
			if !ok {
				t.Fatal("refused")
			}
			time.Sleep(30*ms - 1)
			if synctest.Wait(); len(told.get()) != 0 {
				t.Fatal("expired too early")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if first, again := a.End(nil), a.End(nil); first || again {
				t.Error("ended after its timer")
			}
			a.Abort()
			time.Sleep(30 * ms)
			synctest.Wait()
			if got := told.get(); !slices.Equal(got, []time.Duration{30 * ms}) {
				t.Fatalf("expired at %v", got)
			}
		}
		expect(t, g, failover.Open, false)
	})
}

// TestDefaults: the zero Options work, and their timeout is 50 ms.
func TestDefaults(t *testing.T) {
	for _, timeout := range []time.Duration{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var told list[time.Duration]
			_, ok := failover.New(failover.Options{Timeout: timeout}).Begin(func() { told.add(time.Since(start)) })
			time.Sleep(time.Second)
			synctest.Wait()
			if got := told.get(); !ok || !slices.Equal(got, []time.Duration{50 * ms}) {
				t.Errorf("expired after %v", got)
			}
		})
	}
}

// TestSpread: breakers that opened at one instant do not probe at one instant, with any source of
// random numbers.
func TestSpread(t *testing.T) {
	const guards = 1000
	synctest.Test(t, func(t *testing.T) {
		closed := make([]*failover.Guard, guards)
		for i := range closed {
			closed[i] = failover.New(failover.Options{})
			run(t, closed[i], "fff")
		}
		time.Sleep(37500*time.Microsecond - 1)
		for range 6 {
			before := len(closed)
			closed = slices.DeleteFunc(closed, (*failover.Guard).Ready)
			if n := before - len(closed); n > guards*3/10 { // a fifth is expected
				t.Errorf("%d are ready in 5 ms", n)
			}
			time.Sleep(5 * ms)
		}
		if len(closed) > 0 {
			t.Errorf("%d are not ready after 62.5 ms", len(closed))
		}
	})
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(failover.Closed, failover.Open, failover.Probing, failover.State(9), failover.Fine,
		failover.Unreachable, failover.Saturated, failover.CannotServe, failover.Misconfigured,
		failover.Refused, failover.KeyFault, failover.Canceled, failover.Class(99))
	if want := "closed open probing unknown fine unreachable saturated cannot serve misconfigured refused key fault canceled unknown"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
