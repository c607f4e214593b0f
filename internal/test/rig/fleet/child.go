package fleet

import (
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
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// childVariable is the environment variable that makes a test program a child.
const childVariable = "TIERED_FLEET_CHILD"

// Main is TestMain of a package that starts processes: it runs the tests of m, or does a child's
// work.
func Main(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	answers := os.Stdout
	os.Stdout = os.Stderr // whatever else is printed is no answer
	if err := new(child).serve(os.Stdin, answers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// order is what the driver tells a child: one of its fields is set, or none to hear how it is. A
// Report answers each order. The end of all orders is the order to exit.
type order struct {
	Job   *Job             // the first order
	Begin bool             // offer the requests of the job
	Net   *faultnet.Faults // of the network, from now on
	Leave time.Duration    // return the leases within this time and exit
}

// child is a process of its own, with a Group.
type child struct {
	job        *Job
	goroutines int // before the Group was made
	net        *faultnet.Net
	store      *watch.Store
	closeStore func() error
	group      *tiered.Group
	carriers   []*carrier     // of each load
	begun      sync.WaitGroup // who offers requests, and who measures the lag
	lags       []Lag

	mu     sync.Mutex
	log    strings.Builder
	states []State
}

// serve follows orders until the one to leave, or until nobody gives any.
func (c *child) serve(in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	orders, answers := gob.NewDecoder(in), gob.NewEncoder(out)
	for {
		var o order
		err := orders.Decode(&o)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
		case o.Job != nil:
			err = c.start(o.Job)
		case o.Net != nil:
			err = c.net.Set(*o.Net)
		case o.Begin:
			c.begin(ctx)
		}
		if err != nil {
			return err
		}
		report := &Report{}
		if o.Leave > 0 {
			stop()
			if report, err = c.leave(o.Leave); err != nil {
				return err
			}
		} else {
			report.Stats = c.group.Stats()
		}
		if err := answers.Encode(report); err != nil || o.Leave > 0 {
			return err
		}
	}
}

// start makes the Group and its limiters.
func (c *child) start(j *Job) error {
	c.job, c.goroutines = j, runtime.NumGoroutine()
	c.net = faultnet.New(j.Seed)
	store, closes, err := c.openStore(j)
	if err != nil {
		return err
	}
	c.store, c.closeStore = watch.Of(store), closes
	c.group, err = tiered.NewGroup(c.store, &tiered.Options{
		Processes: j.Processes, MaxKeys: j.MaxKeys,
		Logger: slog.New(slog.NewTextHandler(c, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Trace:  &tiered.Trace{State: c.stateChanged},
	})
	if err != nil {
		return err
	}
	for _, load := range j.Loads {
		load.Key = cmp.Or(load.Key, "shared")
		w := &carrier{Load: load, seed: j.Seed}
		if w.limiter, err = c.group.NewLimiter(load.Policy); err != nil {
			return err
		}
		if w.out, err = os.Create(filepath.Join(j.Dir, load.Name)); err != nil {
			return err
		}
		c.carriers = append(c.carriers, w)
	}
	return nil
}

// begin measures the lag and offers the requests of the job, until ctx ends.
func (c *child) begin(ctx context.Context) {
	c.begun.Go(func() {
		const period = time.Millisecond
		for ctx.Err() == nil {
			before := time.Now()
			time.Sleep(period)
			c.lags = append(c.lags, Lag{before.UnixNano(), int64(time.Since(before) - period)})
		}
	})
	for i, w := range c.carriers {
		workers := cmp.Or(w.Workers, 4) // a request that waits holds up a quarter of the others
		for j := range workers {
			random := rand.New(rand.NewPCG(c.job.Seed, uint64(i)<<32+uint64(j)))
			c.begun.Go(func() { w.work(ctx, w.Offer/float64(workers), random) })
		}
	}
}

// stateChanged notes a change of a breaker.
func (c *child) stateChanged(e tiered.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states = append(c.states, State{At: time.Now().UnixNano(), Node: e.Node, To: e.What})
}

// Write keeps a line of what the limiter logs, of the first 64 KiB.
func (c *child) Write(line []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log.Len()+len(line) <= 1<<16 {
		c.log.Write(line)
	}
	return len(line), nil
}

// leave returns the leases, as a deploy would have it, and makes the last report.
func (c *child) leave(patience time.Duration) (*Report, error) {
	c.begun.Wait()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	r := &Report{Lags: c.lags, Keys: c.group.Stats().Keys, Heap: m.HeapAlloc}
	for _, l := range c.lags {
		r.Lag = max(r.Lag, time.Duration(l.Over))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	began := time.Now()
	if err := c.group.Close(ctx); err != nil { // without Redis it fails, as it should
		r.Closing = err.Error()
	}
	r.CloseTime = time.Since(began)
	if err := c.store.Err(); err != nil {
		r.Refused = err.Error()
	}
	r.Stats = c.group.Stats()
	if err := c.closeStore(); err != nil {
		return nil, err
	}
	r.Goroutines = c.leaked()
	c.mu.Lock()
	defer c.mu.Unlock()
	r.States, r.Log = c.states, c.log.String()
	return r, nil
}

// leaked counts the goroutines that are left. Some end a moment later: connections that are being
// closed, and one that was being dialed lives for its timeout of 5 s.
func (c *child) leaked() (n int) {
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n = runtime.NumGoroutine() - c.goroutines; n <= 0 {
			break
		}
	}
	return n
}
