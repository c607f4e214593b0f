package report

import "sync/atomic"

// MaxMissed is how many refreshes of presence must fail in a row before that is reported. A restart
// of Redis costs one, and so does an error that the breaker is about to report.
const MaxMissed = 2

// maxMissedAtFirst is MaxMissed for a Redis that has never answered. One that is far may need four:
// each waits longer, because nobody knows yet how long making a connection takes.
const maxMissedAtFirst = 4

// Presence says when to report that a node does not count this process, and that it does so again.
// All methods may be called concurrently.
type Presence struct {
	answered atomic.Int64 // refreshes
	missed   atomic.Int64 // failed refreshes in a row, while the breaker was closed
	absent   atomic.Bool  // it was reported that this process is not counted, and nothing since
}

// Refreshed counts a refresh that was answered. It reports whether to say that the node counts this
// process again.
func (p *Presence) Refreshed() (again bool) {
	p.missed.Store(0)
	p.answered.Add(1)
	return p.absent.Swap(false)
}

// Missed counts a refresh that failed. It reports whether to say that the node does not count this
// process. silent says that the node did not answer at all.
func (p *Presence) Missed(silent bool) (absent bool) {
	most := int64(MaxMissed)
	if silent && p.answered.Load() == 0 {
		most = maxMissedAtFirst
	}
	return p.missed.Add(1) >= most && !p.absent.Swap(true)
}

// Typical reports whether an answer shows how far the node is. The first does not, because a
// connection was made for it.
func (p *Presence) Typical() bool { return p.answered.Load() > 1 }
