package failover_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// TestNeverStuck: however probes end, and however often, the state afterwards is right at once, and
// an hour later a good call closes the breaker. gobreaker alone stays half-open for ever when an
// end is missing.
func TestNeverStuck(t *testing.T) {
	const timeout = 50 * ms
	// guarded is an attempt as the package's comment has it.
	guarded := func(g *failover.Guard, call func() error) {
		a, ok := g.Begin(nil)
		if !ok {
			return
		}
		defer a.Abort()
		a.End(call())
	}
	// apart runs f on a goroutine of its own, which may end in any way, and waits until it has
	// ended or hangs.
	apart := func(f func()) {
		go func() {
			defer func() { _ = recover() }()
			f()
		}()
		synctest.Wait()
	}
	for _, test := range []struct {
		name  string
		probe func(g *failover.Guard)
		takes time.Duration // until it has ended
		ready bool          // then: another may probe at once
	}{
		{name: "panics", probe: func(g *failover.Guard) { apart(func() { guarded(g, func() error { panic("probe") }) }) }},
		{name: "ends its goroutine", probe: func(g *failover.Guard) {
			apart(func() {
				guarded(g,
					func() error { runtime.Goexit(); return nil })
			})
		}},
		{
			name: "hangs", takes: timeout,
			probe: func(g *failover.Guard) {
				apart(func() { guarded(g, func() error { time.Sleep(10 * time.Second); return nil }) })
			},
		},
		{name: "never ends", takes: timeout, probe: func(g *failover.Guard) { g.Begin(nil) }},
		{name: "is canceled", ready: true, probe: func(g *failover.Guard) {
			guarded(g,
				func() error { return outcomes['c'] })
		}},
		{
			name: "finds no connection", ready: true,
			probe: func(g *failover.Guard) { guarded(g, func() error { return outcomes['p'] }) },
		},
		{name: "is refused", probe: func(g *failover.Guard) { guarded(g, func() error { return outcomes['m'] }) }},
		{name: "has a broken error", probe: func(g *failover.Guard) {
			guarded(g,
				func() error { return (*nilError)(nil) })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, times := range []int{1, 2, 7} {
				synctest.Test(t, func(t *testing.T) {
					g := failover.New(failover.Options{Timeout: timeout, Uniform: draws(0, 0.9, 0.3)})
					run(t, g, "fff")
					for range times {
						for !g.Ready() {
							time.Sleep(ms)
						}
						test.probe(g)
						if test.takes > 0 {
							expect(t, g, failover.Probing, false)
							time.Sleep(test.takes)
							synctest.Wait()
						}
						expect(t, g, failover.Open, test.ready)
					}
					time.Sleep(time.Hour)
					expect(t, g, failover.Open, true)
					run(t, g, "s")
					expect(t, g, failover.Closed, true)
				})
			}
		})
	}
}

// nilError is an error that panics when it is asked anything and is nil.
type nilError struct{ text string }

func (e *nilError) Error() string   { return e.text }
func (e *nilError) OneBucket() bool { return e.text != "" }
