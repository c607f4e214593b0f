package standing

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The times of the model.
const (
	tick   = 100 * time.Millisecond
	period = 3 * time.Second  // of reports
	silent = 10 * time.Second // after it a process is counted no more
	leases = 2 * time.Second
	late   = 2 * time.Second // until then a call may be executed
)

// splitter is a process of the model.
type splitter struct {
	Agreement
	id       int
	reportAt time.Duration
	answerAt time.Duration // of the report under way; 0 for none
	heard    Heard
	stillTo  time.Duration // until then it stands still, or cannot reach Redis
	moves    bool          // it goes on to use its shares meanwhile
	right    time.Duration // its shares end then
	first    bool          // it has heard nothing yet, or not for long, and takes nothing
	leavesAt time.Duration // in peace; 0 for never
	usesFrom time.Duration // it uses its shares since then
	calls    []windowCall  // under way
	offset   int64         // of the clock of Redis, as it knows
}

// windowCall is a call for a window that begins at a time.
type windowCall struct {
	at      time.Duration // when it is executed
	key     int
	begin   int64
	eighths int  // that it leaves to shares
	alone   bool // not in another window
}

// window is what happened in the running window of a key.
type window struct {
	begin        int64
	shared, left int // by the most eighths shares were used, and the least was left to them by a call
}

// report is what Redis has of a process.
type report struct {
	at         time.Duration
	want, uses int
}

// splitters is one history of processes that differ.
type splitters struct {
	*rand.Rand
	now     time.Duration
	all     []*splitter
	born    int
	reports map[int]report
	took    map[int]time.Duration // when it was last taken from Redis, by eighths that were left
	last    time.Duration         // when something happened
	calm    time.Duration         // until then nothing does

	length time.Duration // of the windows; 0 for token buckets
	phases []int64       // where windows of keys begin
	keys   []window
	used   map[int]lasted // what Redis keeps, by eighths
	offset int64          // by which the clock of Redis was set, in µs
	inUse  int            // windows in which shares were used
}

// start is the time of Redis at the begin of a history, in µs.
const start = int64(1_763_640_000_000_000)

func newSplitters(seed uint64, length time.Duration) *splitters {
	m := &splitters{
		Rand: rand.New(rand.NewPCG(seed, 55)), reports: map[int]report{}, took: map[int]time.Duration{},
		length: length, used: map[int]lasted{},
	}
	for range 4 {
		if length > 0 {
			m.phases = append(m.phases, m.Int64N(length.Microseconds()))
			m.keys = append(m.keys, window{left: lua.MostShared})
		}
	}
	return m
}

// server is the time of Redis.
func (m *splitters) server() int64 { return start + m.now.Microseconds() + m.offset }

// moment is the time as a process knows it.
func (m *splitters) moment(p *splitter) Moment {
	return Moment{m.now, start + m.now.Microseconds() + p.offset}
}

// beginOf returns when the window of a key began in which a time of Redis is.
func (m *splitters) beginOf(k int, server int64) int64 {
	length := m.length.Microseconds()
	return server - ((server-m.phases[k])%length+length)%length
}

func (m *splitters) join(want int) {
	m.born++
	p := &splitter{id: m.born, first: true, reportAt: m.now, offset: m.offset}
	p.Want(m.now, want, leases, m.length)
	m.all = append(m.all, p)
}

// want draws a part.
func (m *splitters) want() int { return []int{0, 1, 2, 4, lua.MostShared}[m.IntN(5)] }

// happen draws what happens in a tick. Each history has some kinds of events.
func (m *splitters) happen(kinds uint64) {
	if m.now < m.calm {
		return
	}
	now := func(kind, seconds int) (is bool) {
		if is = kinds>>kind&1 == 1 && m.IntN(seconds*10) == 0; is && kind != 5 && kind != 7 && kind != 8 {
			m.last = m.now
		}
		return is
	}
	if now(0, 40) {
		m.join(m.want())
	}
	if now(1, 60) && len(m.all) > 1 { // one dies
		i := m.IntN(len(m.all))
		m.all = slices.Delete(m.all, i, i+1)
	}
	if now(2, 60) { // a rolling deploy
		if m.IntN(2) == 0 { // this one leaves in peace
			delete(m.reports, m.all[0].id)
		}
		m.all = m.all[1:]
		m.join(m.want())
	}
	if now(9, 20) { // one comes and soon leaves: others may not have heard of it
		m.join(m.want())
		m.all[len(m.all)-1].leavesAt = m.now + tick + time.Duration(m.IntN(40))*tick
	}
	for i := len(m.all) - 1; i > 0; i-- {
		if p := m.all[i]; p.leavesAt > 0 && m.now >= p.leavesAt {
			delete(m.reports, p.id)
			m.all = slices.Delete(m.all, i, i+1)
		}
	}
	if now(3, 20) { // a reload
		m.all[m.IntN(len(m.all))].Want(m.now, m.want(), leases, m.length)
	}
	if now(4, 30) { // shorter than a report counts
		if p := m.all[m.IntN(len(m.all))]; m.now >= p.stillTo+period {
			p.stillTo, p.moves = m.now+time.Duration(m.IntN(60))*tick, m.IntN(2) == 0
		}
	}
	if now(5, 30) && m.now > m.last+2*period { // one is cut off for so long that it counts no more, and goes on to use its shares
		p := m.all[m.IntN(len(m.all))]
		p.stillTo, p.moves, p.answerAt, p.first, m.calm = m.now+TTL, true, 0, true, m.now+TTL
	}
	still := func(p *splitter) bool { return m.now < p.stillTo+period }
	if now(7, 100) && m.last < m.now-2*period && !slices.ContainsFunc(m.all, still) {
		// Redis loses what all have heard of, and nobody comes for long.
		clear(m.reports)
		clear(m.used)
		m.calm = m.now + max(m.length, silent) + 2*period // a window may begin before they say again what they use
	}
	if now(8, 60) {
		by := []int64{-3600e6, -5e6, -700e3, 700e3, 3e6, 3600e6}
		m.offset += by[m.IntN(len(by))]
	}
	if now(6, 100) { // all end, in peace or not, and then there are others
		if m.IntN(2) == 0 {
			clear(m.reports)
		}
		m.all = nil
		for range 1 + m.IntN(3) {
			m.join(m.want())
		}
	}
}

// step is a tick of one process.
func (m *splitters) step(p *splitter) {
	switch {
	case p.answerAt > 0 && m.now >= p.answerAt:
		p.answerAt, p.first, p.right = 0, false, m.now+TTL
		agreed := p.agreed
		if p.Hear(m.now, p.heard, leases); p.agreed && !agreed {
			p.usesFrom, m.last = m.now, m.now
		}
		if p.Uses() > p.heard.Said {
			p.reportAt = m.now + tick
		} else {
			p.reportAt = m.now + period + time.Duration(m.IntN(4))*tick
		}
	case p.answerAt == 0 && m.now >= p.reportAt:
		m.reports[p.id] = report{m.now, p.wants, p.Uses()}
		p.heard = Heard{Wanted: p.wants, Said: p.Uses(), Nodes: 1, Told: 1}
		for _, r := range m.reports {
			if r.at > m.now-silent {
				p.heard.Used = max(p.heard.Used, r.uses)
				if r.want != p.wants {
					p.heard.Outsiders++
				}
			}
		}
		if m.length > 0 {
			m.keep(p)
			p.heard.HeardAt, p.offset = m.now, m.offset // a few ms later, that is
		}
		p.answerAt = m.now + time.Duration(m.IntN(3))*tick
	}
}

// keep is what a report does to what Redis keeps of the parts that were in use.
func (m *splitters) keep(p *splitter) {
	const second = int64(1e6)
	p.heard.At = m.server()
	if e := p.Uses(); e > 0 {
		now := lasted{m.server() / second * second, (m.server()/second + 1) * second}
		was, ok := m.used[e]
		if ok {
			now = lasted{min(was.from, now.from), max(was.to, now.to)}
		}
		m.used[e] = now
	}
	for e, u := range m.used {
		if u.to < m.server()-Keep(m.length).Microseconds() {
			delete(m.used, e)
			continue
		}
		p.heard.WasUsed = append(p.heard.WasUsed, lua.Used{Eighths: int64(e), From: u.from, To: u.to})
	}
}

// windows plays a tick of all keys, and says how it broke the limit.
func (m *splitters) windows() string {
	for k := range m.keys {
		w := &m.keys[k]
		if begin := m.beginOf(k, m.server()); begin != w.begin {
			*w = window{begin: begin, left: lua.MostShared}
		}
		for _, p := range m.all {
			if m.now < p.stillTo && !p.moves {
				continue
			}
			if m.now >= p.stillTo && m.IntN(3) == 0 { // it has called
				p.offset = m.offset
			}
			at, s := m.moment(p), p.Parts()
			begin := m.beginOf(k, at.Server)
			age := time.Duration(at.Server-begin) * time.Microsecond
			// That it goes by another window than Redis until it calls is in docs/standing.md.
			if p.agreed && m.now < p.right && begin == w.begin && s.Used(Window{begin: begin, length: 1, since: m.now - age}) {
				if w.shared == 0 {
					m.inUse++
				}
				w.shared = max(w.shared, p.wants)
			}
			if m.now < p.stillTo || p.first || len(p.calls) >= 50 {
				continue
			}
			left, alone := s.Of(at, begin)
			p.calls = append(p.calls, windowCall{m.now + time.Duration(m.Int64N(int64(late))), k, begin, left, alone})
		}
	}
	for _, p := range m.all {
		var rest []windowCall
		for _, c := range p.calls {
			w := &m.keys[c.key]
			switch {
			case m.now < c.at:
				rest = append(rest, c)
			case c.begin == w.begin || !c.alone:
				w.left = min(w.left, c.eighths)
			}
		}
		p.calls = rest
	}
	for _, w := range m.keys {
		if w.shared > w.left {
			return fmt.Sprintf("at %v, in the window since %v shares were used by %d/8, and Redis went by 1 - %d/8",
				m.now, time.Duration(w.begin-start)*time.Microsecond, w.shared, w.left)
		}
	}
	return ""
}

// play plays a history, and says how it broke the limit.
func (m *splitters) play(length time.Duration) string {
	kinds := m.Uint64()
	for range 1 + m.IntN(4) {
		m.join(m.want())
	}
	for ; m.now < length; m.now += tick {
		m.happen(kinds)
		for _, p := range m.all {
			if m.now >= p.stillTo {
				if m.step(p); !p.first {
					m.took[p.redis] = m.now
				}
			}
		}
		if m.length > 0 {
			if how := m.windows(); how != "" {
				return how
			}
			continue
		}
		for _, p := range m.all {
			if !p.agreed || m.now >= p.right || m.now < p.stillTo && !p.moves {
				continue
			}
			for left, at := range m.took {
				if left < p.wants && m.now < at+lua.TermsHold {
					return fmt.Sprintf("at %v process %d uses %d/8, and Redis goes by 1 - %d/8 since %v", m.now, p.id, p.wants, left, at)
				}
			}
		}
	}
	return ""
}

// No history of processes that join, die, leave, restart, reload, and stand still or lose Redis for
// a while has shares in use beside more than the rest of the limit. What it costs if a process
// takes before its first report, or is cut off from Redis for longer than it counts, is in
// docs/standing.md.
func TestProcessesThatSplitDifferently(t *testing.T) {
	histories := 3000
	if testing.Short() {
		histories = 1000
	}
	for seed := range histories {
		m := newSplitters(uint64(seed), 0)
		if how := m.play(400 * time.Second); how != "" {
			t.Fatalf("seed %d: %s", seed, how)
		}
	}
}

// The same of windows: what shares were used for in one and what Redis went by in it fit into the
// limit, though the window goes on for long after processes that used it are gone.
func TestWindowsAreSplitAsTheyBegan(t *testing.T) {
	histories, inUse := 600, 0
	if testing.Short() {
		histories = 100
	}
	for seed := range histories {
		length := []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, time.Minute, 3 * time.Minute, time.Hour}[seed%6]
		m := newSplitters(uint64(seed), length)
		if how := m.play(400 * time.Second); how != "" {
			t.Fatalf("seed %d, windows of %v: %s", seed, length, how)
		}
		inUse += m.inUse
	}
	t.Logf("shares were used in %d windows per history", inUse/histories)
	if inUse < histories*20 {
		t.Errorf("in %d histories shares were used in %d windows: this shows nothing", histories, inUse)
	}
}

// A fleet that wants a part comes to use it, one that wants another part comes to use that, and one
// that gives it up comes to have the whole limit again.
func TestPartsAreUsed(t *testing.T) {
	m := newSplitters(1, 0)
	for range 12 {
		m.join(4)
	}
	for _, step := range []struct {
		want   int
		within time.Duration
	}{{4, 25 * time.Second}, {6, 25 * time.Second}, {1, kept + 25*time.Second}, {0, kept + 10*time.Second}, {2, 25 * time.Second}} {
		for until := m.now + step.within; m.now < until; m.now += tick {
			for _, p := range m.all {
				if p.wants != step.want {
					p.Want(m.now, step.want, leases, m.length)
				}
				m.step(p)
			}
		}
		for _, p := range m.all {
			if p.Redis() != step.want || p.Uses() != step.want || p.Agreed() != (step.want > 0) {
				t.Fatalf("%d/8 are wanted, and after %v one leaves %d, says %d: %v; %v",
					step.want, step.within, p.Redis(), p.Uses(), p.Agreed(), maps.Clone(m.reports))
			}
		}
	}
}
