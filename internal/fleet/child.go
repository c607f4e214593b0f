package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/watch"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// jobVariable is the environment variable that makes a test binary a process of a fleet.
const jobVariable = "TIERED_FLEET_JOB"

const reportFile = "report.json"

// Main is TestMain of a package that starts fleets: it runs the tests, or the job that this process was started for.
func Main(m *testing.M) {
	redis.SetLogger(Silent{}) // go-redis writes a line for each connection that it cannot make
	job := os.Getenv(jobVariable)
	if job == "" {
		os.Exit(m.Run())
	}
	if err := run(job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Silent is a logger of go-redis that says nothing.
type Silent struct{}

// Printf says nothing.
func (Silent) Printf(context.Context, string, ...any) {}

// order is a line on a process' standard input. Its end is the order to stop.
type order struct {
	Begin bool             // offer requests
	Net   *faultnet.Faults // have the network be like that
}

// run does the job: it offers its requests from the order to begin until the end of its input, then gives its leases back.
func run(text string) error {
	var job Job
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	goroutines := runtime.NumGoroutine()
	net := faultnet.New(job.Seed)
	store, closes, err := job.open(net)
	if err != nil {
		return err
	}
	var report Report
	watched := watch.Of(store)
	group, err := tiered.NewGroup(watched, &tiered.Options{
		Processes: job.Processes, MaxKeys: job.MaxKeys, Logger: slog.New(slog.DiscardHandler),
		Trace: &tiered.Trace{State: func(e tiered.StateEvent) {
			report.States = append(report.States, State{time.Now().UnixNano(), e.Node, e.To})
		}},
	})
	if err != nil {
		return err
	}
	var carriers []*carrier
	for _, load := range job.Loads {
		c, err := job.carrier(group, load)
		if err != nil {
			return err
		}
		carriers = append(carriers, c)
	}
	fmt.Println("ready")

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		if o.Net != nil {
			if err := net.Set(*o.Net); err != nil {
				return err
			}
		}
		if o.Begin {
			all.Go(func() { report.Lags = measureLag(ctx) })
			for i, c := range carriers {
				for j := range c.Workers {
					random := rand.New(rand.NewPCG(job.Seed, uint64(i)<<32+uint64(j)))
					all.Go(func() { c.work(ctx, c.Offer/float64(c.Workers), random) })
				}
			}
		}
	}
	stop()
	all.Wait()
	return job.finish(group, watched, closes, &report, goroutines)
}

// carrier prepares to carry a load.
func (j *Job) carrier(g *tiered.Group, load Load) (*carrier, error) {
	if err := load.check(); err != nil {
		return nil, err
	}
	if load.Workers == 0 {
		load.Workers = 4 // a request that waits holds up a quarter of the others
	}
	if load.Key == "" {
		load.Key = "shared"
	}
	l, err := g.Limiter(tiered.Policy{
		Name: load.Policy, Limit: load.Limit, Lease: tiered.Lease{Size: load.Size}, FailMode: load.FailMode,
		Algorithm: load.Algorithm, Also: load.Also, Calendar: load.Calendar, Shards: load.Shards,
	})
	if err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(j.Dir, load.Policy))
	return &carrier{Load: load, seed: j.Seed, limiter: l, out: out}, err
}

// finish closes the Group and writes the report.
func (j *Job) finish(g *tiered.Group, w *watch.Store, closes func() error, r *Report, goroutines int) error {
	r.Stats = g.Stats()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	r.Heap = m.HeapAlloc
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := g.Close(ctx); err != nil {
		r.Closing = err.Error()
	}
	if err := w.Err(); err != nil {
		r.Refused = err.Error()
	}
	if err := closes(); err != nil {
		return err
	}
	// Some end a moment later: connections that are being closed, and one that was being dialed lives for its timeout of 5 s.
	for patience := time.Now().Add(6 * time.Second); time.Now().Before(patience); time.Sleep(10 * time.Millisecond) {
		if r.Goroutines = runtime.NumGoroutine() - goroutines; r.Goroutines <= 0 {
			break
		}
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(j.Dir, reportFile), encoded, 0o600)
}
