package standing

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// A model of fixed windows whose split changes where processes see the edges at different times,
// for windows as long as a month: who is gone need not be kept for so long, and who comes in the
// middle need not take by the largest ρ until the end. It uses the handshake of buckets, and its
// reports say nothing more. Nothing uses the rule yet.
//
// A window does not forget what was admitted in it, so its split is settled as it begins: nobody
// may take from Redis by 1 − ρ, at any time in the window, if a share went by a larger σ at any
// other.
//
//	A process settles the ρ of a window 10 s before it begins, and its σ 5 s before, each up to a
//	  second late. What holds at each instant by the handshake, that no σ is above a ρ of the last
//	  hold, then holds for all of the window, though processes see its begin up to 2 s early or late.
//	Within 5 s of an edge a process goes by both windows: by the larger ρ and the smaller σ.
//	The table keeps the record of a window: the largest σ of all reports since a right before it
//	  began. Who comes or wakes later has no share in this window. It takes by the record and its
//	  own ρ, once it was answered in this window. Until then, and where the table is too young to
//	  know, it takes by the largest ρ.
//
// That who wakes later is as who comes later is by argument: no history was found that needs it.

const (
	settlesRho   = 10 * tenths // before a window begins
	settlesSigma = 5 * tenths
	slack        = 1 * tenths // by which it may settle late
	edge         = 5 * tenths // before and after which a process goes by both windows
	skew         = 2 * tenths // by which processes see an edge early or late
	flight       = 1 * tenths // until a call is executed
)

// settled is what a process goes by in one window.
type settled struct {
	rho, sigma int
	hasSigma   bool
	came       bool // after it was due to settle
	answered   bool // since it came
}

// windowed is a process, and what it settled.
type windowed struct {
	since, skew int
	windows     map[int]*settled
	record      int // of the window in which its report was written
	of          int // that window
	known       bool
}

// windows is one history.
type windows struct {
	handshakes
	length  int
	procs   map[*modeled]*windowed
	records map[int]int
	lowest  map[int]int // ρ by which was taken from Redis, by window
	highest map[int]int // σ of shares
}

// keep notes a report in the records of the windows in which its σ may be used: the present one,
// and those that begin within a right.
func (m *windows) keep(said announced) {
	last := (m.now + right) / m.length
	if m.mistake == "a record begins with its window" {
		last = m.now / m.length
	}
	for j := m.now / m.length; j <= last; j++ {
		m.records[j] = max(m.records[j], said.sigma)
	}
}

// follow lets a process settle what is due, after its step.
func (m *windows) follow(p *modeled, w *windowed) {
	k := m.now / m.length
	if p.learned != nil && p.said.at == m.now {
		w.of, w.record = k, m.records[k]
		w.known = m.madeAt+right <= k*m.length || m.mistake == "a lost record is empty"
	}
	t := m.now + w.skew
	rhoDue, sigmaDue := m.due()
	for j := max(0, t/m.length-1); j*m.length-max(rhoDue, sigmaDue) <= t; j++ {
		s := w.windows[j]
		if s == nil {
			s = &settled{rho: p.rho}
			late := t > j*m.length-rhoDue+slack
			if w.since == m.now || late {
				s.came, s.rho, s.hasSigma = true, most, m.mistake != "a newcomer has shares"
			}
			w.windows[j] = s
		}
		if !s.came && t <= j*m.length-rhoDue {
			s.rho = p.rho
		}
		// By the mistake, who came takes its first σ as that of the window.
		if !s.hasSigma && (!s.came || p.sigma > 0) && t >= j*m.length-sigmaDue {
			s.sigma, s.hasSigma = p.sigma, true
			if !s.came && t > j*m.length-sigmaDue+slack {
				s.sigma = 0
			}
		}
		if s.came && p.heardAt == m.now && w.of == j {
			switch {
			case !w.known:
				s.rho = most
			case !s.answered:
				s.rho, s.answered = max(p.rho, w.record), true
			default:
				s.rho = max(s.rho, p.rho, w.record)
			}
			if m.mistake == "a newcomer takes by its own ρ" {
				s.rho = p.rho
			}
		}
	}
}

// due returns how long before a window begins its ρ and its σ are settled.
func (m *windows) due() (rho, sigma int) {
	if m.mistake == "σ is settled before ρ" {
		return settlesSigma, settlesRho
	}
	return settlesRho, settlesSigma
}

// use notes by what a process takes now.
func (m *windows) use(p *modeled, w *windowed) {
	t, around := m.now+w.skew, edge
	if m.mistake == "edges are sharp" {
		around = 0
	}
	rho, sigma := 0, most
	for j := max(0, (t-around)/m.length); j <= (t+around)/m.length; j++ {
		s := w.windows[j]
		rho, sigma = max(rho, s.rho), min(sigma, s.sigma)
	}
	if m.mistake == "ρ and σ are those of now" {
		rho, sigma = p.rho, p.sigma
	}
	if m.now >= p.heardAt+right {
		sigma = 0
	}
	for _, at := range []int{m.now, m.now + flight} {
		k := at / m.length
		if low, ok := m.lowest[k]; !ok || rho < low {
			m.lowest[k] = rho
		}
	}
	k := m.now / m.length
	m.highest[k] = max(m.highest[k], sigma)
}

// play plays a history, and says how it broke the limit. used counts the windows in which there
// were shares.
func (m *windows) play(until int) (how string, used int) {
	kinds := m.Uint64()
	m.table, m.madeAt = map[int]announced{}, -m.IntN(2*kept(0))
	m.procs, m.records = map[*modeled]*windowed{}, map[int]int{}
	m.lowest, m.highest = map[int]int{}, map[int]int{}
	m.length = []int{20, 60, 200}[m.IntN(3)] * tenths
	for range 1 + m.IntN(4) {
		m.join(m.fraction())
	}
	for ; m.now < until; m.now++ {
		made := m.madeAt
		m.happen(kinds)
		if m.madeAt != made {
			m.records = map[int]int{}
		}
		for _, p := range m.all {
			w := m.procs[p]
			if w == nil {
				w = &windowed{since: m.now, skew: m.IntN(2*skew+1) - skew, windows: map[int]*settled{}}
				m.procs[p] = w
			}
			if m.now < p.stillTo {
				continue
			}
			m.step(p)
			if p.said.at == m.now {
				m.keep(p.said)
			}
			m.follow(p, w)
			m.use(p, w)
		}
		k := m.now / m.length
		if low, ok := m.lowest[k]; ok && m.highest[k] > low {
			return fmt.Sprintf("at %.1f s, window %d of %d s: shares went by %d/8, and Redis by 1 - %d/8",
				float64(m.now)/tenths, k, m.length/tenths, m.highest[k], low), used
		}
	}
	for _, sigma := range m.highest {
		used += min(sigma, 1)
	}
	return "", used
}

// No history of the handshake breaks a window, and each mistake in the rule does.
func TestWindowsWhoseSplitChanges(t *testing.T) {
	broken := func(mistake string, histories int) (seed int, how string, used int) {
		for seed := range histories {
			m := &windows{handshakes: handshakes{Rand: rand.New(rand.NewPCG(uint64(seed), 57)), mistake: mistake}}
			how, n := m.play(600 * tenths)
			if used += n; how != "" {
				return seed, how, used
			}
		}
		return 0, "", used
	}
	histories := 5_000
	if testing.Short() {
		histories = 100
	}
	seed, how, used := broken("", histories)
	if how != "" {
		t.Errorf("seed %d: %s", seed, how)
	}
	if used < histories {
		t.Errorf("shares were used in %d windows of %d histories: that shows little", used, histories)
	}
	for _, mistake := range []string{
		"ρ and σ are those of now", "σ is settled before ρ", "edges are sharp",
		"a newcomer has shares", "a newcomer takes by its own ρ",
		"a record begins with its window", "a lost record is empty",
	} {
		if seed, how, _ := broken(mistake, 1_500); how == "" {
			t.Errorf("%s: no history shows it", mistake)
		} else {
			t.Logf("%s: seed %d: %s", mistake, seed, how)
		}
	}
}
