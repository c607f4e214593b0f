package places_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/model"
	"github.com/tiered-limiter/tiered-limiter/internal/places"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The adversary of this file owns every message between processes and Redis, and time. What it
// judges by it counts itself: it looks into a Key only for what the next request may have.

const (
	bucket = "key"
	life   = time.Second
	epoch  = int64(1_700_000_000_000_000) // the server's clock at the start, µs
)

// process is one process. A place is good until the process has been silent for a life.
type process struct {
	key       places.Key
	id        string
	good, bad int64         // running places: promised, and not
	inTime    time.Duration // from then on what it has is promised no more
	claims    []message     // that have not arrived; late ones stay
	replies   []message     // likewise
	sent      map[int64]time.Duration
	heard     bool  // a reply was accepted
	owed      int64 // server time at which others got places that it runs, until it is told; 0 is none
}

type message struct {
	claim lua.Claims
	reply lua.ClaimReply
	sent  time.Duration
}

// mistake changes the world in one way. Each must be found.
type mistake struct {
	claim func(w *world, c *lua.Claims) // on its arrival
	reply func(w *world, p *process, m *message)
	spare func(w *world, p *process, n int64) bool // takes instead of Take
}

type world struct {
	now       time.Duration
	store     model.Places
	places    int64
	processes []*process
	seq       int64
	mistake   mistake
	wrong     string // what a step has shown

	// veryLate says that a claim came more than a life after it had left. Redis does not know then
	// that newer ones were before it, and it may get a place that nobody uses, for a life.
	veryLate bool
	died     bool // and what a process had comes back after a life
}

func newWorld(processes int, places int64, m mistake) *world {
	w := &world{places: places, mistake: m, now: time.Nanosecond}
	for i := range processes {
		w.processes = append(w.processes, w.newProcess(fmt.Sprint("p", i)))
	}
	return w
}

func (w *world) newProcess(id string) *process {
	p := &process{id: id, sent: map[int64]time.Duration{}}
	p.key.Places, p.key.Life = w.places, life
	return p
}

func (w *world) server() int64 { return epoch + w.now.Microseconds() }

// kinds of steps.
const (
	ask = iota // a request comes: it takes a spare place, or a claim leaves for it
	claim
	arrive // the oldest claim
	latest // the newest claim overtakes
	answer
	late // the newest reply comes first
	giveUp
	finish
	outage // a request by the fail mode
	look
	wait  // a moment
	still // more than a life
	die   // another process comes in its place
	kinds
)

// step makes one step of a process, and reports false if it cannot.
func (w *world) step(kind, who int) bool {
	p := w.processes[who]
	k := &p.key
	switch kind {
	case ask:
		take := k.Take
		if w.mistake.spare != nil {
			take = func(_ time.Duration, n int64) bool { return w.mistake.spare(w, p, n) }
		}
		k.Asked(w.now)
		if take(w.now, 1) {
			if p.good++; w.now >= p.inTime {
				w.wrong = p.id + " took a spare place that Redis may have given to others"
			}
			return true
		}
		return !k.UnderWay() && w.send(p, 1)
	case claim:
		return !k.UnderWay() && (k.Running() > 0 || !k.Empty()) && w.send(p, 0)
	case look:
		if due, _ := k.Look(w.now); due {
			return w.send(p, 0)
		}
		if k.Empty() { // as the Limiter forgets it
			*k = w.newProcess("").key
			p.heard, p.owed = false, 0
		}
	case arrive, latest:
		if len(p.claims) == 0 || kind == latest && len(p.claims) == 1 {
			return false
		}
		i := 0
		if kind == latest {
			i = len(p.claims) - 1
		}
		m := p.claims[i]
		p.claims = append(p.claims[:i:i], p.claims[i+1:]...)
		if w.mistake.claim != nil {
			w.mistake.claim(w, &m.claim)
		}
		r, err := w.store.Run(w.server(), &m.claim)
		if err != nil {
			panic(err)
		}
		m.reply = r[0]
		w.owe(p, m.reply)
		w.veryLate = w.veryLate || w.now-m.sent >= life
		p.replies = append(p.replies, m)
	case answer, late:
		if len(p.replies) == 0 || kind == late && len(p.replies) == 1 {
			return false
		}
		i := 0
		if kind == late {
			i = len(p.replies) - 1
		}
		m := p.replies[i]
		p.replies = append(p.replies[:i:i], p.replies[i+1:]...)
		if w.mistake.reply != nil {
			w.mistake.reply(w, p, &m)
		}
		seq := m.claim.Each[0].Seq
		lost, ok := k.Accept(seq, m.reply)
		if told := lost || m.claim.Each[0].Hold == 0; ok && p.owed > 0 && m.reply.Now >= p.owed {
			if !told {
				w.wrong = p.id + " is not told that others got its places"
			}
			p.owed = 0
		}
		p.heard = p.heard || ok
		if ok && m.reply.Code == lua.ClaimDone {
			p.inTime = max(p.inTime, p.sent[seq]+life)
		}
	case giveUp:
		if !k.UnderWay() {
			return false
		}
		k.Fail(w.seqOf(p), true)
	case finish:
		if p.good+p.bad == 0 {
			return false
		}
		if p.bad > 0 {
			p.bad--
		} else {
			p.good--
		}
		k.Return(1)
		if k.Rare(w.now) && !k.UnderWay() {
			return w.send(p, 0)
		}
	case outage:
		if p.bad > 1 {
			return false
		}
		k.Admit(1)
		p.bad++
	case wait:
		w.pass(30 * time.Millisecond)
	case still:
		w.pass(life + time.Millisecond)
	case die:
		if k.Empty() {
			return false
		}
		w.seq++
		w.died = true
		w.processes[who] = w.newProcess(fmt.Sprint("n", w.seq))
	}
	return true
}

// owe notes who has to be told that others got places that it runs.
func (w *world) owe(to *process, r lua.ClaimReply) {
	for _, p := range w.processes {
		if _, ok := w.store.Held(w.server(), bucket, p.id); p != to && r.Grant > 0 && p.heard && p.key.Running() > 0 && !ok && p.owed == 0 {
			p.owed = w.server()
		}
	}
}

func (w *world) seqOf(p *process) int64 {
	last := int64(0)
	for seq := range p.sent {
		last = max(last, seq)
	}
	return last
}

// send sends a claim of a process.
func (w *world) send(p *process, want int64) bool {
	w.seq++
	c := lua.Claims{Process: p.id, Each: []lua.Claim{p.key.Claim(w.now, p.id, w.seq, want, min(want, 1), w.seq%2 == 0)}}
	c.Each[0].Bucket = bucket
	p.sent[w.seq] = w.now
	p.claims = append(p.claims, message{claim: c, sent: w.now})
	return true
}

// pass lets time pass. Who was silent for a life has no promise any more.
func (w *world) pass(d time.Duration) {
	w.now += d
	for _, p := range w.processes {
		if w.now >= p.inTime {
			p.bad += p.good
			p.good = 0
		}
	}
}

// check returns what is wrong now.
func (w *world) check() string {
	if w.wrong != "" {
		return w.wrong
	}
	sum := int64(0)
	for _, p := range w.processes {
		if p.key.Running() != p.good+p.bad {
			return fmt.Sprintf("%s runs %d, and says %d", p.id, p.good+p.bad, p.key.Running())
		}
		if w.now >= p.inTime {
			continue
		}
		spare := p.key.Spare(w.now)
		sum += p.good + spare
		if held, _ := w.store.Held(w.server(), bucket, p.id); p.good+spare > held {
			return fmt.Sprintf("%s may use %d places, and Redis knows of %d", p.id, p.good+spare, held)
		}
	}
	if sum > w.places {
		return fmt.Sprintf("%d of %d places may be used", sum, w.places)
	}
	return ""
}

// settle ends all requests, delivers all messages, and lets processes renew. Then no place may be
// missing: another process gets all of them.
func (w *world) settle() string {
	for round := range 4 {
		for _, p := range w.processes {
			for w.step(finish, w.index(p)) {
			}
			if p.key.UnderWay() {
				p.key.Fail(w.seqOf(p), true)
			}
			if round == 1 { // late messages come last
				p.claims, p.replies = nil, nil
			}
			w.step(look, w.index(p)) // the low-water mark of the spare places
			w.step(claim, w.index(p))
			for w.step(arrive, w.index(p)) || w.step(late, w.index(p)) || w.step(answer, w.index(p)) {
			}
			if bad := w.check(); bad != "" {
				return bad
			}
		}
		w.pass(30 * time.Millisecond)
	}
	if w.veryLate || w.died {
		w.pass(life)
	}
	other := w.newProcess("other")
	w.processes = append(w.processes, other)
	w.send(other, w.places)
	w.step(arrive, len(w.processes)-1)
	w.step(answer, len(w.processes)-1)
	if spare := other.key.Spare(w.now); spare != w.places {
		return fmt.Sprintf("all is given back, and another process gets %d of %d places", spare, w.places)
	}
	return w.check()
}

func (w *world) index(p *process) int {
	for i, q := range w.processes {
		if p == q {
			return i
		}
	}
	return -1
}

// everyShort plays every sequence of up to depth steps that two processes can make, and returns the
// first one that goes wrong.
func everyShort(places int64, depth int, m func() mistake) (steps []int, bad string, played int) {
	var walk func(prefix []int) bool
	walk = func(prefix []int) bool {
		w := newWorld(2, places, m())
		for i, s := range prefix {
			if !w.step(s%kinds, s/kinds) {
				return true
			}
			if i == len(prefix)-1 {
				bad = w.check()
			}
		}
		played++
		if bad == "" {
			bad = w.settle()
		}
		if bad != "" {
			steps = append([]int(nil), prefix...)
			return false
		}
		if len(prefix) == depth {
			return true
		}
		for s := range 2 * kinds {
			if s/kinds == 1 && (s%kinds == wait || s%kinds == still) {
				continue // time passes for both
			}
			if !walk(append(prefix, s)) {
				return false
			}
		}
		return true
	}
	walk(nil)
	return steps, bad, played
}

func TestEveryShortSchedule(t *testing.T) {
	depth := 5
	if testing.Short() {
		depth = 4
	}
	for places := range int64(2) {
		steps, bad, played := everyShort(places+1, depth, func() mistake { return mistake{} })
		if bad != "" {
			t.Errorf("%d places: %s after %v", places+1, bad, names(steps))
		}
		t.Logf("%d places: %d schedules", places+1, played)
	}
}

// TestALossIsToldAgain: the answer that said so first may be lost.
func TestALossIsToldAgain(t *testing.T) {
	p, q := 0, kinds
	w := newWorld(2, 1, mistake{})
	for _, s := range []int{
		p + ask, p + arrive, p + answer, p + ask, p + still, q + ask, q + arrive,
		p + claim, p + arrive, p + giveUp, p + wait, p + claim, p + arrive, p + late,
	} {
		if !w.step(s%kinds, s/kinds) || w.check() != "" {
			t.Fatalf("%v: %s", names([]int{s}), w.check())
		}
	}
	if w.processes[0].owed != 0 {
		t.Error("it is owed to say so")
	}
}

// TestACopyHasNothing: two copies of a machine have one state, and only the first has its places.
// The other one is told that it has another name now, and states what runs in it.
func TestACopyHasNothing(t *testing.T) {
	k := places.Key{Places: 3, Life: life}
	k.Claim(1, "first", 1, 3, 3, false)
	k.Accept(1, lua.ClaimReply{Code: lua.ClaimDone, Grant: 3, Held: 3, Share: 3, Now: epoch})
	if !k.Take(2, 1) || k.Spare(2) != 2 {
		t.Fatalf("it has %d spare places", k.Spare(2))
	}
	if c := k.Claim(3, "copy", 2, 0, 0, false); c.Hold != 1 || k.Spare(3) != 0 {
		t.Errorf("a copy states %d places, and uses %d more", c.Hold, k.Spare(3))
	}
}

func drawSteps(t *rapid.T, processes int) []int {
	return rapid.SliceOfN(rapid.IntRange(0, processes*kinds-1), 1, 60).Draw(t, "steps")
}

// playRandom plays steps, and leaves out those that cannot be made.
func playRandom(w *world, steps []int) string {
	for _, s := range steps {
		if w.step(s%kinds, s/kinds) {
			if bad := w.check(); bad != "" {
				return bad
			}
		}
	}
	return w.settle()
}

func TestRandomSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		processes := rapid.IntRange(1, 3).Draw(t, "processes")
		w := newWorld(processes, rapid.Int64Range(1, 5).Draw(t, "places"), mistake{})
		if bad := playRandom(w, drawSteps(t, processes)); bad != "" {
			t.Fatal(bad)
		}
	})
}

// TestManySchedules plays long schedules in which requests and messages come more often than
// faults.
func TestManySchedules(t *testing.T) {
	schedules := 400_000
	if testing.Short() {
		schedules = 40_000
	}
	for seed := range schedules {
		processes := 1 + seed%3
		if bad := playRandom(newWorld(processes, int64(1+seed%4), mistake{}), mostly(uint64(seed), 50, processes)); bad != "" {
			t.Fatalf("schedule %d: %s", seed, bad)
		}
	}
}

// mostly draws steps of some processes.
func mostly(seed uint64, n, processes int) []int {
	often := [...]int{ask, ask, ask, ask, arrive, arrive, arrive, answer, answer, answer, finish, finish, claim, look, look, wait}
	steps := lcg(seed, n, 8*len(often)*processes)
	for i, x := range steps {
		who := x % processes
		kind := often[x/processes%len(often)]
		if x/processes/len(often) == 0 {
			kind = x / processes % kinds
		}
		steps[i] = who*kinds + kind
	}
	return steps
}

// TestMistakes plants mistakes: a check that finds none of them checks nothing.
func TestMistakes(t *testing.T) {
	for name, m := range map[string]mistake{
		"a late renewal revives a lost place": {claim: func(w *world, c *lua.Claims) {
			w.seq++
			c.Each[0].Seq = w.seq // as if the script did not know which call is the newer one
		}},
		"a release counts twice": {claim: func(w *world, c *lua.Claims) {
			held, _ := w.store.Held(w.server(), bucket, c.Process)
			if given := held - c.Each[0].Hold; given > 0 { // as a script that subtracts what comes back
				c.Each[0].Hold = max(0, c.Each[0].Hold-given)
			}
		}},
		"a spare place outlives its process' record": {spare: func(w *world, p *process, n int64) bool {
			p.key.Life = 3 * life
			ok := p.key.Take(w.now, n)
			return ok
		}, reply: func(_ *world, p *process, _ *message) { p.key.Life = 3 * life }},
		"a reply to a call that was given up is accepted": {reply: func(w *world, p *process, m *message) {
			if p.key.UnderWay() {
				m.claim.Each[0].Seq = w.seqOf(p)
			}
		}},
		"what runs beyond the places is used again": {reply: func(_ *world, _ *process, m *message) {
			m.reply.Held = m.claim.Each[0].Hold + m.reply.Grant
		}},
		"Redis grants what others have": {
			claim: func(_ *world, c *lua.Claims) { c.Each[0].Places++ },
			reply: func(_ *world, _ *process, m *message) { m.reply.Held-- },
		},
		"a loss is told with every second reply": {reply: func(_ *world, _ *process, m *message) {
			if m.claim.Each[0].Seq%2 == 0 {
				m.reply.Flags = 0
			}
		}},
		"a place outlives its process": {claim: func(_ *world, c *lua.Claims) { c.Each[0].Life *= 10 }},
	} {
		t.Run(name, func(t *testing.T) {
			found := ""
			for seed := range 200_000 {
				w := newWorld(2, 2, m)
				if found = playRandom(w, mostly(uint64(seed), 50, 2)); found != "" {
					t.Logf("schedule %d: %s", seed, found)
					break
				}
			}
			if found == "" {
				t.Fatal("nobody noticed")
			}
		})
	}
}

// lcg draws numbers below limit, the same for a seed.
func lcg(seed uint64, n, limit int) []int {
	all := make([]int, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range all {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		all[i] = int(x % uint64(limit))
	}
	return all
}

func names(steps []int) (all []string) {
	text := [...]string{"ask", "claim", "arrive", "latest", "answer", "late", "giveUp", "finish", "outage", "look", "wait", "still", "die"}
	for _, s := range steps {
		all = append(all, fmt.Sprintf("%s %d", text[s%kinds], s/kinds))
	}
	return all
}
