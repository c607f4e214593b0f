package faultnet_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// story writes and reads over a number of connections in turn, and tells what happened to each
// call. The far ends answer each Write of 8 bytes with as many.
func story(t *testing.T, seed uint64, f faultnet.Faults, quiet int) (lines []string) {
	synctest.Test(t, func(t *testing.T) {
		n := faultnet.New(seed)
		var conns []net.Conn
		for range 4 {
			near, far := net.Pipe()
			go func() { // until its connection is cut
				defer far.Close()
				buf := make([]byte, 8)
				for {
					if _, err := io.ReadFull(far, buf); err != nil {
						return
					}
					if _, err := far.Write(buf); err != nil {
						return
					}
				}
			}()
			conns = append(conns, n.Conn(near))
		}
		for round := range 40 {
			if round >= quiet {
				fatal.If(t, n.Set(f))
			}
			for i, c := range conns {
				start, buf := time.Now(), make([]byte, 8)
				_, err := c.Write([]byte("question"))
				if err == nil {
					_, err = io.ReadFull(c, buf)
				}
				if round >= 20 {
					lines = append(lines, fmt.Sprint(i, round, time.Since(start), string(buf), err))
				}
			}
		}
		n.Cut()
	})
	return lines
}

// The same seed and the same calls: the same faults, call by call. Another seed: others.
func TestSeed(t *testing.T) {
	for name, f := range map[string]faultnet.Faults{
		"cut before": {CutBefore: 0.05}, "cut after": {CutAfter: 0.05}, "jitter": {Jitter: time.Second},
		"all": {CutBefore: 0.01, CutAfter: 0.01, Jitter: time.Second, Delay: ms},
	} {
		t.Run(name, func(t *testing.T) {
			first := story(t, 1, f, 0)
			if again := story(t, 1, f, 0); !slices.Equal(first, again) {
				t.Errorf("the same seed:\n%s\n\n%s", strings.Join(first, "\n"), strings.Join(again, "\n"))
			}
			if other := story(t, 2, f, 0); slices.Equal(first, other) {
				t.Error("another seed, and no difference")
			}
			// Chance is drawn for each call, so it does not matter since when there is a fault. But
			// a connection that was cut before is none.
			if f.CutBefore+f.CutAfter == 0 {
				if late := story(t, 1, f, 20); !slices.Equal(first, late) {
					t.Errorf("the same seed, with faults from the middle on:\n%s\n\n%s", strings.Join(first, "\n"), strings.Join(late, "\n"))
				}
			}
		})
	}
}

// Each probability is what it says, within what chance allows: four standard deviations.
func TestProbabilities(t *testing.T) {
	const p, calls = 0.1, 2000
	within := func(what string, n int64) {
		if d := math.Abs(float64(n) - p*calls); d > 4*math.Sqrt(calls*p*(1-p)) {
			t.Errorf("%s: %d of %d with probability %v", what, n, calls, p)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		for what, f := range map[string]faultnet.Faults{"cut before": {CutBefore: p}, "cut after": {CutAfter: p}} {
			n := faultnet.New(7)
			fatal.If(t, n.Set(f))
			for range calls {
				near, far := net.Pipe()
				c := n.Conn(near)
				go func() {
					defer far.Close()
					_, _ = far.Read(make([]byte, 1))
					_, _ = far.Write([]byte("x"))
				}()
				if _, err := c.Write([]byte("x")); err == nil {
					_, _ = c.Read(make([]byte, 1))
				}
				_ = c.Close()
			}
			within(what, n.Counts().Cut())
		}
	})
}

// What only takes time changes nothing: bytes arrive unchanged and in order, both ways, whatever
// the faults, their changes and the deadlines of the calls, which go on after a timeout. If one is
// forgotten, the bubble tells.
func TestBytesArrive(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			n, chance := faultnet.New(seed), rand.New(rand.NewPCG(seed, 0))
			near, far := net.Pipe()
			c := n.Conn(near)
			var all sync.WaitGroup
			all.Go(func() { trickle(t, seed, c, far) })
			all.Go(func() { trickle(t, seed+1000, far, c) })
			for range 6 {
				f := faultnet.Faults{
					Delay:  []time.Duration{0, 0, ms, time.Second}[chance.IntN(4)],
					Jitter: []time.Duration{0, 0, ms, time.Minute}[chance.IntN(4)],
					HoldIn: chance.IntN(4) == 0,
				}
				fatal.If(t, n.Set(f))
				time.Sleep(time.Duration(chance.Int64N(int64(2 * time.Second))))
			}
			fatal.If(t, n.Set(faultnet.Faults{}))
			all.Wait()
			_, _ = c.Close(), far.Close()
		})
	}
}

// trickle writes some bytes at one end and wants them at the other.
func trickle(t *testing.T, seed uint64, from, to net.Conn) {
	chance := rand.New(rand.NewPCG(seed, 1))
	patience := []time.Duration{0, ms, 300 * ms}[chance.IntN(3)]
	text := make([]byte, []int{0, 40, 1000, 60_000}[chance.IntN(4)])
	for i := range text {
		text[i] = byte(chance.Uint32())
	}
	call := func(what string, deadline func(time.Time) error, call func([]byte) (int, error), p []byte) int {
		if patience > 0 {
			_ = deadline(time.Now().Add(patience)) // the call says what is wrong
		}
		n, err := call(p)
		if e, ok := errors.AsType[net.Error](err); err != nil && !(ok && e.Timeout()) {
			t.Fatalf("seed %d: %s: %v", seed, what, err)
		}
		return n
	}
	var reader sync.WaitGroup
	sizes := rand.New(rand.NewPCG(seed, 2))
	reader.Go(func() {
		var got []byte
		for buf := make([]byte, 1+sizes.IntN(5000)); len(got) < len(text); {
			time.Sleep(time.Duration(sizes.Int64N(int64(100 * ms)))) // so that faults change in the middle of a Write
			got = append(got, buf[:call("read", to.SetReadDeadline, to.Read, buf)]...)
		}
		if !bytes.Equal(got, text) {
			t.Errorf("seed %d: other bytes arrived", seed)
		}
	})
	for rest := text; len(rest) > 0; {
		time.Sleep(time.Duration(chance.Int64N(int64(time.Second))))
		size := chance.IntN(min(len(rest), 20_000) + 1)
		rest = rest[call("write", from.SetWriteDeadline, from.Write, rest[:size]):]
	}
	reader.Wait()
}

// What breaks a rule is refused, and changes nothing; what keeps it can be lived with, whatever it
// is.
func TestSet(t *testing.T) {
	for _, f := range []faultnet.Faults{
		{Delay: -1},
		{Jitter: math.MinInt64},
		{CutBefore: -0.1},
		{CutAfter: 1.0000001},
		{CutAfter: math.NaN()},
	} {
		if n := faultnet.New(1); n.Set(f) == nil || n.Faults() != (faultnet.Faults{}) {
			t.Errorf("%+v is taken", f)
		}
	}
	most := faultnet.Faults{Delay: math.MaxInt64, Jitter: math.MaxInt64, CutAfter: 1}
	for _, f := range []faultnet.Faults{most, {CutBefore: 1}} {
		n := faultnet.New(1)
		if err := n.Set(f); err != nil || n.Faults() != f {
			t.Errorf("%+v: %v", f, err)
		}
		near, far := net.Pipe()
		c := n.Conn(near)
		_ = c.SetDeadline(time.Now().Add(-ms))
		_, _ = c.Write([]byte("x"))
		_, _ = c.Read(make([]byte, 1))
		n.Cut()
		_, _ = c.Close(), far.Close()
	}
}
