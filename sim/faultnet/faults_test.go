package faultnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

const ms = time.Millisecond

func TestRefuse(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Refuse: true, HoldDial: true})
		_, err := r.dial(r.Context(), "tcp", "127.0.0.1:1")
		if op := (*net.OpError)(nil); !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) || op.Op != "dial" || op.Timeout() {
			r.Errorf("dial: %v", err)
		}
		r.counted(faultnet.Counts{Refused: 1})
		r.pass(r.near, r.far, "those that are open stay so")
	})
}

func TestHoldDial(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{HoldDial: true})
		start := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), 30*ms)
		defer cancel()
		_, err := r.dial(ctx, "tcp", "127.0.0.1:1")
		r.took("the dial", start, 30*ms)
		if timeout := net.Error(nil); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
			r.Errorf("dial: %v", err)
		}
		canceled, cancel := context.WithCancel(r.Context())
		done := r.start(func() error { _, err := r.dial(canceled, "tcp", ""); return err })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.Errorf("dial: %v", err)
		}
		// One that waits when the fault is lifted goes on, and still takes its round trip.
		done = r.start(func() error {
			c, err := r.dial(r.Context(), "tcp", "")
			if err == nil {
				defer c.Close()
				defer r.far.Close()
			}
			return err
		})
		time.Sleep(5 * ms)
		start = time.Now()
		r.set(faultnet.Faults{Delay: 5 * ms})
		if err := <-done; err != nil {
			r.Error(err)
		}
		r.took("the dial", start, 10*ms)
		if n := r.Counts().Held; n != 3 {
			r.Errorf("%d dials were held", n)
		}
	})
}

func TestDelay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Delay: 20 * ms})
		start := time.Now()
		r.say(r.near, "he") // and it does not wait for the far end
		r.say(r.near, "llo")
		r.took("writing", start, 0)
		r.hear(r.far, "hello")
		r.took("the way out", start, 20*ms)
		start = time.Now()
		r.say(r.far, "back")
		r.hear(r.near, "back")
		r.took("the way in", start, 20*ms)
		if n := r.Counts().Late; n != 3 {
			r.Errorf("%d pieces were late", n)
		}
		start = time.Now()
		c, err := r.dial(r.Context(), "tcp", "")
		r.must(err)
		defer r.far.Close()
		defer c.Close()
		r.took("dialing", start, 40*ms)
	})
}

// Delays of pieces run side by side: ten pieces, a millisecond apart, take nine milliseconds longer
// than one.
func TestDelayIsNoPause(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Delay: 50 * ms})
		synctest.Wait() // the pump is there
		start := time.Now()
		for range 10 {
			r.say(r.far, "x")
			time.Sleep(ms)
		}
		r.hear(r.near, "xxxxxxxxxx")
		r.took("ten pieces", start, 59*ms)
	})
}

// Lifting a delay lets arrive what is under way, and what comes later stays behind it.
func TestDelayLifted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Delay: time.Hour})
		r.say(r.near, "first ")
		heard := r.start(func() error { r.hear(r.near, "answer"); return nil })
		r.say(r.far, "answer")
		synctest.Wait()
		start := time.Now()
		inOrder := r.start(func() error { r.hear(r.far, "first second"); return nil })
		r.set(faultnet.Faults{})
		r.say(r.near, "second")
		<-inOrder
		<-heard
		r.took("all of it", start, 0)
	})
}

func TestJitter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Jitter: 20 * ms})
		for _, way := range [][2]net.Conn{{r.near, r.far}, {r.far, r.near}} {
			var longest, shortest time.Duration = 0, time.Hour
			for range 30 {
				start := time.Now()
				r.say(way[0], "x")
				r.hear(way[1], "x")
				longest, shortest = max(longest, time.Since(start)), min(shortest, time.Since(start))
			}
			if longest < 15*ms || longest > 20*ms || shortest > 5*ms {
				r.Errorf("from %v to %v", shortest, longest)
			}
		}
	})
}

func TestHoldOut(t *testing.T) {
	inBubble(t, func(r *rig) {
		idle, idleFar := r.near, r.far
		c, err := r.dial(r.Context(), "tcp", "")
		r.must(err)
		far := r.far
		defer c.Close()
		defer far.Close()

		r.set(faultnet.Faults{HoldOut: true})
		r.say(c, "lost")
		r.silent(far, 20*ms)
		r.pass(far, c, "the other way is free")
		r.set(faultnet.Faults{})
		r.say(c, "after a gap")
		r.silent(far, 20*ms)
		r.pass(idle, idleFar, "no gap here")
		r.counted(faultnet.Counts{Lost: 2})
		r.must(c.SetWriteDeadline(time.Now().Add(-ms)))
		_, err = c.Write([]byte("x"))
		r.timedOut("Write", err)
		r.must(c.Close())
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			r.Errorf("the end was not seen: %v", err)
		}
	})
}

// A Write that waits for the far end when the black hole opens is swallowed, what had not gone out
// of it.
func TestHoldOutBlocked(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.must(r.near.SetWriteDeadline(time.Now().Add(time.Hour)))
		data := make([]byte, 2*window)
		done := r.start(func() error {
			n, err := r.near.Write(data)
			if n != len(data) {
				r.Errorf("wrote %d", n)
			}
			return err
		})
		r.set(faultnet.Faults{HoldOut: true})
		if err := <-done; err != nil {
			r.Error(err)
		}
		r.counted(faultnet.Counts{Lost: 1})
	})
}

func TestHoldIn(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, waits := range []bool{false, true} { // when the black hole opens, as well as after
			var heard <-chan error
			if waits {
				heard = r.start(func() error { r.hear(r.near, "answer"); return nil })
			}
			r.set(faultnet.Faults{HoldIn: true})
			r.pass(r.near, r.far, "question")
			r.say(r.far, "answer") // which the network takes
			if !waits {
				r.silent(r.near, 20*ms)
				heard = r.start(func() error { r.hear(r.near, "answer"); return nil })
			}
			time.Sleep(10 * ms)
			select {
			case <-heard:
				r.Fatal("heard through a black hole")
			default:
			}
			r.set(faultnet.Faults{})
			<-heard
		}
		r.counted(faultnet.Counts{Withheld: 2})
		r.set(faultnet.Faults{HoldIn: true})
		r.say(r.far, "last")
		r.must(r.far.Close())
		r.silent(r.near, 20*ms) // not even the end
		r.set(faultnet.Faults{})
		synctest.Wait() // nobody has read yet
		r.hear(r.near, "last")
		for range 2 {
			if n, err := r.near.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				r.Errorf("Read: %d, %v", n, err)
			}
		}
	})
}

// A Write that is far ahead of the far end waits.
func TestWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Delay: 20 * ms})
		start := time.Now()
		r.must(r.near.SetWriteDeadline(start.Add(10 * ms)))
		n, err := r.near.Write(make([]byte, window+1))
		if n != window {
			r.Errorf("wrote %d", n)
		}
		r.timedOut("Write", err)
		r.took("Write", start, 10*ms)
		r.must(r.near.SetWriteDeadline(time.Time{}))
		if n, err := io.ReadFull(r.far, make([]byte, window)); err != nil {
			r.Errorf("read %d, %v", n, err)
		}
		r.took("the window", start, 20*ms)
	})
}

// A request whose client gave up arrives late, and then the end does.
func TestCloseLeavesWhatIsUnderWay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(faultnet.Faults{Delay: 20 * ms})
		start := time.Now()
		r.say(r.near, "request")
		r.must(r.near.Close())
		r.hear(r.far, "request")
		r.took("the request", start, 20*ms)
		if _, err := r.far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			r.Errorf("no end: %v", err)
		}
	})
}

// A far end that does not read does not keep a closed connection for long.
func TestCloseDoesNotLingerForEver(t *testing.T) {
	for name, wait := range map[string]time.Duration{"before it is due": 0, "while it is written": 5 * ms} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.set(faultnet.Faults{Delay: 2 * ms})
				r.say(r.near, "nobody reads this")
				time.Sleep(wait)
				r.must(r.near.Close())
				time.Sleep(102 * ms)
				synctest.Wait()
				if _, err := r.far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					r.Errorf("the connection is still open: %v", err)
				}
			})
		})
	}
}
