package sim

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// lane is one direction of a connection: bytes arrive in the order in which they were put, each when it is due.
type lane struct {
	mu       sync.Mutex
	parcels  []parcel
	torn     bool // bytes were lost: no stream goes on with a hole in it
	ended    bool // no more will come
	closed   bool // nobody reads any more
	deadline time.Time
	changed  chan struct{} // closed, and replaced, when the above changes
}

// parcel is what was put at one instant.
type parcel struct {
	data     []byte
	put, due time.Time
}

func newLane() *lane { return &lane{changed: make(chan struct{})} }

// change wakes the reader; mu is held.
func (l *lane) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// put sends data on its way, delay long but not past what was put before. What is put at one instant arrives together.
func (l *lane) put(data []byte, delay func() time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.torn || l.closed {
		return
	}
	if last := len(l.parcels) - 1; last >= 0 && l.parcels[last].put.Equal(now) {
		l.parcels[last].data = append(l.parcels[last].data, data...)
	} else {
		due := now.Add(delay())
		if last >= 0 && due.Before(l.parcels[last].due) {
			due = l.parcels[last].due
		}
		l.parcels = append(l.parcels, parcel{append([]byte(nil), data...), now, due})
	}
	l.change()
}

// tear loses what would have been put now, and so all that comes after it. What is under way still arrives.
func (l *lane) tear() {
	l.mu.Lock()
	l.torn = true
	l.mu.Unlock()
}

// end says that nothing more will be put. A lane that is torn never tells: the end is lost too.
func (l *lane) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.torn {
		l.ended = true
		l.change()
	}
}

// close ends reading.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.parcels = true, nil
	l.change()
}

// setDeadline bounds reading, that which is under way included. The zero time is none.
func (l *lane) setDeadline(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	l.change()
}

// read waits for bytes that are due; see net.Conn.
func (l *lane) read(p []byte) (int, error) {
	for {
		n, pause, changed, err := l.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if pause < 0 {
			<-changed
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// take reads what is due. When that is nothing, it reports how long to wait at most (negative: without limit), and for
// what besides.
func (l *lane) take(p []byte) (n int, pause time.Duration, changed <-chan struct{}, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return 0, 0, nil, net.ErrClosed
	case !l.deadline.IsZero() && !now.Before(l.deadline):
		return 0, 0, nil, os.ErrDeadlineExceeded
	case len(l.parcels) == 0 && l.ended:
		return 0, 0, nil, io.EOF
	}
	pause = -1
	if !l.deadline.IsZero() {
		pause = l.deadline.Sub(now)
	}
	if len(l.parcels) == 0 {
		return 0, pause, l.changed, nil
	}
	first := &l.parcels[0]
	if wait := first.due.Sub(now); wait > 0 {
		if pause < 0 || wait < pause {
			pause = wait
		}
		return 0, pause, l.changed, nil
	}
	n = copy(p, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		l.parcels = l.parcels[1:]
	}
	return n, 0, nil, nil
}
