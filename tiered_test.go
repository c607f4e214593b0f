// Package tiered_test holds the acceptance tests: what the project promises, checked through its
// public API on real redis-server processes.
package tiered_test

import (
	"context"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// fleetTest is processes that share limits, each under three times its load, on one Redis or on a
// Cluster.
type fleetTest struct {
	name      string
	processes int
	cluster   bool
	parts     int // of the key, of which each process uses one
	loads     []fleetLoad
}

// fleetLoad is a load and the least of it that must be admitted: of what an ideal bucket admits, or
// of what a window may hold.
type fleetLoad struct {
	fleet.Load
	least float64
}

const window = 2 * time.Second

func perWindow(n int64) tiered.Limit { return tiered.Limit{Tokens: n, Per: window} }

var fleetTests = []fleetTest{
	{name: "2000 per second", processes: 8, loads: []fleetLoad{
		{fleet.Load{Policy: tiered.Policy{Name: "api", Limit: tiered.PerSecond(2000).WithBurst(500)}}, 0.97},
	}},
	{name: "10 per second", processes: 8, loads: []fleetLoad{
		{fleet.Load{Policy: tiered.Policy{Name: "api", Limit: tiered.PerSecond(10).WithBurst(10)}}, 0.95},
	}},
	// Large leases, and time to fill them and the bucket: a refill that forgot the escrow shows
	// here, in the audit. What lies in Redis for a hold-off when a surge ends overflows before the
	// next one: that part of the limit is missing.
	{name: "surges", processes: 3, loads: []fleetLoad{
		{fleet.Load{Policy: tiered.Policy{Name: "api", Limit: tiered.PerSecond(2000).WithBurst(500), Lease: tiered.Lease{Size: 125}}, Surges: true}, 0.8},
	}},
	{name: "each algorithm", processes: 8, loads: []fleetLoad{
		{fleet.Load{Policy: tiered.Policy{Name: "fixed", Algorithm: tiered.FixedWindow, Calendar: true, Limit: perWindow(400)}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "fixed-direct", Algorithm: tiered.FixedWindow, Calendar: true, Limit: perWindow(100), Lease: tiered.Lease{Size: tiered.NoLease}}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "sliding", Algorithm: tiered.SlidingWindow, Limit: perWindow(400)}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "sliding-direct", Algorithm: tiered.SlidingWindow, Limit: perWindow(100), Lease: tiered.Lease{Size: tiered.NoLease}}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "buckets", Limit: perWindow(200).WithBurst(50).And(tiered.PerSecond(150).WithBurst(150))}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "log", Algorithm: tiered.SlidingLog, Limit: perWindow(50)}}, 0.6},
	}},
	// A hot key in four parts, each with a quarter of the limit. All parts together keep the whole
	// limit.
	{name: "parts on a Cluster", processes: 8, parts: 4, cluster: true, loads: []fleetLoad{
		{fleet.Load{Policy: tiered.Policy{Name: "leased", Limit: tiered.PerSecond(1000).WithBurst(400)}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "direct", Limit: tiered.PerSecond(200).WithBurst(40), Lease: tiered.Lease{Size: tiered.NoLease}}}, 0.6},
		{fleet.Load{Policy: tiered.Policy{Name: "sliding", Algorithm: tiered.SlidingWindow, Limit: perWindow(400)}}, 0.5},
	}},
}

// partOf is the helper of docs/choosing.md: the part of a hot key that a process uses.
func partOf(key, process string, k uint64) string {
	h := fnv.New64a()
	h.Write([]byte(process + "/" + key))
	return key + "#" + strconv.FormatUint(h.Sum64()%k, 10)
}

// TestExactAcrossProcesses is the promise: processes share limits under three times their load, one
// is killed, one stopped, and two start on the way. No interval admits more than a limit allows,
// and most of it is used.
func TestExactAcrossProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	for _, c := range fleetTests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they sleep most of the time
			c.run(t)
		})
	}
}

func (c *fleetTest) run(t *testing.T) {
	var job fleet.Job
	var nodes []*redis.Client
	if c.cluster {
		cluster := redistest.StartCluster(t, 3)
		job.URL = "cluster://" + cluster.Servers[0].Addr
		nodes = []*redis.Client{cluster.Client(0), cluster.Client(1), cluster.Client(2)}
	} else {
		server := redistest.Start(t)
		job.URL, nodes = server.URL(), []*redis.Client{server.Client()}
	}
	for _, l := range c.loads {
		l.FailMode = tiered.FailClosed
		l.Offer = 3 * float64(l.Limit.Tokens) / l.Limit.Per.Seconds() / float64(c.processes)
		if c.parts > 0 {
			l.Limit.Tokens, l.Limit.Burst = l.Limit.Tokens/int64(c.parts), l.Limit.Burst/int64(c.parts)
		}
		job.Loads = append(job.Loads, l.Load)
	}
	var all fleet.Fleet
	start := func() *fleet.Process {
		job.Seed = uint64(len(all))
		for i := range job.Loads {
			if c.parts > 0 {
				job.Loads[i].Key = partOf("shared", "web-"+strconv.Itoa(len(all)), uint64(c.parts))
			}
		}
		all = append(all, fleet.Start(t, job))
		return all[len(all)-1]
	}
	for range c.processes {
		start()
	}
	var audit *fleet.Audit
	if c.loads[0].Name == "api" {
		audit = fleet.StartAudit(t, nodes[0], job.Loads)
	}
	for _, p := range all {
		p.Begin()
	}
	time.Sleep(3 * time.Second) // real processes and real time
	all[0].Kill()
	time.Sleep(time.Second)
	start().Begin()
	time.Sleep(time.Second)
	all[1].Stop()
	start().Begin()
	time.Sleep(4 * time.Second)
	late := time.Duration(0)
	for _, r := range all.Stop() {
		late = max(late, r.Lag)
	}
	if audit != nil {
		if looks, losses := audit.Stop(); looks < 100 || losses["api"] > 0 {
			t.Errorf("the bucket was seen %d times, and was lost %d times", looks, losses["api"])
		}
	}
	for _, l := range c.loads {
		if late > 50*time.Millisecond {
			t.Logf("the processes were up to %v late: how much is used is not judged", late)
			l.least = 0
		}
		requests := all.Records(l.Name)
		if l.Algorithm == tiered.TokenBucket {
			l.judgeBuckets(t, requests)
		} else {
			l.judgeWindow(t, requests)
		}
	}
}

// judgeBuckets holds the requests of a load against each of its limits.
func (l *fleetLoad) judgeBuckets(t *testing.T, requests []fleet.Record) {
	used := 0.0 // of the limit that is used most
	for _, limit := range l.Limit.Each() {
		v := fleet.Judge(requests, limit)
		t.Logf("%s, %d per %v: %d requests in %.1f s: %d admitted, an ideal bucket %d (%.2f %%); over-admission %.0f; tightest interval: %v",
			l.Name, limit.Tokens, limit.Per, len(requests), v.Length.Seconds(), v.Admitted, v.Ideal, 100*v.Utilisation(),
			max(0, math.Ceil(v.Over())), v.Worst)
		if v.Over() > 0 {
			t.Errorf("%s: over-admission: %v", l.Name, v.Worst)
		}
		used = max(used, v.Utilisation())
		if limit == l.Limit.Each()[0] && v.Offered < 2.5 { // a busy machine starts the next process late
			t.Logf("%s: only %.2f times the limit was offered: how much is used is not judged", l.Name, v.Offered)
			l.least = 0
		}
	}
	if used < l.least {
		t.Errorf("%s: admitted %.2f %% of the ideal, want %.0f %% at least", l.Name, 100*used, 100*l.least)
	}
}

// judgeWindow holds them against the window: any of its length, or of a fixed one those that begin
// at its multiples.
func (l *fleetLoad) judgeWindow(t *testing.T, requests []fleet.Record) {
	most := fleet.FullestInterval(requests, window)
	if l.Algorithm == tiered.FixedWindow {
		most = fleet.FullestWindow(requests, window)
	}
	over := most - int(l.Limit.Tokens)
	t.Logf("%s: %d requests; the fullest window has %d of %d: over-admission %d", l.Name, len(requests), most, l.Limit.Tokens, max(0, over))
	if over > 0 {
		t.Errorf("%s: over-admission %d", l.Name, over)
	}
	if float64(most) < l.least*float64(l.Limit.Tokens) {
		t.Errorf("%s: the fullest window has %d of %d: this shows little", l.Name, most, l.Limit.Tokens)
	}
}

// TestSteadyStateOnRedis is the other promise: below the limit nothing waits for Redis, and Redis
// is hardly asked. Ten processes' worth of limiters offer 0.8 of 20 000 per second; the first two
// seconds do not count.
func TestSteadyStateOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	server := redistest.Start(t)
	client := server.Client()
	const processes, rate, runs = 10, 20_000, 3
	const warmUp, length = 2 * time.Second, 6500 * time.Millisecond
	var waitedPerMillion, perDecision []float64
	for run := range runs {
		var decisions, waited, refused, early [processes]int64 // early waited before they count
		var all sync.WaitGroup
		var limiters []*tiered.Limiter
		var stores []*remote.Redis
		for range processes {
			store, err := remote.Open(server.URL(), nil)
			if err != nil {
				t.Fatal(err)
			}
			l, err := tiered.New(watch.Over(t, store), tiered.Policy{Name: "api", Limit: tiered.PerSecond(rate)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			stores, limiters = append(stores, store), append(limiters, l)
		}
		start := time.Now()
		var commands int64
		all.Go(func() {
			time.Sleep(warmUp)
			commands = commandsProcessed(t, client)
		})
		for i, l := range limiters {
			random := rand.New(rand.NewPCG(uint64(run), uint64(i)))
			all.Go(func() {
				next := time.Duration(0)
				for {
					next += time.Duration(random.ExpFloat64() * float64(time.Second) / (0.8 * rate / processes))
					if next > warmUp+length {
						return
					}
					// One sleep for all that is due: a sleep is far coarser than the gaps.
					if d := next - time.Since(start); d > 0 {
						time.Sleep(d)
					}
					d := l.Allow(context.Background(), "hot")
					if next < warmUp {
						if d.Tier != tiered.Local {
							early[i]++
						}
						continue
					}
					decisions[i]++
					if !d.Allowed {
						refused[i]++
					}
					if d.Tier != tiered.Local {
						waited[i]++
					}
				}
			})
		}
		all.Wait()
		n, w, r := sum(decisions[:]), sum(waited[:]), sum(refused[:])
		sent := commandsProcessed(t, client) - commands
		waitedPerMillion = append(waitedPerMillion, 1e6*float64(w)/float64(n))
		perDecision = append(perDecision, float64(sent)/float64(n))
		t.Logf("run %d: %d decisions, %d waited, %d refused, %.4f Redis commands per decision", run, n, w, r, float64(sent)/float64(n))
		if n < 95_000 || sent <= 0 || sum(early[:]) < processes { // each reports its presence, and begins without a lease
			t.Errorf("only %d decisions, %d commands, and %d that waited at first: this shows nothing", n, sent, sum(early[:]))
		}
		for i, l := range limiters {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
			_ = stores[i].Close()
		}
	}
	w, p := median(waitedPerMillion), median(perDecision)
	t.Logf("median of %d runs: %.1f of a million decisions waited, %.4f Redis commands per decision", runs, w, p)
	if w > 10 {
		t.Errorf("%.1f of a million decisions waited, want 10 at most", w)
	}
	if p > 0.01 {
		t.Errorf("%.4f Redis commands per decision, want 0.01 at most", p)
	}
}

func sum(all []int64) (s int64) {
	for _, x := range all {
		s += x
	}
	return s
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// commandsProcessed reports the commands that the server read off its wires: those of a script do
// not count there.
func commandsProcessed(t *testing.T, c *redis.Client) int64 {
	info, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Error(err)
		return 0
	}
	var n int64
	for line := range strings.SplitSeq(info, "\r\n") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		switch name {
		case "evalsha", "eval", "script|load", "hello", "client|setinfo", "ping", "auth", "select":
			text, _, _ := strings.Cut(rest, ",")
			calls, _ := strconv.ParseInt(text, 10, 64)
			n += calls
		}
	}
	return n
}

// A limiter at work and closed leaves nothing behind: no goroutine, and no connection of its own.
func TestNothingStaysBehind(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	before := runtime.NumGoroutine()
	for range 3 {
		store, err := remote.Open(server.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		g, err := tiered.NewGroup(watch.Over(t, store), &tiered.Options{MaxKeys: 100})
		if err != nil {
			t.Fatal(err)
		}
		l, err := g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for j := range 500 {
					l.Allow(context.Background(), strconv.Itoa(i*j%300))
				}
			})
		}
		all.Wait()
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s := g.Stats()
		if p := s.Policies["api"]; s.Keys != 0 || s.Leaving != 0 || p.Leases.Held != 0 || p.Leases.Granted != p.Leases.Spent+p.Leases.Returned+p.Leases.Burnt {
			t.Errorf("after Close: %+v", s)
		}
		_ = store.Close()
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		list, err := admin.ClientList(context.Background()).Result()
		if err != nil {
			t.Fatal(err)
		}
		goroutines, connections := runtime.NumGoroutine(), strings.Count(list, "\n")
		if goroutines <= before+2 && connections <= 1 { // the watching client's own
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines (%d before), %d connections stay:\n%s", goroutines, before, connections, list)
		}
		time.Sleep(10 * time.Millisecond) // the server closes its ends when it sees ours closed
	}
}
