package faultnet

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"
)

// obstacles are what may hold up a call, on the near end of a connection whose far end neither reads nor writes.
var obstacles = map[string]Faults{
	"the far end": {}, "delay": {Delay: time.Hour}, "rate": {Rate: 1}, "jitter": {Jitter: time.Hour}, "hold in": {HoldIn: true},
	"all": {Delay: time.Hour, Jitter: time.Hour, Rate: 1, HoldIn: true},
}

// onEachObstacle runs a test for a Read and for a Write that something holds up.
func onEachObstacle(t *testing.T, test func(r *rig, call func() error, deadline func(time.Time) error)) {
	for name, f := range obstacles {
		for _, op := range []string{"read", "write"} {
			t.Run(fmt.Sprint(op, "/", name), func(t *testing.T) {
				onEach(t, func(r *rig) {
					r.set(f)
					if op == "read" {
						read := func() error { _, err := r.near.Read(make([]byte, 1)); return err }
						if f != (Faults{}) {
							r.say(r.far, "held up")
						}
						test(r, read, r.near.SetReadDeadline)
						return
					}
					data := make([]byte, 16<<20)
					write := func() error { _, err := r.near.Write(data); return err }
					test(r, write, r.near.SetWriteDeadline)
				})
			})
		}
	}
}

// A deadline is kept whatever holds the call up, one that is set or moved meanwhile included.
func TestDeadlines(t *testing.T) {
	onEachObstacle(t, func(r *rig, call func() error, deadline func(time.Time) error) {
		start := time.Now()
		r.must(deadline(start.Add(10 * ms)))
		r.timedOut("a deadline before the call", call())
		r.took("the call", start, 10*ms)

		r.timedOut("a deadline that has passed", call())

		r.must(deadline(time.Time{}))
		start = time.Now()
		done := r.start(call)
		r.must(deadline(start.Add(20 * ms)))
		r.timedOut("a deadline during the call", <-done)
		r.took("the call", start, 20*ms)

		start = time.Now()
		r.must(deadline(start.Add(time.Hour)))
		done = r.start(call)
		r.must(deadline(start.Add(2 * time.Hour)))
		r.must(deadline(start.Add(20 * ms)))
		r.timedOut("an earlier deadline", <-done)
		r.took("the call", start, 20*ms)

		start = time.Now()
		r.must(deadline(start.Add(20 * ms)))
		done = r.start(call)
		r.must(deadline(start.Add(40 * ms)))
		r.timedOut("a later deadline", <-done)
		if r.exact { // elsewhere the first may have passed before the second was set
			r.took("the call", start, 40*ms)
		}
	})
}

// The deadline of a call that goes on under other faults is still its own.
func TestDeadlineOverChange(t *testing.T) {
	for from, f := range obstacles {
		for to, g := range obstacles {
			t.Run(from+" to "+to, func(t *testing.T) {
				onEach(t, func(r *rig) {
					r.set(f)
					start := time.Now()
					r.must(r.near.SetDeadline(start.Add(20 * ms)))
					timesOut := func(what string, call func([]byte) (int, error)) <-chan error {
						return r.start(func() error {
							_, err := call(make([]byte, 16<<20))
							r.timedOut(what, err)
							r.took(what, start, 20*ms)
							return nil
						})
					}
					read, write := timesOut("Read", r.near.Read), timesOut("Write", r.near.Write)
					for range 3 {
						r.set(g)
						r.set(f)
					}
					r.settle() // whoever was woken finds all as before
					r.set(g)
					r.settle()
					r.set(f)
					r.settle()
					r.set(g)
					<-read
					<-write
				})
			})
		}
	}
}

func TestClose(t *testing.T) {
	onEachObstacle(t, func(r *rig, call func() error, deadline func(time.Time) error) {
		done, second := r.start(call), r.start(call)
		r.must(r.near.Close())
		for _, err := range []error{<-done, <-second, call(), r.near.Close(), r.near.SetDeadline(time.Now())} {
			if op := (*net.OpError)(nil); !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) {
				r.Errorf("%v, want net.ErrClosed", err)
			}
		}
	})
}

// Concurrent Writes are not split by each other, however slow the line.
func TestConcurrentWrites(t *testing.T) {
	onEach(t, func(r *rig) {
		const writers, length = 5, window * 3 / 2 // so that each waits on the way
		r.set(Faults{Rate: 10e6, Jitter: ms})
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
		r.set(Faults{})
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
