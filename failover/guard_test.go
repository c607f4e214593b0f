package failover

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestOpens: what opens a closed breaker.
func TestOpens(t *testing.T) {
	for _, test := range []struct {
		letters string // see outcomes
		want    State
	}{
		{"", Closed},
		{"f", Closed},
		{"ff", Closed},
		{"fff", Open},
		{"lll", Open},
		{"ppp", Open},
		{"flp", Open},
		{"ffsff", Closed},
		{"ffsfff", Open},
		{"ffkff", Closed}, // the node answered
		{"kkkkkkkk", Closed},
		{"ffcf", Open}, // counts for nothing, neither way
		{"ffccccc", Closed},
		{"cccccccc", Closed},
		{"m", Open},
		{"sssm", Open},
		{"fsfsfsfsfsfsff", Closed},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Options{})
			run(t, g, test.letters)
			if g.State() != test.want {
				t.Errorf("after %q %v, want %v", test.letters, g.State(), test.want)
			}
			expect(t, g, test.want, test.want == Closed)
		})
	}
}

// TestOpensRare: failures in a row open it however far apart they are.
func TestOpensRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		for range 2 {
			run(t, g, "f")
			time.Sleep(24 * time.Hour)
		}
		expect(t, g, Closed, true)
		run(t, g, "f")
		expect(t, g, Open, false)
	})
}

// TestOpensTogether: failures of attempts that were under way at once count like any.
func TestOpensTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		a, b, c := begin(t, g), begin(t, g), begin(t, g)
		a.End(errors.New("lost"))
		b.End(errors.New("lost"))
		expect(t, g, Closed, true)
		c.End(errors.New("lost"))
		expect(t, g, Open, false)
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
			g := New(Options{Uniform: func() float64 { return test.uniform }})
			time.Sleep(time.Hour)
			run(t, g, "fff")
			for range 3 { // a probe that fails opens it for as long again, and no longer
				expect(t, g, Open, false)
				time.Sleep(test.want - 1)
				expect(t, g, Open, false)
				time.Sleep(time.Nanosecond)
				if !g.Ready() {
					t.Fatalf("uniform %v: not ready after %v", test.uniform, test.want)
				}
				expect(t, g, Open, true)
				a := begin(t, g)
				expect(t, g, Probing, false)
				a.End(errors.New("still down"))
			}
		})
	}
}

// TestOpenTimeIsDrawn: each time it opens it draws anew, and only then.
func TestOpenTimeIsDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Uniform: draws(0.2, 0.8, 0.4, 0.6)})
		run(t, g, "ssffsfff")
		for _, want := range []time.Duration{600 * ms, 900 * ms, 700 * ms, 800 * ms} {
			time.Sleep(want - 1)
			expect(t, g, Open, false)
			time.Sleep(time.Nanosecond)
			run(t, g, "cpf") // what counts for nothing draws nothing
		}
	})
}

// TestProbe: a success closes it, and failures count from none again.
func TestProbe(t *testing.T) {
	for _, good := range []string{"s", "k"} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Options{Uniform: draws(0)})
			run(t, g, "fff")
			time.Sleep(500 * ms)
			run(t, g, good)
			expect(t, g, Closed, true)
			run(t, g, "ff")
			expect(t, g, Closed, true)
			run(t, g, "f")
			expect(t, g, Open, false)
		})
	}
}

// TestOneProbe: of 100 that ask at once one is let through, and nobody else until it has ended.
func TestOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Uniform: draws(0), Timeout: time.Second})
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
		expect(t, g, Open, false)
		time.Sleep(500 * ms)
		expect(t, g, Open, true)
	})
}

// TestTimeout: an attempt ends by its timer at Timeout, as a failure, and whoever waits is told once.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Timeout: 30 * ms})
		for i, want := range []State{Closed, Closed, Open} {
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
		expect(t, g, Open, false)
	})
}

// TestEndInTime: an attempt that ends a moment before its timer is not touched by it, and ends once.
func TestEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Timeout: 30 * ms})
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
		expect(t, g, Closed, true)
	})
}

// TestDefaults: the zero Options work, and their timeout is 50 ms.
func TestDefaults(t *testing.T) {
	for _, timeout := range []time.Duration{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var told list[time.Duration]
			_, ok := New(Options{Timeout: timeout}).Begin(func() { told.add(time.Since(start)) })
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
			g := New(Options{Timeout: time.Hour, Uniform: draws(0.5)}) // open for 750 ms
			var old []*Attempt
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
			expect(t, g, Open, false)
			time.Sleep(600 * ms) // gobreaker takes itself for half-open from now on
			end(1)
			expect(t, g, Open, false)
			time.Sleep(150*ms - 1)
			end(2)
			expect(t, g, Open, false)
			time.Sleep(time.Nanosecond)
			end(3)
			expect(t, g, Open, true)
			probe := begin(t, g)
			end(4)
			expect(t, g, Probing, false)
			probe.End(nil)
			expect(t, g, Closed, true)
			run(t, g, "ff")
			end(5)
			expect(t, g, Closed, true)
			run(t, g, "f")
			expect(t, g, Open, false)
		}
	})
}

// TestSpread: breakers that opened at one instant do not probe at one, neither the first time nor later.
func TestSpread(t *testing.T) {
	const guards, rounds = 1000, 4
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var probes [rounds][]time.Duration
		var all sync.WaitGroup
		for i := range guards {
			g := New(Options{Uniform: rand.New(rand.NewPCG(1, uint64(i))).Float64})
			run(t, g, "fff")
			all.Go(func() {
				for round := range rounds {
					time.Sleep(time.Duration(g.probeAt.Load()) - g.now())
					a, ok := g.Begin(nil)
					if !ok {
						t.Error("refused after the open time")
						return
					}
					mu.Lock()
					probes[round] = append(probes[round], time.Since(start))
					mu.Unlock()
					a.End(errors.New("still down"))
				}
			})
		}
		all.Wait()
		for round, at := range probes {
			slices.Sort(at)
			least := time.Duration(round+1) * 500 * ms
			if at[0] < least || at[guards-1] > 2*least {
				t.Errorf("round %d: from %v to %v", round, at[0], at[guards-1])
			}
			for i := range at {
				end, _ := slices.BinarySearch(at, at[i]+100*ms)
				if end-i > guards*3/10 { // a fifth is expected
					t.Fatalf("round %d: %d probes within 100 ms", round, end-i)
				}
			}
		}
	})
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(Closed, Open, Probing, State(9), Fine, Unreachable, Saturated, CannotServe, Misconfigured,
		KeyFault, Canceled, Class(99))
	if want := "closed open probing unknown fine unreachable saturated cannot serve misconfigured key fault canceled unknown"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
