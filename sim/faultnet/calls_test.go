package faultnet_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// obstacles are what may hold up a call, on the near end of a connection whose far end neither
// reads nor writes.
var obstacles = map[string]faultnet.Faults{
	"the far end": {}, "delay": {Delay: time.Hour}, "hold in": {HoldIn: true},
	"all": {Delay: time.Hour, Jitter: time.Hour, HoldIn: true},
}

// A deadline is kept whatever holds the call up, also one that is moved meanwhile, and Close ends
// every call.
func TestDeadlinesAndClose(t *testing.T) {
	for name, f := range obstacles {
		for _, op := range []string{"read", "write"} {
			t.Run(fmt.Sprint(op, "/", name), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					r.set(f)
					call := func() error { _, err := r.near.Write(make([]byte, 2*window)); return err }
					setDeadline := r.near.SetWriteDeadline
					if op == "read" {
						call = func() error { _, err := r.near.Read(make([]byte, 1)); return err }
						setDeadline = r.near.SetReadDeadline
						if f != (faultnet.Faults{}) {
							r.say(r.far, "held up")
						}
					}
					for what, c := range map[string]struct{ first, then time.Duration }{
						"a deadline before the call": {first: 10 * ms},
						"a deadline during the call": {then: 10 * ms},
						"an earlier deadline":        {first: time.Hour, then: 10 * ms},
						"a later deadline":           {first: 10 * ms, then: 20 * ms},
					} {
						start := time.Now()
						at := func(d time.Duration) (t time.Time) {
							if d > 0 {
								t = start.Add(d)
							}
							return t
						}
						r.must(setDeadline(at(c.first)))
						done := r.start(call)
						if c.then > 0 {
							r.must(setDeadline(at(c.then)))
						}
						r.timedOut(what, <-done)
						r.took(what, start, max(c.then, c.first%time.Hour))
						r.timedOut("a deadline that has passed", call())
					}

					r.must(setDeadline(time.Time{}))
					done, second := r.start(call), r.start(call)
					r.must(r.near.Close())
					again, set := r.near.Close(), r.near.SetDeadline(time.Now())
					for _, err := range []error{<-done, <-second, call(), again, set} {
						if op := (*net.OpError)(nil); !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) {
							r.Errorf("%v, want net.ErrClosed", err)
						}
					}
				})
			})
		}
	}
}

// Concurrent Writes are not split by each other, although each waits for room on the way.
func TestConcurrentWrites(t *testing.T) {
	inBubble(t, func(r *rig) {
		const writers, length = 5, window * 3 / 2 // so that each waits on the way
		r.set(faultnet.Faults{Delay: ms, Jitter: ms})
		var done [writers]<-chan error
		for i := range writers {
			done[i] = r.start(func() error {
				data := make([]byte, length)
				for j := range data {
					data[j] = byte(i)
				}
				_, err := r.near.Write(data)
				return err
			})
		}
		r.set(faultnet.Faults{})
		for range writers {
			text := make([]byte, length)
			r.must(r.far.SetReadDeadline(time.Now().Add(10 * time.Second)))
			for n := 0; n < length; {
				m, err := r.far.Read(text[n:])
				r.must(err)
				n += m
			}
			for _, b := range text {
				if b != text[0] {
					r.Fatal("two writes are mixed")
				}
			}
		}
		for i := range writers {
			r.must(<-done[i])
		}
	})
}
