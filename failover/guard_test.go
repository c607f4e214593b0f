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

// TestOpenTime: the open time is what was drawn, to the nanosecond, and always in [0.5 s, 1 s).
func TestOpenTime(t *testing.T) {
	for _, test := range []struct {
		uniform float64
		want    time.Duration
	}{
		{0, 500 * ms},
		{0.25, 625 * ms},
		{0.5, 750 * ms},
		{math.Nextafter(1, 0), time.Second - 1},
		{-1, 750 * ms}, // what breaks its promise changes no bound
		{1, 750 * ms},
		{1e300, 750 * ms},
		{math.NaN(), 750 * ms},
		{math.Inf(1), 750 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := failover.New(failover.Options{Uniform: func() float64 { return test.uniform }})
			time.Sleep(time.Hour)
			run(t, g, "fff")
			for range 3 { // a probe that fails opens it for as long again, and no longer
				expect(t, g, failover.Open, false)
				time.Sleep(test.want - 1)
				expect(t, g, failover.Open, false)
				time.Sleep(time.Nanosecond)
				if !g.Ready() {
					t.Fatalf("uniform %v: not ready after %v", test.uniform, test.want)
				}
				expect(t, g, failover.Open, true)
				a := begin(t, g)
				expect(t, g, failover.Probing, false)
				a.End(errors.New("still down"))
			}
		})
	}
}

// TestOneProbe: of 100 that ask at once one is let through, and nobody else until it has ended.
func TestOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Uniform: draws(0), Timeout: time.Second})
		run(t, g, "fff")
		time.Sleep(500 * ms)
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

// TestTimeout: an attempt ends by its timer at Timeout, as a failure, and whoever waits is told once.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Timeout: 30 * ms})
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
			time.Sleep(100 * ms)
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

// TestSpread: breakers that opened at one instant do not probe at one, whoever draws for them.
func TestSpread(t *testing.T) {
	const guards = 1000
	synctest.Test(t, func(t *testing.T) {
		closed := make([]*failover.Guard, guards)
		for i := range closed {
			closed[i] = failover.New(failover.Options{})
			run(t, closed[i], "fff")
		}
		time.Sleep(500*ms - 1)
		for at := 500 * ms; at <= time.Second; at += 100 * ms {
			before := len(closed)
			closed = slices.DeleteFunc(closed, (*failover.Guard).Ready)
			if n := before - len(closed); n > guards*3/10 { // a fifth is expected
				t.Errorf("%d are ready between %v and %v", n, at-100*ms, at)
			}
			time.Sleep(100 * ms)
		}
		if len(closed) > 0 {
			t.Errorf("%d are not ready after a second", len(closed))
		}
	})
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(failover.Closed, failover.Open, failover.Probing, failover.State(9), failover.Fine,
		failover.Unreachable, failover.Saturated, failover.CannotServe, failover.Misconfigured,
		failover.KeyFault, failover.Canceled, failover.Class(99))
	if want := "closed open probing unknown fine unreachable saturated cannot serve misconfigured key fault canceled unknown"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
