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

// TestOpens: what opens a closed breaker.
func TestOpens(t *testing.T) {
	for _, test := range []struct {
		letters string // see outcomes
		want    failover.State
	}{
		{"", failover.Closed},
		{"f", failover.Closed},
		{"ff", failover.Closed},
		{"fff", failover.Open},
		{"lll", failover.Open},
		{"ppp", failover.Open},
		{"flp", failover.Open},
		{"ffsff", failover.Closed},
		{"ffsfff", failover.Open},
		{"ffkff", failover.Closed}, // the node answered
		{"kkkkkkkk", failover.Closed},
		{"ffcf", failover.Open}, // counts for nothing, neither way
		{"ffccccc", failover.Closed},
		{"cccccccc", failover.Closed},
		{"m", failover.Open},
		{"sssm", failover.Open},
		{"fsfsfsfsfsfsff", failover.Closed},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := failover.New(failover.Options{})
			run(t, g, test.letters)
			if g.State() != test.want {
				t.Errorf("after %q %v, want %v", test.letters, g.State(), test.want)
			}
			expect(t, g, test.want, test.want == failover.Closed)
		})
	}
}

// TestOpensRare: failures in a row open it however far apart they are.
func TestOpensRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{})
		for range 2 {
			run(t, g, "f")
			time.Sleep(24 * time.Hour)
		}
		expect(t, g, failover.Closed, true)
		run(t, g, "f")
		expect(t, g, failover.Open, false)
	})
}

// TestOpensTogether: failures of attempts that were under way at once count like any.
func TestOpensTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{})
		a, b, c := begin(t, g), begin(t, g), begin(t, g)
		a.End(errors.New("lost"))
		b.End(errors.New("lost"))
		expect(t, g, failover.Closed, true)
		c.End(errors.New("lost"))
		expect(t, g, failover.Open, false)
	})
}

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

// TestOpenTimeIsDrawn: each time it opens it draws anew, and only then.
func TestOpenTimeIsDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Uniform: draws(0.2, 0.8, 0.4, 0.6)})
		run(t, g, "ssffsfff")
		for _, want := range []time.Duration{600 * ms, 900 * ms, 700 * ms, 800 * ms} {
			time.Sleep(want - 1)
			expect(t, g, failover.Open, false)
			time.Sleep(time.Nanosecond)
			run(t, g, "cpf") // what counts for nothing draws nothing
		}
	})
}

// TestProbe: a success closes it, and failures count from none again.
func TestProbe(t *testing.T) {
	for _, good := range []string{"s", "k"} {
		synctest.Test(t, func(t *testing.T) {
			g := failover.New(failover.Options{Uniform: draws(0)})
			run(t, g, "fff")
			time.Sleep(500 * ms)
			run(t, g, good)
			expect(t, g, failover.Closed, true)
			run(t, g, "ff")
			expect(t, g, failover.Closed, true)
			run(t, g, "f")
			expect(t, g, failover.Open, false)
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

// TestEndInTime: an attempt that ends a moment before its timer is not touched by it, and ends once.
func TestEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{Timeout: 30 * ms})
		for range 5 {
			a, _ := g.Begin(func() { t.Error("expired, though it had ended") })
			time.Sleep(30*ms - 1)
			if !a.End(nil) {
				t.Error("its end came too late")
			}
			if a.End(errors.New("again")) {
				t.Error("ended twice")
			}
			a.Abort()
			time.Sleep(time.Second)
		}
		expect(t, g, failover.Closed, true)
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

// TestLate: the result of an attempt that began before the breaker changed its state changes nothing, whenever it
// comes.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []byte("sfmpck") {
			g := failover.New(failover.Options{Timeout: time.Hour, Uniform: draws(0.5)}) // open for 750 ms
			var old []*failover.Attempt
			for range 6 {
				old = append(old, begin(t, g))
			}
			end := func(i int) {
				t.Helper()
				if !old[i].End(outcomes[late]) {
					t.Fatal("it had ended before")
				}
			}
			run(t, g, "fff")
			end(0)
			expect(t, g, failover.Open, false)
			time.Sleep(600 * ms) // gobreaker takes itself for half-open from now on
			end(1)
			expect(t, g, failover.Open, false)
			time.Sleep(150*ms - 1)
			end(2)
			expect(t, g, failover.Open, false)
			time.Sleep(time.Nanosecond)
			end(3)
			expect(t, g, failover.Open, true)
			probe := begin(t, g)
			end(4)
			expect(t, g, failover.Probing, false)
			probe.End(nil)
			expect(t, g, failover.Closed, true)
			run(t, g, "ff")
			end(5)
			expect(t, g, failover.Closed, true)
			run(t, g, "f")
			expect(t, g, failover.Open, false)
		}
	})
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
