package faultnet

import "time"

// lane is one direction of a connection. Pieces arrive in the order in which they were put: each when it is due, and
// those before it have arrived.
type lane struct {
	pieces []piece
	bytes  int // in pieces
}

// piece is some bytes that arrive together.
type piece struct {
	data     []byte
	err      error // instead of data, the end of the stream
	due      time.Time
	spread   float64 // its part of the jitter, 0 to 1
	doubtful bool    // it came in after a Write that the connection is to be cut after
	doomed   bool    // it ends a Write that the connection is to be cut after
}

// window is how many bytes a lane holds before its writer has to wait, as for the buffers of a socket.
const window = 256 << 10

// full reports whether a writer has to wait.
func (l *lane) full() bool { return l.bytes >= window }

// waiting reports whether there is anything in the lane.
func (l *lane) waiting() bool { return len(l.pieces) > 0 }

// put sends a piece on its way. The lane keeps its data.
func (l *lane) put(p piece, now time.Time, f *Faults) {
	p.due = f.due(now, p.spread)
	l.pieces = append(l.pieces, p)
	l.bytes += len(p.data)
}

// hasten brings forward what would arrive sooner if it were put now.
func (l *lane) hasten(now time.Time, f *Faults) {
	for i := range l.pieces {
		if p := &l.pieces[i]; f.due(now, p.spread).Before(p.due) {
			p.due = f.due(now, p.spread)
		}
	}
}

// skip takes n bytes from the first piece, and takes it out if no more are left.
func (l *lane) skip(n int) {
	l.bytes -= n
	if p := &l.pieces[0]; n < len(p.data) {
		p.data = p.data[n:]
		return
	}
	l.pieces[0] = piece{}
	l.pieces = l.pieces[1:]
}

// clear loses everything.
func (l *lane) clear() { l.pieces, l.bytes = nil, 0 }
