package sim

import (
	"bufio"
	"encoding/gob"
	"io"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// order is what the driver tells a child: one of its fields is set, or several.
type order struct {
	Job    *job             // the first one: become a process
	Ask    *question        // decide
	Faults *faultnet.Faults // of the network, from now on
	Addr   string           // of Redis, from now on
	Stats  uint64           // tell the figures, under this number
	Leave  bool             // in good order; the last one
}

// job is what a child needs to know to be a process of a fleet.
type job struct {
	Addr, Password string // of Redis
	Faults         faultnet.Faults
	Seed           uint64 // of the network
	Policies       []tiered.Policy

	Budget, Timeout                 time.Duration // these and the next are tiered.Options
	Processes, MaxKeys, MaxInFlight int
}

// question is a request.
type question struct {
	ID    uint64
	Limit int
	Key   string
	Cost  int64
	Leave time.Duration // when the caller leaves; 0 is never
}

// news is what a child tells: one of its fields is set, besides At.
type news struct {
	Ready    bool // it waits for its job
	Answer   *answer
	Figures  *figures
	At       int64  // when it was so, of Calls and Breaker: as answer.Came
	Calls    int    // so many were sent, in one round trip
	Breaker  string // is in this state now
	Happened string
	Wrong    string // it cannot go on
}

// answer is what became of a question.
type answer struct {
	ID         uint64
	Came       int64 // when the question did, by the wall clock: ns since 1970
	Took       time.Duration
	Allowed    bool
	Reason     tiered.Reason
	Tier       tiered.Tier
	RetryAfter time.Duration
}

// figures are a process' Stats, asked for under a number; 0 are those it left with.
type figures struct {
	Number uint64
	Stats  tiered.Stats
	Busy   bool          // calls are under way
	Lag    time.Duration // by how much the machine held the process up at most, so far
}

// sender writes messages to a pipe. Those that come while it writes go out together. Its methods may be called concurrently;
// they block while the pipe is full.
type sender struct {
	mu   sync.Mutex
	out  *bufio.Writer
	enc  *gob.Encoder
	err  error         // the first
	more chan struct{} // there is something to write out
}

// newSender returns a sender to w; until it is closed it has a goroutine.
func newSender(w io.Writer) *sender {
	s := &sender{out: bufio.NewWriterSize(w, 1<<16), more: make(chan struct{}, 1)}
	s.enc = gob.NewEncoder(s.out)
	go func() {
		for range s.more {
			_ = s.flush() // send says so the next time
		}
	}()
	return s
}

// send sends a message. An error means that nobody reads any more.
func (s *sender) send(message any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = s.enc.Encode(message)
	}
	if s.err == nil {
		select {
		case s.more <- struct{}{}:
		default:
		}
	}
	return s.err
}

// flush writes out what was sent.
func (s *sender) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = s.out.Flush()
	}
	return s.err
}

// close ends the sender; what is sent later goes nowhere.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = io.ErrClosedPipe
	close(s.more)
}
