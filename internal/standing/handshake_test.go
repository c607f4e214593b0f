package standing

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A model of fractions that change while processes run, for a release in which each policy may have
// a fraction of its own and one deploy turns it on, changes it and turns it off. Nothing uses the
// rule yet. It says how processes agree without ever admitting more than the limit.
//
// Each process wants a fraction w. It takes from Redis by 1 − ρ, and its shares go by σ. It
// announces the three with its report, every 3 s, and learns in the same step what the others
// announced. Redis keeps the larger terms for [lua.TermsHold], so what governs there is the
// smallest ρ by which anybody took in that time. The limit holds if no σ in use is larger.
//
//	ρ is the largest of its own w, now and as it was last announced; of the σ that each other process
//	  announced last, those who are gone since less than kept too; and of its own σ.
//	σ falls at once to the smallest w and ρ that anybody announced, its own w among them. It rises
//	  when that smallest has been at least so high for wait, heard of without a gap. A rise is
//	  announced first, and used after the answer to that report.
//	Whoever has not heard of anybody yet, or not for as long as a right lasts, takes by the largest ρ.
//	An answer that comes later than late is none. A table that is younger than kept does not know
//	  all processes: until then nothing rises, and all take by the largest ρ.
//
// Where processes want different fractions, nobody has the difference. A rise takes some 30 s, and
// a fall 15 s.
//
// A sliding window and a log do not forget as a bucket does. So σ rises when the smallest has been
// so high for a window and a wait, and a process announces the largest σ by which its shares went
// in the last window.
//
// Windows that begin at an instant are in window_model_test.go. Not in the model: a fleet that
// grows beyond what shares can serve.

// Times are in tenths of a second, and fractions in eighths.
const (
	tenths   = 10
	hold     = 10 * tenths // as lua.TermsHold
	interval = 3 * tenths
	late     = 3 * tenths  // by which a report or its answer may be late while all is well
	right    = 60 * tenths // as TTL: shares end so long after the last answer

	wait = hold + 2*(interval+late)

	most = 6 // the largest fraction
)

// announced is what a process announces.
type announced struct{ w, rho, sigma, at int }

// table is what a report learns.
type table struct {
	others []announced
	young  bool
}

// handshake is the rule, as one process goes by it. The mistakes are what the model has to find.
type handshake struct {
	mistake    string
	window     int // of a sliding window, 0 for a token bucket
	rho, sigma int // in use
	next       int // σ, announced but not used yet
	settled    int // the largest σ of the last window
	heardAt    int
	lows       []heard // what σ might have been, in the last wait and once before
	highs      []heard // σ in the last window
}

type heard struct{ at, value int }

func newHandshake(now, w, window int, mistake string) *handshake {
	h := &handshake{mistake: mistake, window: window, rho: most, heardAt: now - right}
	if mistake == "a newcomer takes by what it wants" {
		h.rho, h.heardAt = w, now
	}
	return h
}

// kept is how long what somebody announced counts who is gone. It may have gone by it until the end
// of its right.
func kept(window int) int { return right + window + wait }

// announce returns what a report says.
func (h *handshake) announce(w int) announced {
	return announced{w, h.rho, max(h.sigma, h.next, h.settled), 0}
}

// silent is called when no answer has come for a while.
func (h *handshake) silent(now int) {
	if now < h.heardAt+right {
		return
	}
	h.note(min(now, h.heardAt+right))
	h.sigma, h.next = 0, 0
	if h.mistake != "who stood still takes as before" {
		h.rho = most
	}
}

// answered is called with the answer to a report that said this.
func (h *handshake) answered(now, w int, said announced, t table) {
	if now > said.at+late && h.mistake != "an answer counts however late it is" {
		return
	}
	counts := kept(h.window)
	if h.mistake == "who is gone is forgotten after 16 s" {
		counts = 16 * tenths
	}
	low, high := w, max(w, said.w)
	if h.mistake == "ρ falls to a w that was not announced" {
		high = w
	}
	for _, s := range t.others {
		if now-s.at <= counts {
			low, high = min(low, s.w, s.rho), max(high, s.sigma)
		}
	}
	if t.young && h.mistake != "a new table knows all" {
		low, high = min(low, h.sigma), most
	}
	if now > h.heardAt+interval+2*late && h.mistake != "a gap counts as heard of" {
		h.lows, h.next = nil, h.sigma
	}
	h.heardAt = now
	h.note(now) // what was used until now
	h.lower(now, low)
	if said.sigma >= h.next && h.next <= low { // it was announced
		h.sigma = h.next
	}
	h.sigma = min(h.sigma, low)
	if h.next = h.sigma; h.lows[0].at <= now-h.wait() {
		h.next = max(h.sigma, slices.MinFunc(h.lows, byValue).value)
	}
	if h.mistake == "σ rises at once" {
		h.next = low
	}
	if h.mistake == "σ is used before it is announced" {
		h.sigma = h.next
	}
	h.note(now)
	h.rho = max(high, h.next, h.settled)
	if h.mistake == "ρ is what the process wants" {
		h.rho = w
	}
}

// wait is how long the smallest must have been so high before σ rises.
func (h *handshake) wait() int {
	if h.window > 0 && h.mistake != "σ of a sliding window rises as that of a bucket" {
		return wait + h.window
	}
	return wait
}

// note notes σ of a sliding window.
func (h *handshake) note(now int) {
	if h.window == 0 || h.mistake == "ρ of a sliding window falls as that of a bucket" {
		return
	}
	h.highs = since(add(h.highs, heard{now, h.sigma}), now-h.window-2*(interval+late))
	h.settled = h.highs[0].value
}

func byValue(a, b heard) int { return cmp.Compare(a.value, b.value) }

// lower notes the smallest w and ρ. It keeps what was heard in the last wait, and the one before.
func (h *handshake) lower(now, low int) {
	h.lows = append(h.lows, heard{now, low})
	for len(h.lows) > 1 && h.lows[1].at <= now-h.wait() {
		h.lows = h.lows[1:]
	}
}

// modeled is a process of the model.
type modeled struct {
	*handshake
	id, w    int
	reportAt int
	writeAt  int // of the report under way, 0 for none
	answerAt int
	said     announced
	learned  *table // nil until the report is written
	stillTo  int    // until then it stands still, or has no connection
}

// handshakes is one history.
type handshakes struct {
	*rand.Rand
	mistake string
	now     int
	all     []*modeled
	born    int
	table   map[int]announced
	madeAt  int // when the table was
	window  int
	used    []heard // −ρ by which was taken from Redis, in the last hold, or in the last window
	shares  []heard // σ in use now, or in the last window
}

// fractions are those that are drawn.
var fractions = []int{0, 1, 2, 4, most}

func (m *handshakes) fraction() int { return fractions[m.IntN(len(fractions))] }

func (m *handshakes) join(w int) {
	m.born++
	m.all = append(m.all, &modeled{handshake: newHandshake(m.now, w, m.window, m.mistake), id: m.born, w: w, reportAt: m.now + m.IntN(tenths)})
}

// step is a tenth of a second of one process.
func (m *handshakes) step(p *modeled) {
	p.silent(m.now)
	switch {
	case p.writeAt == 0 && m.now >= p.reportAt:
		p.writeAt = m.now + 1 + m.IntN(late/3)
		p.answerAt = p.writeAt + m.IntN(late/3)
		p.said, p.learned = p.announce(p.w), nil
	case p.writeAt > 0 && p.learned == nil && m.now >= p.writeAt: // in one step in Redis
		p.learned = &table{young: m.now-m.madeAt < kept(m.window)}
		for id, s := range m.table {
			if id != p.id {
				p.learned.others = append(p.learned.others, s)
			}
		}
		p.said.at = m.now
		m.table[p.id] = p.said
	}
	if p.learned != nil && m.now >= p.answerAt {
		p.answered(m.now, p.w, p.said, *p.learned)
		p.writeAt, p.learned = 0, nil
		p.reportAt = m.now + interval + m.IntN(late/3)
	}
}

// happen draws what happens in a tenth of a second. Each history has some kinds of events.
func (m *handshakes) happen(kinds uint64) {
	now := func(kind, seconds int) bool { return kinds>>kind&1 == 1 && m.IntN(seconds*tenths) == 0 }
	if now(0, 40) {
		m.join(m.fraction())
	}
	if now(1, 60) && len(m.all) > 1 { // it dies
		i := m.IntN(len(m.all))
		m.all = slices.Delete(m.all, i, i+1)
	}
	if now(2, 60) { // a rolling deploy
		m.all = m.all[1:]
		m.join(m.fraction())
	}
	if now(3, 20) { // a reload
		m.all[m.IntN(len(m.all))].w = m.fraction()
	}
	if now(4, 30) {
		m.all[m.IntN(len(m.all))].stillTo = m.now + m.IntN((20+80*m.IntN(2))*tenths)
	}
	if now(5, 200) {
		m.table, m.madeAt = map[int]announced{}, m.now
	}
}

// play plays a history, and says how it broke the limit.
func (m *handshakes) play(length int) string {
	kinds := m.Uint64()
	m.table, m.madeAt = map[int]announced{}, -m.IntN(2*kept(m.window))
	for range 1 + m.IntN(4) {
		m.join(m.fraction())
	}
	for ; m.now < length; m.now++ {
		m.happen(kinds)
		for _, p := range m.all {
			if m.now >= p.stillTo {
				m.step(p)
				m.used = add(m.used, heard{m.now, -p.rho})
			}
			if m.now < p.heardAt+right {
				m.shares = add(m.shares, heard{m.now, p.sigma})
			}
		}
		if m.window > 0 {
			m.used, m.shares = since(m.used, m.now-m.window), since(m.shares, m.now-m.window)
		} else {
			m.used, m.shares = since(m.used, m.now-hold), since(m.shares, m.now)
		}
		if len(m.used) > 0 && len(m.shares) > 0 && m.shares[0].value > -m.used[0].value {
			return fmt.Sprintf("at %.1f s shares go by %d/8, and Redis by 1 - %d/8", float64(m.now)/tenths, m.shares[0].value, -m.used[0].value)
		}
	}
	return ""
}

// add adds the latest to what falls: the first is the largest, and what an equal or larger one
// follows is left out.
func add(all []heard, h heard) []heard {
	for len(all) > 0 && all[len(all)-1].value <= h.value {
		all = all[:len(all)-1]
	}
	return append(all, h)
}

// since drops what is older.
func since(all []heard, at int) []heard {
	for len(all) > 0 && all[0].at < at {
		all = all[1:]
	}
	return all
}

// Kinds of algorithms.
const (
	bucket = iota
	sliding
)

// broken plays histories until one breaks the limit.
func broken(mistake string, kind, histories int) (seed int, how string) {
	for seed := range histories {
		m := &handshakes{Rand: rand.New(rand.NewPCG(uint64(seed), 55)), mistake: mistake}
		if kind == sliding {
			m.window = (20 + m.IntN(60)) * tenths
		}
		if how := m.play(400 * tenths); how != "" {
			return seed, how
		}
	}
	return 0, ""
}

// No history of processes that join, die, restart, reload, stand still and lose the table breaks
// the limit, and each mistake in the rule does.
func TestFractionsThatChange(t *testing.T) {
	histories := 3000
	if testing.Short() {
		histories = 300
	}
	for kind := range sliding + 1 {
		if seed, how := broken("", kind, histories); how != "" {
			t.Errorf("kind %d, seed %d: %s", kind, seed, how)
		}
	}
	for _, row := range []struct {
		mistake string
		kind    int
	}{
		{"ρ is what the process wants", bucket},
		{"ρ falls to a w that was not announced", bucket},
		{"σ rises at once", bucket},
		{"σ is used before it is announced", bucket},
		{"who is gone is forgotten after 16 s", bucket},
		{"a newcomer takes by what it wants", bucket},
		{"who stood still takes as before", bucket},
		{"an answer counts however late it is", bucket},
		{"a new table knows all", bucket},
		{"a gap counts as heard of", bucket},
		{"σ of a sliding window rises as that of a bucket", sliding},
		{"ρ of a sliding window falls as that of a bucket", sliding},
	} {
		if seed, how := broken(row.mistake, row.kind, 10_000); how == "" {
			t.Errorf("%s: no history shows it", row.mistake)
		} else {
			t.Logf("%s: seed %d: %s", row.mistake, seed, how)
		}
	}
}

// A fleet that agrees on a fraction comes to use it, and one that gives it up comes to have the
// whole limit again.
func TestFractionsAreUsed(t *testing.T) {
	m := &handshakes{Rand: rand.New(rand.NewPCG(1, 55)), table: map[int]announced{}, madeAt: -kept(0)}
	for range 12 {
		m.join(4)
	}
	run := func(until, rho, sigma int) {
		t.Helper()
		for ; m.now < until; m.now++ {
			for _, p := range m.all {
				m.step(p)
			}
		}
		for _, p := range m.all {
			if p.rho != rho || p.sigma != sigma {
				t.Fatalf("at %d s: ρ %d and σ %d, want %d and %d", m.now/tenths, p.rho, p.sigma, rho, sigma)
			}
		}
	}
	run(60*tenths, 4, 4)
	for _, p := range m.all {
		p.w = 0
	}
	run(75*tenths, 0, 0)
	for _, p := range m.all {
		p.w = most
	}
	run(125*tenths, most, most)
}
