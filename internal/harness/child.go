package harness

import (
	"bufio"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// childVariable is the environment variable that makes a program a child.
const childVariable = "TIERED_HARNESS_CHILD"

// Main is TestMain of a package that starts processes. It runs the tests of m, a *testing.M.
func Main(m interface{ Run() int }) {
	Child()
	redis.SetLogger(Silent{}) // go-redis writes a line for each connection that it cannot make
	os.Exit(m.Run())
}

// Child does a child's work and exits, if this process is one. In any other it returns at once.
func Child() {
	if os.Getenv(childVariable) == "" {
		return
	}
	redis.SetLogger(Silent{})
	c := &child{out: newSender(os.Stdout)}
	os.Stdout = os.Stderr // whatever else is printed is no message
	if err := c.serve(os.Stdin); err != nil {
		_ = c.out.send(&message{Wrong: err.Error()})
	}
	_ = c.out.flush()
	os.Exit(0)
}

// Silent is a logger of go-redis that says nothing.
type Silent struct{}

// Printf says nothing.
func (Silent) Printf(context.Context, string, ...any) {}

// child is a process of its own, with a Group.
type child struct {
	out        *sender
	job        *Job
	goroutines int // before the Group was made
	addr       atomic.Pointer[string]
	net        *faultnet.Net
	store      *observed
	closeStore func() error
	group      *tiered.Group
	carriers   []*carrier // of each load
	requests   sync.WaitGroup
	begun      sync.WaitGroup // who offers requests, and who measures the lag
	lag        LagMeter
	lags       []Lag

	log logged

	mu     sync.Mutex
	states []State
}

// serve follows orders until the one to leave, or until nobody gives any.
func (c *child) serve(in io.Reader) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	orders := gob.NewDecoder(bufio.NewReaderSize(in, 1<<16))
	for {
		var o order
		switch err := orders.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("order: %w", err)
		}
		if o.Job != nil {
			if err := c.start(o.Job); err != nil {
				return err
			}
		}
		if o.Addr != "" {
			c.addr.Store(&o.Addr)
		}
		if o.Net != nil {
			if err := c.net.Set(*o.Net); err != nil {
				return err
			}
		}
		if o.Begin {
			c.begin(ctx)
		}
		answer := &message{ID: o.ID}
		switch {
		case o.Ask != nil:
			c.requests.Go(func() {
				answer.Answer = c.decide(o.Ask)
				_ = c.out.send(answer)
			})
			continue
		case o.Report:
			answer.Report = c.report()
		case o.Leave > 0:
			stop()
			var err error
			if answer.Report, err = c.leave(o.Leave); err != nil {
				return err
			}
		}
		if o.ID > 0 {
			_ = c.out.send(answer)
		}
		if o.Leave > 0 {
			return nil
		}
	}
}

// start makes the Group and its limiters.
func (c *child) start(j *Job) error {
	c.job, c.goroutines = j, runtime.NumGoroutine()
	c.net = faultnet.New(j.Seed)
	if err := c.net.Set(j.Net); err != nil {
		return err
	}
	store, closes, err := c.openStore(j)
	if err != nil {
		return err
	}
	c.store, c.closeStore = &observed{Store: watch.Of(store), child: c}, closes
	c.group, err = tiered.NewGroup(c.store, &tiered.Options{
		Budget: j.Budget, Timeout: j.Timeout, Processes: j.Processes, MaxKeys: j.MaxKeys, MaxInFlight: j.MaxInFlight,
		Logger: slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Trace:  &tiered.Trace{State: c.stateChanged},
	})
	if err != nil {
		return err
	}
	for _, load := range j.Loads {
		if err := load.check(); err != nil {
			return err
		}
		load.Key = cmp.Or(load.Key, "shared")
		w := &carrier{Load: load, seed: j.Seed}
		if w.limiter, err = c.group.NewLimiter(load.Policy); err != nil {
			return err
		}
		if j.Dir != "" {
			if w.out, err = os.Create(filepath.Join(j.Dir, load.Name)); err != nil {
				return err
			}
		}
		c.carriers = append(c.carriers, w)
	}
	return nil
}

// begin measures the lag and offers the requests of the job, until ctx ends. Where requests are not its own, a child that is
// held up for less than 5 ms is not noticed, and a hundred children can be measured at once.
func (c *child) begin(ctx context.Context) {
	if c.job.Dir == "" {
		c.begun.Go(func() { c.lag.Measure(ctx, 0) })
		return
	}
	c.begun.Go(func() { c.lags = c.lag.Measure(ctx, time.Millisecond) })
	for i, w := range c.carriers {
		workers := w.Workers
		if workers == 0 {
			workers = 4 // a request that waits holds up a quarter of the others
		}
		for j := range workers {
			random := rand.New(rand.NewPCG(c.job.Seed, uint64(i)<<32+uint64(j)))
			c.begun.Go(func() { w.work(ctx, w.Offer/float64(workers), random) })
		}
	}
}

// decide answers a question, with the time that it took here.
func (c *child) decide(q *Question) *Answer {
	ctx := context.Background()
	if q.Leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.Leave)
		defer cancel()
	}
	came := time.Now()
	d := c.carriers[q.Load].limiter.AllowN(ctx, q.Key, q.Cost)
	return &Answer{
		Came: came.UnixNano(), Took: time.Since(came), Allowed: d.Allowed, Reason: d.Reason, Tier: d.Tier, RetryAfter: d.RetryAfter,
	}
}

// stateChanged notes a change of a breaker.
func (c *child) stateChanged(e tiered.StateEvent) {
	s := State{At: time.Now().UnixNano(), Node: e.Node, To: e.To}
	c.mu.Lock()
	c.states = append(c.states, s)
	c.mu.Unlock()
	if c.job.Verbose {
		c.tell(&Event{At: s.At, State: &s})
	}
}

func (c *child) tell(e *Event) { _ = c.out.send(&message{Event: e}) }

// report is how the child is now.
func (c *child) report() *Report {
	return &Report{Stats: c.group.Stats(), Busy: c.store.calls.Load() > 0, Lag: c.lag.Longest()}
}

// leave returns the leases, as a deploy would have it, and makes the last report.
func (c *child) leave(patience time.Duration) (*Report, error) {
	c.begun.Wait()
	var m runtime.MemStats
	if c.job.Dir != "" {
		runtime.GC()
		runtime.ReadMemStats(&m)
	}
	keys := c.group.Stats().Keys
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	closing := c.group.Close(ctx) // without Redis it fails, as it should
	c.requests.Wait()
	r := c.report()
	c.mu.Lock()
	r.States = c.states
	c.mu.Unlock()
	r.Lags, r.Keys, r.Heap, r.Log = c.lags, keys, m.HeapAlloc, c.log.String()
	if closing != nil {
		r.Closing = closing.Error()
	}
	if err := c.store.Err(); err != nil {
		r.Refused = err.Error()
	}
	if c.job.Dir != "" {
		if err := c.closeStore(); err != nil {
			return nil, err
		}
		r.Goroutines = c.leaked()
	}
	return r, nil
}

// leaked counts the goroutines that are left. Some end a moment later: connections that are being closed, and one that was
// being dialed lives for its timeout of 5 s.
func (c *child) leaked() (n int) {
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n = runtime.NumGoroutine() - c.goroutines; n <= 0 {
			break
		}
	}
	return n
}

// observed is a store that counts refusals, and tells what was called.
type observed struct {
	*watch.Store
	child *child
	calls atomic.Int64 // round trips under way
}

// Run executes calls; see [remote.Store].
func (s *observed) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if !s.child.job.Verbose {
		s.Store.Run(ctx, timeout, calls, results)
		return
	}
	s.calls.Add(1)
	defer s.calls.Add(-1)
	s.child.tell(&Event{At: time.Now().UnixNano(), Calls: len(calls)})
	s.Store.Run(ctx, timeout, calls, results)
	for i := range calls {
		if watch.Short(&calls[i], &results[i]) {
			s.child.tell(&Event{Happened: "short_grant"})
		}
		if err := results[i].Err; watch.Refused(err) {
			s.child.tell(&Event{Refused: err.Error()})
		}
	}
}

// scripts is a hook of go-redis that tells when a script is sent as a text.
type scripts struct{ child *child }

func (h scripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.look(cmd)
		return next(ctx, cmd)
	}
}

func (h scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.look(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h scripts) look(cmd redis.Cmder) {
	if cmd.Name() == "eval" {
		h.child.tell(&Event{Happened: "script_sent"})
	}
}

// logged keeps the first 64 KiB of what the limiter logs.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write keeps a line.
func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len()+len(line) <= 1<<16 {
		l.text.Write(line)
	}
	return len(line), nil
}

// String returns what was kept.
func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
