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
}

func (m *splitters) join(want int) {
	m.born++
	p := &splitter{id: m.born, first: true, reportAt: m.now}
	p.Want(m.now, want, leases)
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
		if is = kinds>>kind&1 == 1 && m.IntN(seconds*10) == 0; is && kind != 5 {
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
	if now(3, 20) { // a reload
		m.all[m.IntN(len(m.all))].Want(m.now, m.want(), leases)
	}
	if now(4, 30) { // shorter than a report counts
		p := m.all[m.IntN(len(m.all))]
		p.stillTo, p.moves = m.now+time.Duration(m.IntN(60))*tick, m.IntN(2) == 0
	}
	if now(5, 30) && m.now > m.last+2*period { // one is cut off for so long that it counts no more, and goes on to use its shares
		p := m.all[m.IntN(len(m.all))]
		p.stillTo, p.moves, p.answerAt, p.first, m.calm = m.now+TTL, true, 0, true, m.now+TTL
	}
}

// step is a tick of one process.
func (m *splitters) step(p *splitter) {
	switch {
	case p.answerAt > 0 && m.now >= p.answerAt:
		p.answerAt, p.first, p.right = 0, false, m.now+TTL
		p.Hear(m.now, p.heard, leases)
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
		p.answerAt = m.now + time.Duration(m.IntN(3))*tick
	}
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
		histories = 300
	}
	for seed := range histories {
		m := &splitters{
			Rand: rand.New(rand.NewPCG(uint64(seed), 55)), reports: map[int]report{}, took: map[int]time.Duration{},
		}
		if how := m.play(400 * time.Second); how != "" {
			t.Fatalf("seed %d: %s", seed, how)
		}
	}
}

// A fleet that wants a part comes to use it, one that wants another part comes to use that, and one
// that gives it up comes to have the whole limit again.
func TestPartsAreUsed(t *testing.T) {
	m := &splitters{Rand: rand.New(rand.NewPCG(1, 55)), reports: map[int]report{}, took: map[int]time.Duration{}}
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
					p.Want(m.now, step.want, leases)
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
