package faultnet

import "time"

// lane is one direction of a connection while bytes take time. They arrive in the order in which they were put: each piece
// when it is due, and those before it have arrived.
type lane struct {
	pieces []piece
	bytes  int       // in pieces
	free   time.Time // from then on the line carries something else
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

const (
	// window is how many bytes a lane holds before its writer has to wait, as for the buffers of a socket.
	window = 256 << 10
	// segment is how many bytes a slow line carries at once, as an Ethernet frame does, so that a large write trickles.
	segment = 1460
)

// full reports whether a writer has to wait.
func (l *lane) full() bool { return l.bytes >= window }

// waiting reports whether there is anything in the lane.
func (l *lane) waiting() bool { return len(l.pieces) > 0 }

// put sends a piece on its way. The lane keeps its data.
func (l *lane) put(p piece, now time.Time, f *Faults) {
	p.due = l.schedule(&p, now, f)
	l.pieces = append(l.pieces, p)
	l.bytes += len(p.data)
}

// schedule says when a piece that is put now is due, and books the line for it.
func (l *lane) schedule(p *piece, now time.Time, f *Faults) time.Time {
	sent := now
	if f.Rate > 0 {
		if l.free.After(sent) {
			sent = l.free
		}
		// A window of bytes times 1e9 is far from the largest int64.
		sent = sent.Add(time.Duration(int64(len(p.data)) * int64(time.Second) / int64(f.Rate)))
		l.free = sent
	}
	return sent.Add(f.Delay).Add(part(f.Jitter, p.spread))
}

// hasten brings forward what would arrive sooner if it were all put now.
func (l *lane) hasten(now time.Time, f *Faults) {
	l.free = time.Time{}
	for i := range l.pieces {
		p := &l.pieces[i]
		if due := l.schedule(p, now, f); due.Before(p.due) {
			p.due = due
		}
	}
}

// pop takes out the first piece.
func (l *lane) pop() piece {
	p := l.pieces[0]
	l.pieces[0] = piece{}
	l.pieces = l.pieces[1:]
	l.bytes -= len(p.data)
	return p
}

// clear loses everything.
func (l *lane) clear() { l.pieces, l.bytes = nil, 0 }

// part is a share of a duration, from 0 to 1 of it.
func part(d time.Duration, share float64) time.Duration { return time.Duration(float64(d) * share) }
