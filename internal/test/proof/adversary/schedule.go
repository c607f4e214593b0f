package adversary

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// History is a schedule of one of the two worlds, that of a bucket and that of the standing shares.
// It can be played any number of times. B is where it is played, and T a choice.
type History[S, B, T any] interface {
	Play(in B, tell bool) Outcome
	List() []T
	With(list []T) S // the same with other choices
	fmt.Stringer
}

// Outcome is the result of a history.
type Outcome struct {
	Fault string  // what broke, "" if nothing did
	Count int     // calls that the store executed, or admissions
	Slack float64 // tokens that were left of the limit that came nearest to its bound; negative if it was exceeded
	Text  string  // every step, if it was to be told
}

// Report is the result of many histories. Broken describes the shortest form of those that broke
// something, at most one of each worker.
type Report struct {
	Played, Count int
	Slack         float64 // the least
	Broken        []string
}

// Drive plays the histories of count seeds from first on, until one breaks something. There are as
// many workers as processors, each with a place of its own.
func Drive[S History[S, B, T], B, T any](
	first uint64, count int, draw func(seed uint64) S, place func(worker int) B,
) Report {
	sum := Report{Slack: math.Inf(1)}
	var mu sync.Mutex
	next := first
	var workers sync.WaitGroup
	for worker := range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			in := place(worker)
			for {
				mu.Lock()
				seed := next
				if next++; seed-first >= uint64(count) || len(sum.Broken) > 0 {
					mu.Unlock()
					return
				}
				mu.Unlock()
				h := draw(seed)
				o := h.Play(in, false)
				// A fault breaks each time. On a real server a key may expire early, because a busy
				// machine plays so slowly.
				for again := 0; o.Fault != "" && again < 2; again++ {
					o = h.Play(in, false)
				}
				broken := ""
				if o.Fault != "" {
					broken = fmt.Sprintf("seed %d: %s\nshrunk: %s", seed, o.Fault, Describe(shortest(h, in), in))
				}
				mu.Lock()
				sum.Played, sum.Count, sum.Slack = sum.Played+1, sum.Count+o.Count, min(sum.Slack, o.Slack)
				if broken != "" {
					sum.Broken = append(sum.Broken, broken)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return sum
}

// Under adds a message to those under way. Beyond the most that there may be the oldest is lost.
func Under[M any](way []M, m M, most int) []M {
	way = append(way, m)
	return way[max(len(way)-most, 0):]
}

// Describe plays a history and tells every step.
func Describe[S History[S, B, T], B, T any](h S, in B) string {
	return fmt.Sprintf("%v\n%s", h, h.Play(in, true).Text)
}

// shortest returns the shortest history it finds that still breaks something.
func shortest[S History[S, B, T], B, T any](h S, in B) S {
	return h.With(proof.Shortest(h.List(), func(list []T) bool { return h.With(list).Play(in, false).Fault != "" }))
}

// Journal is what a world writes down: its first fault, and every step if it is to be described.
type Journal struct {
	Fault string
	log   *strings.Builder
	start int // length of log before the step under way
}

// Tell has the journal keep every step, if it is to.
func (j *Journal) Tell(tell bool) {
	if tell {
		j.log = new(strings.Builder)
	}
}

// Text returns what was kept.
func (j *Journal) Text() string {
	if j.log == nil {
		return ""
	}
	return j.log.String()
}

// Failf records the first fault.
func (j *Journal) Failf(format string, args ...any) {
	if j.Fault == "" {
		j.Fault = fmt.Sprintf(format, args...)
		j.Logf("BROKEN: %s", j.Fault)
	}
}

// Logf adds a line.
func (j *Journal) Logf(format string, args ...any) {
	if j.log != nil {
		fmt.Fprintf(j.log, "        "+format+"\n", args...)
	}
}

// Step begins the part of a step.
func (j *Journal) Step(i int, what any) {
	if j.log != nil {
		j.start = j.log.Len()
		fmt.Fprintf(j.log, "%4d  %v\n", i, what)
	}
}

// Undo removes the part of the last step, which was not possible.
func (j *Journal) Undo() {
	if j.log != nil {
		before := j.log.String()[:j.start]
		j.log.Reset()
		j.log.WriteString(before)
	}
}

// Schedule is one history of a world. It can be played any number of times.
type Schedule struct {
	Scope   *Scope
	Seed    uint64   // of the processes' jitter
	Choices []uint16 // each an action of the scope; one that is not possible in its turn is left out
}

// Random returns a schedule that follows from its seed alone: one of the scopes, and up to steps
// steps.
func Random(scopes []*Scope, seed uint64, steps int) Schedule {
	r := rand.New(rand.NewPCG(seed, 2))
	s := Schedule{Scope: scopes[r.IntN(len(scopes))], Seed: seed, Choices: make([]uint16, steps/2+r.IntN(steps/2))}
	for i := range s.Choices {
		s.Choices[i] = uint16(r.IntN(len(s.Scope.Actions)))
	}
	return s
}

// action returns the action of a choice.
func (s *Scope) action(choice uint16) Action { return s.Actions[int(choice)%len(s.Actions)] }

// Place is a bucket in a store.
type Place struct {
	Store  *Store
	Bucket string
}

// Play plays a schedule, and shuts all processes down.
func (s Schedule) Play(in Place, tell bool) Outcome {
	w := New(s.Scope, in.Store, in.Bucket, s.Seed)
	w.Tell(tell)
	s.steps(w)
	if w.Fault == "" {
		w.Logf("all go home")
		w.shutDown(s.Seed%2 == 0)
	}
	w.lose() // a server is used by many
	return Outcome{Fault: w.Fault, Count: w.calls, Slack: w.slack(), Text: w.Text()}
}

// List returns the choices.
func (s Schedule) List() []uint16 { return s.Choices }

// With returns the schedule with other choices.
func (s Schedule) With(choices []uint16) Schedule { s.Choices = choices; return s }

func (s Schedule) String() string {
	return fmt.Sprintf("scope %s, seed %d, choices %x", s.Scope.Name, s.Seed, s.Choices)
}

// steps plays the prelude and the choices, and reports whether the last of them was possible.
func (s Schedule) steps(w *World) (possible bool) {
	for _, a := range s.Scope.Prelude {
		w.Step(0, a)
		w.Do(a)
	}
	for i, choice := range s.Choices {
		a := s.Scope.action(choice)
		w.Step(i, a)
		if possible = w.Do(a); !possible {
			w.Undo()
		}
		if w.Fault != "" {
			return possible
		}
	}
	return possible
}

// Walk plays every schedule of a scope up to a depth. It goes breadth first, so that the first
// failure has one of the shortest schedules. Of two schedules that lead to the same state one is
// followed up.
type Walk struct {
	Scope   *Scope
	Depth   int
	Workers int // that share the work

	States int    // found so far, after Run
	Broken *Error // the first thing that broke
}

// Error is a failure, and the schedule that led to it.
type Error struct {
	Schedule Schedule
	Fault    string
}

// Run walks, and reports whether nothing broke.
func (k *Walk) Run() bool {
	seen := newSeen()
	frontier := [][]uint16{nil}
	for range k.Depth {
		frontier = k.level(frontier, seen)
		k.States += len(frontier)
		if k.Broken != nil {
			return false
		}
	}
	return true
}

// level takes one step from each state of a frontier, with every action, and returns the new
// states.
func (k *Walk) level(frontier [][]uint16, seen *seen) (next [][]uint16) {
	var mu sync.Mutex
	var at atomic.Int64
	var all sync.WaitGroup
	for range max(k.Workers, 1) {
		all.Go(func() {
			var found [][]uint16
			for {
				i := int(at.Add(1)) - 1
				if i >= len(frontier) {
					break
				}
				found = append(found, k.follow(frontier[i], seen, &mu)...)
			}
			mu.Lock()
			next = append(next, found...)
			mu.Unlock()
		})
	}
	all.Wait()
	return next
}

// follow takes one more step after a schedule, each in a world of its own: the state of the shipped
// code can be replayed but not copied.
func (k *Walk) follow(path []uint16, seen *seen, mu *sync.Mutex) (found [][]uint16) {
	for choice := range uint16(len(k.Scope.Actions)) {
		s := Schedule{Scope: k.Scope, Choices: append(append(make([]uint16, 0, len(path)+1), path...), choice)}
		w := New(s.Scope, OnMemory(), "b", 0)
		if !s.steps(w) {
			continue // the last one was not possible
		}
		if w.Fault == "" {
			w.bound()
		}
		if w.Fault == "" && seen.add(w.digest()) {
			found = append(found, s.Choices)
		}
		if w.Fault != "" {
			mu.Lock()
			if k.Broken == nil {
				k.Broken = &Error{Schedule: s, Fault: w.Fault}
			}
			mu.Unlock()
			return found
		}
	}
	return found
}

// seen is a set of digests for concurrent use.
type seen struct {
	shards [64]struct {
		mu  sync.Mutex
		set map[uint64]struct{}
		_   [40]byte
	}
}

func newSeen() *seen {
	s := new(seen)
	for i := range s.shards {
		s.shards[i].set = make(map[uint64]struct{})
	}
	return s
}

// add reports whether a digest is new.
func (s *seen) add(digest uint64) bool {
	shard := &s.shards[digest%64]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if _, ok := shard.set[digest]; ok {
		return false
	}
	shard.set[digest] = struct{}{}
	return true
}

// SmallScope is a scope that is small enough to be walked through, and how deep.
type SmallScope struct {
	*Scope
	Depth int
}

// tick is half the life of a lease, in percent of the longest: the step of time here.
const tick = 15

// SmallScopes have a burst of two, one token per tick, and leases of one token that live for two
// ticks.
func SmallScopes() []SmallScope {
	wire := []Action{
		{Execute, 0, 0},
		{Execute, 0, 1},
		{Repeat, 0, 0},
		{Deliver, 0, 0},
		{Deliver, 0, 1},
		{Outsider, 0, 0},
		{Wait, 0, tick},
	}
	plus := func(of []Action, more ...Action) []Action { return append(append([]Action(nil), of...), more...) }
	all := []SmallScope{
		{Depth: 8, Scope: &Scope{
			Name: "one process", Bursts: []int64{2}, Warm: true,
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Probe, 0, 0}, Action{Send, 0, 0}, Action{GiveUp, 0, 0},
				Action{Look, 0, 0}, Action{Edge, 0, 0}),
		}},
		{Depth: 7, Scope: &Scope{
			Name: "one process, cold, that cancels", Bursts: []int64{2},
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Ask, 0, 2}, Action{Leave, 0, 0}, Action{Send, 0, 0},
				Action{GiveUp, 0, 0},
				Action{Cancel, 0, -1}, Action{Look, 0, 0}, Action{Evict, 0, 0}),
		}},
		{Depth: 7, Scope: &Scope{
			Name: "two processes", Bursts: []int64{2, 2}, Warm: true,
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Send, 0, 0}, Action{GiveUp, 0, 0}, Action{Crash, 0, 0},
				Action{Ask, 1, 1}, Action{Send, 1, 0}, Action{Evict, 1, 0}),
		}},
		{Depth: 7, Scope: &Scope{
			Name: "a renewal late in the lease", Bursts: []int64{2}, Warm: true, Prelude: lateRenewal(1),
			Actions: plus(wire, Action{Ask, 0, 1}, Action{Probe, 0, 0}, Action{Send, 0, 0}, Action{GiveUp, 0, 0},
				Action{Evict, 0, 0}, Action{Cancel, 0, 0}, Action{Edge, 0, 0}),
		}},
		// Six ticks after the last take the bucket is full, and the server has forgotten it.
		{Depth: 7, Scope: &Scope{
			Name: "what comes back after the bucket was full", Bursts: []int64{2}, NoLease: true,
			Prelude: []Action{{Ask, 0, 1}, {Send, 0, 0}, {Execute, 0, 0}, {Deliver, 0, 0}},
			Actions: []Action{
				{Ask, 0, 1},
				{Cancel, 0, 0},
				{Cancel, 0, -1},
				{Send, 0, 0},
				{Execute, 0, 0},
				{Repeat, 0, 0},
				{Deliver, 0, 0},
				{Outsider, 0, 0},
				{Wait, 0, tick},
				{Wait, 0, 6 * tick},
				{Reset, 0, 0},
			},
		}},
	}
	for _, s := range all {
		s.FailMode, s.Tokens, s.Per, s.Timeout = local.FailClosed, 1, 600*time.Millisecond, 600*time.Millisecond
		s.Period = 250 * time.Millisecond
	}
	return all
}
