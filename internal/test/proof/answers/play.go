package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Fault is a wrong answer. Check is Go code that fails where it is, and uses what Sequence.Code declares.
type Fault struct {
	Judge, Text, Check string
	step               int            // in which it was found
	returns            map[int]string // by step: what Back did after it was refused, as Go
}

// player plays a sequence.
type player struct {
	Sequence
	judges  func(string) bool
	store   *store
	base    time.Time
	slots   []*process
	held    []*reservation
	left    []*tiered.Group // closed, perhaps not in time
	waiters sync.WaitGroup
	down    bool
	rough   [2]time.Time // by policy: until then something was changed or down
	outage  time.Time    // until then something was down
	slowed  time.Time    // until then a process may go by what a slow store said

	wentDown, cameBack time.Time
	waiting            map[string]int // callers in the background, by policy and key

	mu    sync.Mutex
	ended []func() // notes what those got that do not wait any more

	fault   *Fault
	at      int // the present step
	returns map[int]string
}

// process is one process of the service.
type process struct {
	*player
	slot     int
	group    *tiered.Group
	limiters []*tiered.Limiter
	counts   []*counts
	opened   time.Time
	touched  map[string]time.Time // when it last did something with a key
	carried  map[string]bool      // keys of which a request carried a limit
	gave     map[string]time.Time // when it last gave something back
	closed   bool
}

type reservation struct {
	tiered.Reservation
	by    *process
	which []int // policies
	keys  []string
	costs []int64
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

// Play plays a sequence in a bubble, and returns the first fault that one of the judges finds, nil if there is none.
func (s Sequence) Play(judges func(judge string) bool) *Fault {
	for _, p := range s.Policies {
		if p.Validate() != nil {
			return nil
		}
	}
	s.Rules = slices.Clone(s.Rules) // they change
	for i := range s.Rules {
		s.Rules[i] = maps.Clone(s.Rules[i])
	}
	w := &player{Sequence: s, judges: judges, store: &store{Memory: remote.NewMemory()}, base: time.Now(), waiting: make(map[string]int), returns: make(map[int]string)}
	for i := range s.Processes {
		w.slots = append(w.slots, nil)
		w.open(i)
	}
	w.sleep(70 * second) // until all know each other, and share
	for i := range s.Steps {
		w.at = i
		w.do(s.Steps[i])
		if w.fault != nil {
			break
		}
	}
	w.at = len(s.Steps)
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

func (w *player) sleep(d time.Duration) {
	time.Sleep(d)
	w.quiesce()
}

// quiesce waits until nothing happens any more at this instant, and notes what callers in the background got.
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
	p := &process{player: w, slot: slot, opened: time.Now(), touched: make(map[string]time.Time), carried: make(map[string]bool), gave: make(map[string]time.Time)}
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

// blame records a fault, unless there is one already or nobody judges that.
func (w *player) blame(judge, check, format string, args ...any) {
	if w.fault == nil && w.judges(judge) {
		w.fault = &Fault{judge, fmt.Sprintf(format, args...), check, w.at, w.returns}
	}
}

// timed blames a call that takes longer than most.
func (w *player) timed(most time.Duration, call func()) {
	begin := time.Now()
	call()
	w.late(time.Since(begin), most)
}

func (w *player) late(d, most time.Duration) {
	if d > most {
		w.blame("late", fmt.Sprintf("t.Errorf(\"it took %v\")", d), "step %d took %v, at most %v are allowed", w.at, d, most)
	}
}

func name(which int, key string) string { return fmt.Sprint(which, key) }

// changes says that a policy is not the same everywhere for a while.
func (w *player) changes(which int) { w.rough[which] = time.Now().Add(25 * second) }

func (w *player) well() {
	if w.down || w.store.hangs.Load() {
		w.down, w.cameBack = false, time.Now()
		w.store.Fail(nil)
		w.store.hangs.Store(false)
		w.outage = time.Now().Add(25 * second)
		for i := range w.rough {
			w.changes(i)
		}
		w.sleep(15 * second)
	}
}

// isDown reports whether the store may not answer.
func (w *player) isDown() bool { return w.down || w.store.hangs.Load() }

// decision judges a Decision of one key by itself, and counts it.
func (p *process) decision(d *tiered.Decision, which int, n int64) {
	p.judge(d)
	p.counts[which].count(d, n)
}

// do plays a step.
func (w *player) do(x Step) {
	w.sleep(x.After)
	p, which, key := w.slots[x.Who%w.Processes], x.Which%len(w.Policies), keys[x.Key]
	l, ctx := p.limiters[which], context.Background()
	p.touched[name(which, key)] = time.Now()
	var d tiered.Decision
	for i := 0; x.Empty && i < 100 && p.ask(which, key, x.N).Allowed; i++ {
		w.sleep(ms) // so that there is a demand, and leases
	}
	if x.Empty {
		w.sleep(time.Duration(x.Pick) * 25 * ms)
	}
	switch x.Verb {
	case Ask:
		p.ask(which, key, x.N)
	case Hurry:
		ctx, cancel := context.WithTimeout(ctx, x.Pause)
		defer cancel()
		w.timed(min(w.Budget, x.Pause), func() { d = l.AllowN(ctx, key, x.N) })
		p.decision(&d, which, x.N)
	case Again:
		for range x.N {
			p.ask(which, key, 1)
		}
	case Back:
		p.back(x, which, key)
	case Climb:
		one := x
		one.N = 1
		p.back(one, which, key)
		p.ask(which, key, 1)
		p.back(x, which, key)
	case Crowd:
		p.crowd(x, which, key)
	case Scout:
		p.scout(which, key, x.N)
	case Look:
		p.look(which, key, x.N)
	case Each:
		p.each(which, key)
	case Known:
		d = l.PeekN(ctx, key, 0)
		p.judge(&d)
	case Reserve:
		var r tiered.Reservation
		w.timed(w.Budget, func() { r = l.ReserveN(ctx, key, x.N) })
		p.decision(&r.Decision, which, x.N)
		w.held = append(w.held, &reservation{Reservation: r, by: p, which: []int{which}, keys: []string{key}, costs: []int64{x.N}})
	case Settle, Cancel:
		w.settle(x)
	case AtMost:
		w.timed(4*w.Budget, func() {
			granted, d := l.AllowAtMost(ctx, key, x.N)
			c := p.counts[which]
			if p.judge(&d); granted > 0 {
				c.admitted(granted, d.Burst == math.MaxInt64, d.Reason != tiered.Granted)
			}
			c.parts = true
		})
	case Together:
		p.together(key, x)
	case Apart:
		uses, each := make([]tiered.Use, 0, 3), make([]tiered.Decision, 3)
		for _, l := range p.limiters {
			uses = append(uses, l.For(key).N(x.N))
		}
		uses = append(uses, l.For(key).N(1))
		w.timed(w.Budget, func() { tiered.All(uses...).AllowSeparately(ctx, each) })
		for i := range p.limiters {
			p.decision(&each[i], i, x.N)
		}
		p.decision(&each[len(p.limiters)], which, 1)
	case Carry:
		p.askBy(x, which, key, x.N)
	case Do:
		p.doFunc(which, key, x.Pick%2 == 1)
	case Wait:
		p.wait(x, which, key)()
	case Behind:
		w.waiting[name(which, key)]++
		w.waiters.Go(func() {
			note := p.wait(x, which, key)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, func() { w.waiting[name(which, key)]--; note() })
		})
	case WaitAll:
		ctx, cancel := context.WithTimeout(ctx, x.Pause)
		defer cancel()
		var uses []tiered.Use
		for i, l := range p.limiters {
			uses = append(uses, l.For(key).N(x.N))
			p.touched[name(i, key)], p.gave[name(i, key)] = time.Now(), time.Now()
			c := p.counts[i]
			c.unsure, c.quiet, c.Waiting.Longest = true, true, max(c.Waiting.Longest, x.Pause)
			c.Waiting.GaveUp, c.Waiting.Admitted = c.Waiting.GaveUp+1, c.Waiting.Admitted+1 // one of both, of one policy
		}
		w.timed(x.Pause, func() { _ = tiered.All(uses...).Wait(ctx) })
	case Charge:
		before := l.PeekN(ctx, key, 0)
		w.timed(0, func() {
			if err := l.For(key).N(x.N).Charge(); err != nil {
				w.blame("stats", fmt.Sprintf("t.Errorf(%q)", err), "Charge: %v", err)
			}
		})
		p.charged(before, which, key, x.N)
		if !w.unlimited(which, key) {
			p.counts[which].Leases.Spent += x.N
		}
	case Refund:
		p.gave[name(which, key)] = time.Now()
		w.timed(2*w.Budget, func() { _ = l.Refund(ctx, key, x.N) })
	case Reset:
		p.gave[name(which, key)] = time.Now()
		w.timed(2*w.Budget, func() { _ = l.Reset(ctx, key) })
	case Change:
		w.changes(which)
		for _, q := range w.slots {
			if y := q.limiters[which].Policy(); q == p || x.Pick%2 == 0 {
				y.Limit = x.Limit
				_ = q.limiters[which].SetPolicy(y)
			}
		}
	case Rule:
		w.changes(which)
		if r := w.Rules[which]; r != nil {
			r[key] = x.Limit
			for _, q := range w.slots {
				q.limiters[which].Refresh(key)
				q.counts[which].unsure = true // how what was reserved is settled
			}
		}
	case Others:
		for i := range x.N {
			p.ask(which, fmt.Sprint("other", i), 1)
		}
	case Figures:
		p.figures()
	case Restart:
		for i, l := range p.limiters {
			if l.Policy().Limit != w.Policies[i].Limit { // it opens with that of before
				w.changes(i)
			}
		}
		p.close()
		w.open(p.slot)
	case Down:
		w.down, w.wentDown = true, time.Now()
		w.store.Fail(errDown)
	case Hang:
		w.wentDown = time.Now()
		w.store.hangs.Store(true)
	case Well:
		w.well()
	}
	w.quiesce()
}

// unlimited reports whether no limit decides a key.
func (w *player) unlimited(which int, key string) bool {
	l := w.Rules[which][key]
	return l == tiered.Unlimited() || l == tiered.Blocked()
}

// ask asks for n tokens.
func (p *process) ask(which int, key string, n int64) (d tiered.Decision) {
	p.touched[name(which, key)] = time.Now()
	if p.carried[name(which, key)] { // it goes by the policy again
		p.changes(which)
	}
	p.timed(p.Budget, func() { d = p.limiters[which].AllowN(context.Background(), key, n) })
	p.touched[name(which, key)] = time.Now()
	p.decision(&d, which, n)
	return d
}

// askBy asks for n tokens by the limit of a step.
func (p *process) askBy(x Step, which int, key string, n int64) (d tiered.Decision) {
	if x.By == byKey {
		return p.ask(which, key, n)
	}
	p.changes(which)
	p.touched[name(which, key)], p.carried[name(which, key)] = time.Now(), true
	use := p.limiters[which].For(key).N(n)
	if use = use.WithLimit(x.Limit); x.By == byPlan {
		use = p.limiters[which].For(key).N(n).WithPlan(plan)
	}
	p.timed(p.Budget, func() { d = use.Allow(context.Background()) })
	p.touched[name(which, key)] = time.Now()
	p.decision(&d, which, n)
	return d
}

func (w *player) settle(x Step) {
	i := len(w.held) - 1 - x.Pick%max(len(w.held), 1)
	if i < 0 {
		return
	}
	r := w.held[i]
	for j, which := range r.which {
		r.by.gave[name(which, r.keys[j])] = time.Now()
		r.by.touched[name(which, r.keys[j])] = time.Now()
		if n := x.N - r.costs[j]; x.Verb == Settle && j == 0 && n > 0 && !r.ended && r.Allowed && r.Reason != tiered.Shadowed && !w.unlimited(which, r.keys[j]) {
			r.by.counts[which].Leases.Spent += n
		}
	}
	r.ended = true
	w.timed(0, func() {
		if x.Verb == Cancel {
			r.Cancel()
		} else {
			r.Settle(x.N)
		}
	})
}

// together asks for a key of all policies at once.
func (p *process) together(key string, x Step) {
	uses, each := make([]tiered.Use, 0, 2), make([]tiered.Decision, 2)
	for i, l := range p.limiters {
		uses = append(uses, l.For(key).N(x.N))
		p.touched[name(i, key)], p.gave[name(i, key)] = time.Now(), time.Now()
	}
	var d tiered.Decision
	p.timed(p.Budget, func() { d = tiered.All(uses...).AllowEach(context.Background(), each) })
	p.judge(&d)
	for i := range uses {
		p.judge(&each[i])
		if d.Allowed || !each[i].Allowed && each[i].Reason != tiered.Unknown || each[i].Reason == tiered.Shadowed {
			p.counts[i].count(&each[i], x.N)
		} else if each[i].Reason == tiered.Fallback { // these tokens stay counted
			p.counts[i].Tokens.Fallback += x.N
		} else if each[i].Reason == tiered.Open {
			p.counts[i].Tokens.Open += x.N
		}
	}
}

func (p *process) doFunc(which int, key string, fails bool) {
	l := p.limiters[which]
	p.timed(p.Budget, func() {
		r := l.Reserve(context.Background(), key)
		err := r.Err()
		if r.Allowed && fails {
			r.Cancel()
		}
		var refused *tiered.LimitedError
		if errors.As(err, &refused) {
			p.decision(&refused.Decision, which, 1)
		} else {
			p.counts[which].admitted(1, p.unlimited(which, key), p.Policies[which].Shadow || p.isDown())
		}
	})
	p.gave[name(which, key)] = time.Now()
}

// wait waits for tokens. It returns what is to be noted then: callers in the background write nothing themselves.
func (p *process) wait(x Step, which int, key string) func() {
	ctx, cancel := context.WithTimeout(context.Background(), x.Pause)
	defer cancel()
	begin := time.Now()
	err := p.limiters[which].WaitN(ctx, key, x.N)
	end := time.Now()
	return func() {
		p.late(end.Sub(begin), x.Pause)
		p.touched[name(which, key)] = end
		unsure := p.isDown() || !begin.After(p.wentDown) && p.wentDown.Before(end) || !begin.After(p.cameBack) || p.Policies[which].Shadow
		p.counts[which].waited(err, x.N, end.Sub(begin), p.unlimited(which, key), unsure)
	}
}

// close closes a process, in time.
func (p *process) close() {
	patience := 10 * second
	if p.isDown() {
		patience = second
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
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
