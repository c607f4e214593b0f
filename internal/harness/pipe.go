package harness

import (
	"bufio"
	"encoding/gob"
	"io"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// order is what the driver tells a child: one of its fields is set besides ID, or several, or none to see whether it lives. The
// end of all orders is the order to exit.
type order struct {
	ID     uint64           // of the message that answers; 0 is none
	Job    *Job             // the first order but for empty ones
	Begin  bool             // offer the requests of the job
	Ask    *Question        // decide
	Net    *faultnet.Faults // of the network, from now on
	Addr   string           // of Redis, from now on, whatever is dialed
	Report bool             // report
	Leave  time.Duration    // return the leases within this time, report and exit
}

// message is what a child tells: the answer to an order, or something else.
type message struct {
	ID     uint64 // of the order
	Answer *Answer
	Report *Report
	Event  *Event
	Wrong  string // it cannot go on
}

// Question is a request.
type Question struct {
	Load  int // index of the load whose policy decides
	Key   string
	Cost  int64
	Leave time.Duration // when the caller leaves; 0 is never
}

// Answer is what became of a question.
type Answer struct {
	Came       int64 // when the question did, by the wall clock: ns since 1970
	Took       time.Duration
	Allowed    bool
	Reason     tiered.Reason
	Tier       tiered.Tier
	RetryAfter time.Duration
}

// Event is something that happened in a child: one of its fields is set, besides At. It is told if Job.Verbose.
type Event struct {
	At       int64  // ns of the wall clock
	State    *State // a breaker changed
	Calls    int    // the number of calls sent in one round trip
	Happened string // "short_grant" or "script_sent"
	Refused  string // why Redis refused a call
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
