package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// paceTrips is the number of round trips that a pace remembers. The second largest of them
	// counts, because one call that a pause or a new connection held up says nothing about the
	// next. With four of them a node that is fast again is known to be after three moments with
	// answers.
	paceTrips = 4

	// slowTrips is the number of answers in time of which the second slowest says what a slow one
	// takes. Callers that leave sooner are served by leases. With what an answer typically takes, a
	// third of the requests waited in vain where Redis is about as far as Budget
	// (docs/internals/sizing.md). If a hiccup holds up two answers, they count for the next 15.
	slowTrips = 16

	// slack is how many round trips a call may take before it has failed. Twice the second largest
	// of four covers round trips between 20 and 100 ms, and leaves what it was for a node that
	// answers within half of Timeout.
	slack = 2

	// MaxTimeout bounds what round trips can make of Timeout. It is the shortest life of a lease,
	// and three calls that fail by it are an outage that is found in 3 s.
	MaxTimeout = time.Second

	// maxPatience bounds for how long the client waits for a reply. Connecting takes four round
	// trips, TLS and the text of a script one more each: 1.5 s, at 250 ms each.
	maxPatience = 2 * time.Second
)

// longWaits is how many calls there are to one that the client waits for as long as any round trip
// that is no outage, while a node that has answered does not. Without it a node that became much
// slower at once would never be heard again.
const longWaits = 4

// pace follows how long a node takes to answer, apart from whether it answers. An answer counts
// here also if its call has failed by then.
type pace struct {
	least    time.Duration // Options.Timeout
	patient  time.Duration // Options.ClientTimeout
	timeout  atomic.Int64  // after which a call has failed, ns
	typical  atomic.Int64  // round trip, ns; 0 before the first answer
	slow     atomic.Int64  // round trip, ns: the second longest of the last slowTrips that came in time; 0 before the first
	last     atomic.Int64  // round trip, ns
	unheard  atomic.Int64  // calls without an answer since the last one
	mu       sync.Mutex
	trips    [paceTrips]time.Duration // a ring: trips[n%paceTrips] is written next
	answered int
	moments  moments
	inTime   [slowTrips]time.Duration // a ring of the round trips that came in time: inTime[n%slowTrips] is written next
	came     int
	lately   recent // the longest round trips, and times without an answer
}

// recentTime is how long a round trip counts as recent at least; twice that at most. Who is late is
// said every 10 s.
const recentTime = 10 * time.Second

// recent keeps the longest of the recent times, in two windows.
type recent struct {
	begun       time.Duration // of the window that is now
	now, before time.Duration // the longest in each
}

// add adds d at a time.
func (r *recent) add(at, d time.Duration) {
	switch since := at - r.begun; {
	case since >= 2*recentTime:
		*r = recent{begun: at}
	case since >= recentTime:
		r.begun, r.now, r.before = at, 0, r.now
	}
	r.now = max(r.now, d)
}

// longest returns the longest of the recent ones, or 0.
func (r *recent) longest(at time.Duration) time.Duration {
	r.add(at, 0)
	return max(r.now, r.before)
}

func newPace(timeout, clientTimeout time.Duration) *pace {
	p := &pace{least: timeout, patient: clientTimeout}
	p.timeout.Store(int64(timeout))
	return p
}

// answer adds the round trip of an answer that came now. It returns the time after which a call has
// failed from now on: never less than Options.Timeout.
func (p *pace) answer(now, trip time.Duration) time.Duration {
	p.unheard.Store(0)
	p.last.Store(int64(trip))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lately.add(now, trip)
	p.trips[p.answered%paceTrips] = trip
	p.answered++
	p.moments.add(now, trip)
	if int64(trip) <= p.timeout.Load() { // what comes late, as after a freeze, says nothing of what is usual
		p.typical.Store(int64(p.moments.typical()))
		p.inTime[p.came%slowTrips] = trip
		p.came++
		p.slow.Store(int64(secondLongest(p.inTime[:min(p.came, slowTrips)])))
	}
	timeout := max(p.least, min(slack*secondLongest(p.trips[:min(p.answered, paceTrips)]), MaxTimeout))
	p.timeout.Store(int64(timeout))
	return timeout
}

// moments are the last answers whose calls left after the one before had come. A pause of the node
// holds up all calls under way, and that is one event.
type moments struct {
	count int
	last  time.Duration            // when the last one came
	trips [paceTrips]time.Duration // a ring: trips[n%paceTrips] is written next
}

// add adds a round trip that ended now, if it is of another moment than the last.
func (m *moments) add(now, trip time.Duration) {
	if m.count > 0 && now-trip < m.last {
		return
	}
	m.trips[m.count%paceTrips] = trip
	m.count, m.last = m.count+1, now
}

// typical returns the second shortest, or of fewer than four the shortest.
func (m *moments) typical() time.Duration {
	sorted := m.trips
	known := sorted[:min(m.count, paceTrips)]
	slices.Sort(known)
	return known[len(known)/paceTrips]
}

// secondLongest returns the second longest of some round trips, or the only one.
func secondLongest(trips []time.Duration) time.Duration {
	var longest, second time.Duration
	for _, t := range trips {
		longest, second = max(longest, t), max(second, min(longest, t))
	}
	if len(trips) == 1 {
		return longest
	}
	return second
}

// noAnswer adds a call that has failed now without an answer.
func (p *pace) noAnswer(now time.Duration) {
	p.unheard.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lately.add(now, time.Duration(p.timeout.Load()))
}

// patience returns for how long the client waits for a reply. It is longer than a call that has not
// failed takes, because only an answer shows what a node that became slow takes, and because a new
// connection takes several round trips. The lengths are few, because remote keeps a client for
// each.
func (p *pace) patience() time.Duration {
	d, least := p.patient, 4*time.Duration(p.timeout.Load())
	unheard := p.unheard.Load()
	long := false
	if p.typical.Load() > 0 { // it has answered: a connection that hangs is not to be kept for long when it does again
		long = unheard%longWaits == longWaits-1
		unheard = min(unheard, 1)
	}
	for i := unheard; d < maxPatience && (i > 0 || d < least); i-- {
		d = min(2*d, maxPatience)
	}
	if long {
		d = max(d, MaxTimeout)
	}
	return d
}

// Timeout reports after which time a call to the node has failed. It follows the round trips.
func (n *Node) Timeout() time.Duration { return time.Duration(n.pace.timeout.Load()) }

// TypicalTrip reports how long the node takes to answer, or 0 before its first answer.
func (n *Node) TypicalTrip() time.Duration { return time.Duration(n.pace.typical.Load()) }

// SlowTrip reports how long a slow answer of the node takes, one in ten or so, or 0 before its
// first answer.
func (n *Node) SlowTrip() time.Duration { return time.Duration(n.pace.slow.Load()) }

// LastTrip reports how long the latest answer of the node took.
func (n *Node) LastTrip() time.Duration { return time.Duration(n.pace.last.Load()) }

// LongestTrip reports the longest that an answer of the node took in the last 10 to 20 s, with the
// calls that had no answer in time, or 0 if there was none.
func (n *Node) LongestTrip() time.Duration {
	n.pace.mu.Lock()
	defer n.pace.mu.Unlock()
	return n.pace.lately.longest(n.dispatcher.now())
}

// heard adds an answer of the node, whether its call had failed by then or not.
func (n *Node) heard(trip time.Duration) {
	n.guard.SetTimeout(n.pace.answer(n.dispatcher.now(), trip))
}

// maxSenders is how many pipelines may be under way to the node now: MaxSenders, and one more for
// each 10 ms of a round trip, up to mostSenders. Otherwise a call would wait behind others for
// longer than its caller does.
func (n *Node) maxSenders() int {
	return min(MaxSenders+int(n.TypicalTrip()/(10*time.Millisecond)), mostSenders)
}

const mostSenders = 8
