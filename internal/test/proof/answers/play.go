package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Fault is a wrong answer. Code is a test of package tiered_test that shows it.
type Fault struct{ Judge, Text, Code string }

// player plays a sequence.
type player struct {
	Sequence
	judges  func(string) bool
	code    *Transcript
	store   *store
	slots   []*process
	held    []*reservation
	left    []*tiered.Group // closed, perhaps not in time
	waiters sync.WaitGroup
	down    bool
	rough   [2]time.Time // by policy: until then something was changed or down
	outage  time.Time    // until then something was down
	slowed  time.Time    // until then a process may go by what a slow store said

	wentDown, cameBack time.Time
	waiting            map[place]int // callers in the background

	mu    sync.Mutex
	ended []func() // notes what those got that do not wait any more

	fault *Fault
}

// place is a key of a policy.
type place struct {
	which int
	key   string
}

// process is one process of the service.
type process struct {
	*player
	slot     int
	group    *tiered.Group
	limiters []*tiered.Limiter
	counts   []*counts
	opened   time.Time
	places   map[place]*known
	closed   bool
}

// known is what a process did with a key.
type known struct {
	touched time.Time // last
	gave    time.Time // something back, last
	carried bool      // a request carried a limit
}

// at returns what the process did with a key.
func (p *process) at(a place) *known {
	if p.places[a] == nil {
		p.places[a] = new(known)
	}
	return p.places[a]
}

type reservation struct {
	tiered.Reservation
	by    *process
	at    place
	cost  int64
	ended bool
}

// store is a store that may not answer.
type store struct {
	*remote.Memory
	hangs atomic.Bool
	slow  atomic.Bool // it answers after slowness
}

// slowness is what a call takes while a crowd asks: who comes meanwhile waits for the next one.
const slowness = 100 * time.Microsecond

var errDown = errors.New("connection refused")

func (s *store) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if s.hangs.Load() {
		time.Sleep(timeout)
		for i := range calls {
			results[i] = remote.Result{Err: context.DeadlineExceeded}
		}
		return
	}
	if s.slow.Load() {
		time.Sleep(slowness)
	}
	s.Memory.Run(ctx, timeout, calls, results)
}

func (s *store) Presence(ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process) (remote.Census, error) {
	if s.hangs.Load() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		<-ctx.Done()
		return remote.Census{}, ctx.Err()
	}
	return s.Memory.Presence(ctx, timeout, n, p)
}

// Play plays a sequence in a bubble, and returns the first fault that one of the judges finds, nil
// if there is none. It writes down what it does as it does it.
func (s Sequence) Play(judges func(judge string) bool, code *Transcript) *Fault {
	if s.Processes == 0 || len(s.Policies) == 0 || len(s.Rules) != len(s.Policies) {
		return nil
	}
	for _, p := range s.Policies {
		if p.Validate() != nil {
			return nil
		}
	}
	code.begin(&s)
	s.Rules = slices.Clone(s.Rules) // they change
	for i := range s.Rules {
		s.Rules[i] = maps.Clone(s.Rules[i])
	}
	w := &player{
		Sequence: s, judges: judges, code: code, store: &store{Memory: remote.NewMemory()}, slots: make([]*process, s.Processes),
		waiting: make(map[place]int),
	}
	for i := range s.Processes {
		w.open(i)
	}
	w.sleep(70 * second) // until all know each other, and share
	for i := range s.Steps {
		if w.do(&s.Steps[i]); w.fault != nil {
			break
		}
	}
	w.well()
	w.waiters.Wait()
	w.quiesce()
	for _, p := range w.slots {
		p.figures()
		p.close()
	}
	for _, g := range w.left { // their goroutines end, also if a Close came in an outage
		begin := time.Now()
		_ = g.Close(context.Background())
		if d := time.Since(begin); d > second {
			w.blame("close", fmt.Sprintf("t.Error(\"%v\")", d), "a second Close took %v", d)
		}
	}
	return w.fault
}

// do plays a step.
func (w *player) do(x *Step) {
	w.sleep(x.After)
	p, a := w.slots[x.Who%w.Processes], place{x.Which % len(w.Policies), keys[x.Key]}
	p.at(a).touched = time.Now()
	for i := 0; x.Empty && i < 100 && p.ask(a, x.N).Allowed; i++ {
		w.sleep(ms) // so that there is a demand, and leases
	}
	if x.Empty {
		w.sleep(time.Duration(x.Pick) * 25 * ms)
	}
	verbs[x.Verb](p, x, a)
	w.quiesce()
}

func (w *player) sleep(d time.Duration) {
	if d > 0 {
		w.code.add("sleep(%s)", proof.Code(d))
	}
	time.Sleep(d)
	w.quiesce()
}

// quiesce waits until nothing happens any more at this instant, and notes what callers in the
// background got.
func (w *player) quiesce() {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, note := range w.ended {
		note()
	}
	w.ended = nil
}

func (w *player) open(slot int) {
	p := &process{player: w, slot: slot, opened: time.Now(), places: make(map[place]*known)}
	o := &tiered.Options{
		Budget: w.Budget, MaxKeys: w.MaxKeys, Processes: w.Fleet, Logger: slog.New(slog.DiscardHandler),
		Random: func() float64 { return w.Random },
	}
	if w.Traced {
		o.Trace = &tiered.Trace{Decision: func(tiered.Decision) {}}
	}
	var err error
	if p.group, err = tiered.NewGroup(w.store, o); err != nil {
		panic(err)
	}
	for i, x := range w.Policies {
		if r := w.Rules[i]; r != nil {
			x.PerKey = func(key string) tiered.Limit { return r[key] }
		}
		l, err := p.group.NewLimiter(x)
		if err != nil {
			panic(err)
		}
		p.limiters, p.counts = append(p.limiters, l), append(p.counts, new(counts))
	}
	w.slots[slot] = p
}

// blame records a fault, unless there is one already or nobody judges that. check is Go code that
// fails where it is.
func (w *player) blame(judge, check, format string, args ...any) {
	if w.fault == nil && w.judges(judge) {
		w.code.add("%s", check)
		w.fault = &Fault{judge, fmt.Sprintf(format, args...), w.code.Test()}
	}
}

// call makes a call, and blames one that takes longer than most. text is the call as Go.
func (w *player) call(most time.Duration, text string, call func()) {
	w.code.add("%s", text)
	begin := time.Now()
	call()
	w.late(time.Since(begin), most)
}

func (w *player) late(d, most time.Duration) {
	if d > most {
		w.blame("late", fmt.Sprintf("t.Errorf(\"it took %v\")", d), "it took %v, at most %v are allowed", d, most)
	}
}

// changes says that a policy is not the same everywhere for a while.
func (w *player) changes(which int) { w.rough[which] = time.Now().Add(25 * second) }

// well has the store answer again, if it does not.
func (w *player) well() {
	if !w.isDown() {
		return
	}
	w.down, w.cameBack = false, time.Now()
	w.code.add("store.Fail(nil)\nstore.now.Store(false)")
	w.store.Fail(nil)
	w.store.hangs.Store(false)
	w.outage = time.Now().Add(25 * second)
	for i := range w.rough {
		w.changes(i)
	}
	w.sleep(15 * second)
}

// isDown reports whether the store may not answer.
func (w *player) isDown() bool { return w.down || w.store.hangs.Load() }

// close closes a process, in time.
func (p *process) close() {
	patience := 10 * second
	if p.isDown() {
		patience = second
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	p.code.add("_ = p[%d][0].Group().Close(ctx)", p.slot)
	err := p.group.Close(ctx)
	p.closed = true
	took := time.Since(begin)
	switch {
	case took > patience:
		p.blame("close", fmt.Sprintf("t.Error(\"%v\")", took), "Close took %v of %v", took, patience)
	case err != nil && !p.isDown(), err == nil && took > second:
		p.blame("close", fmt.Sprintf("t.Error(%q)", err), "Close took %v: %v", took, err)
	}
	p.left = append(p.left, p.group)
}
