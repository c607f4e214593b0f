package failover_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// One error of each class, by the letters of the tables.
var outcomes = map[byte]error{
	's': nil,                       // success
	'k': bucketError{one: true},    // key fault
	'r': callError{},               // refused
	'f': errors.New("unreachable"), // failure
	'l': replyError("LOADING Redis is loading the dataset in memory"),
	'p': redis.ErrPoolTimeout, // saturated
	'c': context.Canceled,
	'm': replyError("NOAUTH Authentication required."),
}

// replyError is an error reply as go-redis makes it of most texts.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// bucketError is an error that knows how far it reaches.
type bucketError struct{ one bool }

func (bucketError) Error() string     { return "of a bucket" }
func (e bucketError) OneBucket() bool { return e.one }

// callError is an error that concerns one call.
type callError struct{}

func (callError) Error() string { return "elsewhere" }
func (callError) OneCall() bool { return true }

// draws returns a source that yields us in turn, the last one for ever.
func draws(us ...float64) func() float64 {
	return func() float64 {
		u := us[0]
		if len(us) > 1 {
			us = us[1:]
		}
		return u
	}
}

// begin starts an attempt that must be let through.
func begin(t *testing.T, g *failover.Guard) *failover.Attempt {
	t.Helper()
	a, ok := g.Begin(nil)
	if !ok {
		t.Fatalf("refused while %v", g.State())
	}
	return a
}

// run makes one attempt for each letter of outcomes.
func run(t *testing.T, g *failover.Guard, letters string) {
	t.Helper()
	for i := range letters {
		if !begin(t, g).End(outcomes[letters[i]]) {
			t.Fatal("an attempt had ended before")
		}
	}
}

// expect checks the state, that Ready says whether an attempt is let through, and that it is so.
func expect(t *testing.T, g *failover.Guard, state failover.State, ready bool) {
	t.Helper()
	if got := g.State(); got != state {
		t.Fatalf("%v, want %v", got, state)
	}
	if got := g.Ready(); got != ready {
		t.Fatalf("%v: ready is %v", state, got)
	}
	if ready {
		return
	}
	if a, ok := g.Begin(nil); ok || a != nil {
		t.Fatalf("%v, yet an attempt was let through", state)
	}
}

// list is filled by one goroutine and read by another: within a bubble only synctest.Wait puts them
// in order.
type list[T any] struct {
	mu  sync.Mutex
	all []T
}

// add appends and reports how many there are.
func (l *list[T]) add(x T) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, x)
	return len(l.all)
}

func (l *list[T]) get() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// quiet is for servers that complain about the clients they are tested with.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// speaks listens on a loopback port and says the same to everybody.
func speaks(t *testing.T, text string) (addr string) {
	return answers(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1024))
		_, _ = io.WriteString(c, text)
	})
}

// resets listens on a loopback port and resets each connection that says something.
func resets(t *testing.T) (addr string) {
	return answers(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
}

// answers serves the connections to a loopback port one after the other.
func answers(t *testing.T, serve func(net.Conn)) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}
