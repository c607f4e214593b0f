package faultnet_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// Everything at once, from many goroutines: calls with and without deadlines, faults that come and
// go, cuts and closing. Nobody is stuck, which a bubble tells, nothing is left, and each call ends
// with an error that there is.
func TestStorm(t *testing.T) {
	var happened faultnet.Counts
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			c := reflect.ValueOf(storm(t, seed, "pipe", 200, time.Second))
			sum := reflect.ValueOf(&happened).Elem()
			for i := range c.NumField() {
				sum.Field(i).SetInt(sum.Field(i).Int() + c.Field(i).Int())
			}
		})
	}
	for i, h := 0, reflect.ValueOf(happened); i < h.NumField(); i++ {
		if h.Field(i).Int() == 0 {
			t.Errorf("something never happened: %+v", happened)
		}
	}
	storm(t, 1, "tcp", 30, ms)
}

func storm(t *testing.T, seed uint64, network string, rounds int, pause time.Duration) faultnet.Counts {
	n := faultnet.New(seed)
	dial := n.Dialer(func(context.Context, string, string) (net.Conn, error) {
		near, far, err := pair(network)
		if err == nil {
			go func() {
				defer far.Close()
				_, _ = io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{far}, make([]byte, 4096))
			}()
		}
		return near, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			chance := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil {
				dialing, cancel := context.WithTimeout(ctx, pause)
				c, err := dial(dialing, network, "far")
				cancel()
				if err != nil {
					known(t, "dial", err, syscall.ECONNREFUSED, context.DeadlineExceeded, context.Canceled)
					time.Sleep(pause / 10)
					continue
				}
				use(t, c, chance.Uint64(), pause)
			}
		})
	}
	chance := rand.New(rand.NewPCG(seed, 99))
	for range rounds {
		time.Sleep(time.Duration(chance.Int64N(int64(pause))))
		some := func(f *float64) {
			if chance.IntN(4) == 0 {
				*f = 0.1
			}
		}
		f := faultnet.Faults{
			Refuse: chance.IntN(10) == 0, HoldDial: chance.IntN(5) == 0, HoldOut: chance.IntN(5) == 0, HoldIn: chance.IntN(5) == 0,
			Delay: time.Duration(chance.IntN(3)) * pause / 10, Jitter: time.Duration(chance.IntN(3)) * pause / 10,
		}
		some(&f.CutBefore)
		some(&f.CutAfter)
		if chance.IntN(3) == 0 {
			f = faultnet.Faults{}
		}
		fatal.If(t, n.Set(f))
		if chance.IntN(10) == 0 {
			n.Cut()
		}
	}
	cancel()
	n.Cut()
	all.Wait()
	n.Cut() // what was closed and is under way
	if open := n.Open(); open > 0 {
		t.Errorf("seed %d: %d connections are open", seed, open)
	}
	return n.Counts()
}

// use writes and reads a connection from two goroutines for a while, and closes it under them.
func use(t *testing.T, c net.Conn, seed uint64, pause time.Duration) {
	var both sync.WaitGroup
	call := func(name string, which uint64, deadline func(time.Time) error, call func([]byte) (int, error)) {
		both.Go(func() {
			chance := rand.New(rand.NewPCG(seed, which))
			for range 10 {
				until := time.Time{}
				if chance.IntN(2) == 0 {
					until = time.Now().Add(time.Duration(chance.Int64N(int64(pause))))
				}
				if err := deadline(until); err != nil {
					known(t, "deadline", err, net.ErrClosed, io.ErrClosedPipe)
				}
				_, err := call(make([]byte, 1+chance.IntN(10_000)))
				if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					continue
				}
				known(t, name, err, net.ErrClosed, syscall.ECONNRESET, io.EOF)
				return
			}
		})
	}
	call("read", 1, c.SetReadDeadline, c.Read)
	call("write", 2, c.SetWriteDeadline, c.Write)
	time.Sleep(time.Duration(seed % uint64(5*pause)))
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	both.Wait()
}

func known(t *testing.T, what string, err error, errs ...error) {
	t.Helper()
	for _, e := range errs {
		if errors.Is(err, e) {
			return
		}
	}
	t.Errorf("%s: %v", what, err)
}
