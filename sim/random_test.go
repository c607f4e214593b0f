package sim

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestZipf(t *testing.T) {
	r := newRand(1, "a test")
	for _, c := range []struct {
		skew  float64
		ratio float64 // of the first to the last of ten
	}{{0, 1}, {0.5, math.Sqrt(10)}, {1, 10}, {2, 100}} {
		z := newZipf(10, c.skew)
		var n [10]float64
		for range 300_000 {
			n[z.draw(r)]++
		}
		if got := n[0] / n[9]; got < 0.9*c.ratio || got > 1.1*c.ratio {
			t.Errorf("skew %g: the first comes %.2f times as often as the tenth, want %.2f", c.skew, got, c.ratio)
		}
	}
	if z := newZipf(1, 3); z.draw(r) != 0 {
		t.Error("out of one, another")
	}
}

// Those who waited go on in the order in which they came, each at an instant of its own.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pauseGate
		if g.pass() {
			t.Error("an open gate holds up")
		}
		g.shut()
		g.shut()
		start := time.Now()
		passed := make(chan int, 10)
		for i := range 10 {
			time.Sleep(time.Millisecond)
			go func() {
				if !g.pass() {
					t.Error("a shut gate does not")
				}
				if since := time.Since(start) - 20*time.Millisecond; since != time.Duration(i+1)*time.Microsecond {
					t.Errorf("number %d passed %v after it was opened", i, since)
				}
				passed <- i
			}()
		}
		time.Sleep(10 * time.Millisecond)
		if len(passed) > 0 {
			t.Error("somebody passed")
		}
		g.open()
		g.open()
		for i := range 10 {
			if n := <-passed; n != i {
				t.Errorf("number %d passed as number %d", n, i)
			}
		}
		if g.pass() {
			t.Error("it is shut again")
		}
	})
}
