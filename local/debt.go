package local

import (
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// debt is what was admitted without Redis and is to be charged to the bucket when Redis answers
// again.
//
// A bucket that nobody could reach was full meanwhile and threw its refill away: that pays for what
// was admitted without it. A bucket that others could reach threw nothing away, and all of the debt
// is charged. The bucket counts what it threw away (its overflow). The script charges max(owed,
// admitted − (overflow − seen)/fleet).
type debt struct {
	admitted int64 // tokens, since the overflow was last read
	certain  int64 // part of it that no refill pays: costs that turned out higher. Invariant: 0 ≤ certain ≤ admitted
}

// maxDebt is the most that one call reports. More is not exact in a double, and Redis would refuse
// the call. The rest goes with the next call.
const maxDebt = 1 << 52

// report is the part that one call can state.
func (d *debt) report() (admitted, certain int64) {
	admitted = min(d.admitted, maxDebt)
	return admitted, min(d.certain, admitted)
}

// accepted notes that Redis took what a call reported.
func (d *debt) accepted(c Call) {
	d.admitted -= c.Debt
	d.certain -= c.certain
}

// lower takes n tokens off the debt and reports how many it took. It keeps what is certain, and
// what a call under way reports.
func (d *debt) lower(n, underWay int64) int64 {
	n = min(n, max(d.admitted-d.certain-underWay, 0))
	d.admitted -= n
	return n
}

// cut cuts a debt to most tokens, and reports the rest.
func (d *debt) cut(most int64) (rest debt) {
	rest.admitted = max(d.admitted-most, 0)
	rest.certain = max(d.certain-most, 0)
	d.admitted -= rest.admitted
	d.certain -= rest.certain
	return rest
}

// mostOwed is the largest debt that can matter. It takes a full bucket as low as it may go, and
// uses up what may have overflowed in the time refilled, which is the time since the level was last
// seen: the overflow pays for debt.
func (p *Policy) mostOwed(refilled time.Duration) int64 {
	most := float64(p.Cap+p.maxDebt()) + p.refill(refilled)
	if len(p.Call.Also) > 0 { // those are the smallest numbers
		for _, l := range p.Call.Limits() {
			brought := float64(refilled) * float64(l.Tokens) / float64(micros(l.Period))
			most = max(most, float64(l.Cap+max(l.Cap, p.Call.MaxDebt))+brought)
		}
	}
	return int64(math.Ceil(min(most, maxDebt)))
}

// dated is the debt of a window or of a log, by when it was admitted, oldest first. Each piece
// counts at its last admission.
type dated []piece

type piece struct {
	debt
	from, to time.Duration // when the first and the last of it was admitted
	since    int64         // the server time in µs that it was reported at; 0 before. From then on it stays as it is
}

// piecesPerWindow is how many pieces a window has. A token counts up to one piece later than it was
// admitted. After an outage of a window or more, each piece is a call.
const piecesPerWindow = 4

// add adds tokens to the last piece or a new one, and reports those that are more than any window
// counts.
func (d *dated) add(at time.Duration, n, certain int64, length time.Duration) (beyond debt) {
	last := len(*d) - 1
	if last < 0 || (*d)[last].since > 0 || at-(*d)[last].from >= length {
		*d = append(*d, piece{from: at})
		last++
	}
	p := &(*d)[last]
	p.to = max(p.to, at)
	p.admitted += n
	p.certain += certain
	return p.cut(lua.MostTokens)
}

// drop removes what was admitted before a time and is not reported yet.
func (d *dated) drop(before time.Duration) (dropped debt) {
	*d = slices.DeleteFunc(*d, func(p piece) bool {
		old := p.to < before && p.since == 0
		if old {
			dropped.admitted += p.admitted
			dropped.certain += p.certain
		}
		return old
	})
	return dropped
}

// join makes one piece of all that are not reported: they count in one window.
func (d *dated) join() {
	all := *d
	for i := len(all) - 1; i > 0; i-- {
		if p, q := &all[i-1], all[i]; p.since == 0 && q.since == 0 {
			p.admitted, p.certain, p.to = p.admitted+q.admitted, p.certain+q.certain, q.to
			all = slices.Delete(all, i, i+1)
		}
	}
	*d = all
}

// next is the piece to report: the one that was reported and not accepted, or otherwise the latest,
// because that counts longest if there is no room for all of them. It is nil if there is none.
func (d dated) next() *piece {
	if len(d) == 0 {
		return nil
	}
	if i := slices.IndexFunc(d, func(p piece) bool { return p.since > 0 }); i >= 0 {
		return &d[i]
	}
	return &d[len(d)-1]
}

// report returns the piece that a call reports, and since when it counts, by the node's clock in
// µs. Unless that is a dry run, it stays as it is until a reply accepts it, so that repeating does
// no harm.
func (d dated) report(now time.Duration, server int64, dry bool) (admitted, certain, since int64) {
	p := d.next()
	if p == nil {
		return 0, 0, 0
	}
	if since = p.since; since == 0 {
		since = max(server-(now-min(p.to, now)).Microseconds(), 1)
	}
	if !dry {
		p.since = since
	}
	return p.admitted, p.certain, since
}

// accepted removes the piece that was reported.
func (d *dated) accepted() {
	*d = slices.DeleteFunc(*d, func(p piece) bool { return p.since > 0 })
}

// lower takes n tokens off that were not used after all, the latest first, and reports how many it
// took. It keeps what is certain or reported.
func (d *dated) lower(n int64) (lowered int64) {
	all := *d
	for i := len(all) - 1; i >= 0; i-- {
		if p := &all[i]; p.since == 0 {
			lowered += p.lower(n-lowered, 0)
		}
	}
	*d = slices.DeleteFunc(all, func(p piece) bool { return p.admitted == 0 })
	return lowered
}
