package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// echo is a far end that sends everything back, and remembers it.
type echo struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (e *echo) hears(data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got.Write(data)
}

func (e *echo) accept() (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		buf := make([]byte, 1024)
		for {
			n, err := far.Read(buf)
			e.hears(buf[:n])
			if err != nil {
				return
			}
			if _, err = far.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	return near, nil
}

// rig is a wire with an echo at its end.
type rig struct {
	*testing.T
	*wire
	echo echo
}

// onWire runs a test in a bubble.
func onWire(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t}
		r.wire = newWire(r.echo.accept, newDice(1, "test", time.Now()))
		test(r)
	})
}

func (r *rig) connect() net.Conn {
	r.Helper()
	c, err := r.dial(context.Background(), "tcp", "127.0.0.1:6379")
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// say writes, which always succeeds.
func (r *rig) say(c net.Conn, text string) {
	r.Helper()
	if n, err := c.Write([]byte(text)); n != len(text) || err != nil {
		r.Fatalf("Write: %d, %v", n, err)
	}
}

// hear wants a text to arrive within a second, which it reports.
func (r *rig) hear(c net.Conn, text string) time.Duration {
	r.Helper()
	start := time.Now()
	r.must(c.SetReadDeadline(start.Add(time.Second)))
	buf := make([]byte, len(text))
	if n, err := io.ReadFull(c, buf); err != nil || string(buf) != text {
		r.Fatalf("heard %q, %v; want %q", buf[:n], err, text)
	}
	return time.Since(start)
}

// silent wants nothing to arrive before a deadline, and the deadline to be kept to the nanosecond.
func (r *rig) silent(c net.Conn, d time.Duration) {
	r.Helper()
	start := time.Now()
	r.must(c.SetReadDeadline(start.Add(d)))
	n, err := c.Read(make([]byte, 10))
	var timeout net.Error
	if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		r.Fatalf("Read: %d, %v", n, err)
	}
	if took := time.Since(start); took != d {
		r.Fatalf("Read took %v, want %v", took, d)
	}
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func TestWireDelays(t *testing.T) {
	onWire(t, func(r *rig) {
		start := time.Now()
		c := r.connect()
		defer c.Close()
		if took := time.Since(start); took < 2*oneWay || took > 20*oneWay {
			t.Errorf("connecting took %v", took)
		}
		var all time.Duration
		for range 100 {
			r.say(c, "hel")
			r.say(c, "lo")
			took := r.hear(c, "hello")
			if took < 2*oneWay {
				t.Fatalf("a round trip took %v", took)
			}
			all += took
		}
		if mean, want := all/100, 2*(oneWay+delaySpread); mean < want*8/10 || mean > want*12/10 {
			t.Errorf("a round trip takes %v on average, want about %v", mean, want)
		}
	})
}

func TestWireKeepsOrder(t *testing.T) {
	onWire(t, func(r *rig) {
		c := r.connect()
		defer c.Close()
		var want []byte
		for i := range 200 {
			want = append(want, byte(i))
			r.say(c, string([]byte{byte(i)}))
			time.Sleep(time.Microsecond)
		}
		r.hear(c, string(want))
	})
}

func TestWireSwallowsRequests(t *testing.T) {
	onWire(t, func(r *rig) {
		c := r.connect()
		defer c.Close()
		r.swallow(requests)
		r.say(c, "lost")
		r.silent(c, time.Second)
		if r.echo.got.Len() > 0 {
			t.Errorf("%q has arrived", &r.echo.got)
		}
		r.heal()
		r.say(c, "after a gap") // no stream goes on there
		r.silent(c, time.Minute)
		if r.echo.got.Len() > 0 {
			t.Errorf("%q has arrived", &r.echo.got)
		}
	})
}

func TestWireSwallowsReplies(t *testing.T) {
	onWire(t, func(r *rig) {
		c := r.connect()
		defer c.Close()
		r.swallow(replies)
		r.say(c, "executed")
		r.silent(c, time.Second)
		if got := r.echo.got.String(); got != "executed" {
			t.Errorf("%q has arrived", got)
		}
		r.heal()
		r.say(c, "!")
		r.silent(c, time.Minute)
	})
}

func TestWireHeals(t *testing.T) {
	onWire(t, func(r *rig) {
		idle := r.connect()
		defer idle.Close()
		r.say(idle, "before")
		r.hear(idle, "before")
		r.swallow(requests | replies)

		// A new connection does not come about…
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := r.dial(ctx, "tcp", "")
		var op *net.OpError
		if took := time.Since(start); took != 200*time.Millisecond || !errors.As(err, &op) || op.Op != "dial" || !op.Timeout() {
			t.Errorf("dial took %v: %v", took, err)
		}
		// …before the wire is healed.
		time.AfterFunc(time.Minute, r.heal)
		start = time.Now()
		late := r.connect()
		defer late.Close()
		if took := time.Since(start); took <= time.Minute || took > time.Minute+20*oneWay {
			t.Errorf("the connection took %v", took)
		}
		r.say(late, "new")
		r.hear(late, "new")
		r.say(idle, "unused meanwhile")
		r.hear(idle, "unused meanwhile")
	})
}

// What is under way when the hole opens still arrives, and a Read that waits then sees it.
func TestWireUnderWay(t *testing.T) {
	onWire(t, func(r *rig) {
		c := r.connect()
		defer c.Close()
		r.say(c, "sent")
		r.swallow(requests)
		r.hear(c, "sent")
	})
}

func TestWireDeadlines(t *testing.T) {
	onWire(t, func(r *rig) {
		c := r.connect()
		defer c.Close()
		r.silent(c, 50*time.Millisecond)
		r.silent(c, 20*time.Millisecond) // again, earlier and later
		r.say(c, "still good")
		r.hear(c, "still good")

		// A deadline that is set while a Read waits counts for it.
		r.must(c.SetReadDeadline(time.Time{}))
		start := time.Now()
		time.AfterFunc(time.Second, func() { _ = c.SetReadDeadline(start.Add(3 * time.Second)) })
		time.AfterFunc(2*time.Second, func() { _ = c.SetReadDeadline(start.Add(2500 * time.Millisecond)) })
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 2500*time.Millisecond {
			t.Errorf("Read after %v: %v", time.Since(start), err)
		}

		r.must(c.SetDeadline(time.Now()))
		if _, err := c.Write([]byte("late")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write after the deadline: %v", err)
		}
		r.must(c.SetDeadline(time.Time{}))
		r.say(c, "none")
		r.hear(c, "none")
	})
}

func TestWireCloses(t *testing.T) {
	onWire(t, func(r *rig) {
		c := r.connect()
		time.AfterFunc(time.Second, func() { c.Close() })
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write: %v", err)
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	}) // the bubble ends only if nothing is left of the connection
}

// The far end goes: what it said before arrives, then the end does.
func TestWireEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(func() (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				_, _ = far.Write([]byte("bye"))
				far.Close()
			}()
			return near, nil
		}, newDice(1, "test", time.Now()))
		c, err := w.dial(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if all, err := io.ReadAll(c); err != nil || string(all) != "bye" {
			t.Errorf("%q, %v", all, err)
		}
		refused := errors.New("refused")
		w.accept = func() (net.Conn, error) { return nil, refused }
		if _, err := w.dial(context.Background(), "", ""); !errors.Is(err, refused) {
			t.Errorf("dial: %v", err)
		}
	})
}
