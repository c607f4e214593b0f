package tiered_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// childJob is what a child process of a test does: carry loads under policies of one Group, and record each request.
type childJob struct {
	URL       string
	Defaults  bool // borrow a client at go-redis' defaults instead of having remote.Open make one
	Processes int  // Options.Processes
	Loads     []load
	Seed      uint64
	Dir       string // for a file of records per load, and for the report
}

// load is requests for one key under a policy of its own.
type load struct {
	Policy   string // its name
	FailMode tiered.FailMode
	Limit    tiered.Limit
	Size     int64   // of a lease; 0 follows demand
	Offer    float64 // requests per second, on average
	Surges   bool    // most of them within 0.8 of each 2 s, so that the bucket and the leases fill up in between
}

// record is one request, as a child writes it: 17 bytes, unbuffered, so that it survives the child's death.
type record struct {
	before, after int64 // ns of the wall clock, the same for all processes of a machine
	allowed       bool
	reason        tiered.Reason
}

const recordSize = 17 // two times, and a byte of the reason in whose highest bit lies allowed

func (r record) bytes() []byte {
	b := make([]byte, 0, recordSize)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.before))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.after))
	last := byte(r.reason)
	if r.allowed {
		last |= 0x80
	}
	return append(b, last)
}

func readRecord(b []byte) record {
	return record{
		before:  int64(binary.LittleEndian.Uint64(b)),
		after:   int64(binary.LittleEndian.Uint64(b[8:])),
		allowed: b[16]&0x80 != 0,
		reason:  tiered.Reason(b[16] &^ 0x80),
	}
}

// report is what a child says at its end. One that is killed says nothing.
type report struct {
	Stats tiered.Stats
	Lags  []lag
}

// lag is by how much a sleep of 1 ms was too long: what the machine adds to every time that is measured on it.
type lag struct {
	At, Over int64 // ns of the wall clock; ns
}

const childEnv = "TIERED_TEST_CHILD"

// TestMain makes a child of the processes that the tests start.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis writes a line for each connection that it cannot make
	if job := os.Getenv(childEnv); job != "" {
		if err := runChild(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runChild offers its requests from the first line of standard input on until its end, then gives its leases back.
func runChild(text string) error {
	var job childJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	store, err := job.open()
	if err != nil {
		return err
	}
	defer store.Close()
	g, err := tiered.NewGroup(store, &tiered.Options{Processes: job.Processes})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	var starts []func()
	for i, load := range job.Loads {
		l, err := g.Limiter(tiered.Policy{
			Name: load.Policy, Limit: load.Limit, Lease: tiered.Lease{Size: load.Size}, FailMode: load.FailMode,
		})
		if err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(job.Dir, load.Policy))
		if err != nil {
			return err
		}
		defer out.Close()
		const workers = 4 // a request that waits holds up a quarter of the others
		for j := range workers {
			random := rand.New(rand.NewPCG(job.Seed, uint64(i*workers+j)))
			starts = append(starts, func() { load.carry(ctx, l, load.Offer/workers, random, out) })
		}
	}

	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(io.Discard, in); stop() }()
	var r report
	all.Go(func() { r.Lags = measureLag(ctx) })
	for _, start := range starts {
		all.Go(start)
	}
	all.Wait()

	r.Stats = g.Stats()
	encoded, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(job.Dir, reportFile), encoded, 0o600); err != nil {
		return err
	}
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return g.Close(closing)
}

const reportFile = "report.json"

func (j childJob) open() (*remote.Redis, error) {
	if !j.Defaults {
		return remote.Open(j.URL, nil)
	}
	o, err := redis.ParseURL(j.URL)
	if err != nil {
		return nil, err
	}
	return remote.NewRedis(redis.NewClient(&redis.Options{
		Network: o.Network, Addr: o.Addr, Username: o.Username, Password: o.Password, Protocol: o.Protocol,
	}), nil), nil
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// carry makes requests at a rate, one after the other, until ctx ends.
func (w load) carry(ctx context.Context, l *tiered.Limiter, perSecond float64, random *rand.Rand, out io.Writer) {
	next := time.Now()
	for {
		next = next.Add(time.Duration(random.ExpFloat64() / (w.peak() * perSecond) * float64(time.Second)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		if w.quiet(next) && random.Float64() > 0.04 {
			continue
		}
		before := time.Now().UnixNano()
		d := l.Allow(context.Background(), "shared")
		r := record{before: before, after: time.Now().UnixNano(), allowed: d.Allowed, reason: d.Reason}
		_, _ = out.Write(r.bytes())
	}
}

// peak is what is offered in a surge, in times the average.
func (w load) peak() float64 {
	if w.Surges {
		return 2.35
	}
	return 1
}

// quiet reports a time between surges. By the wall clock, so that all processes surge together.
func (w load) quiet(at time.Time) bool { return w.Surges && at.UnixMilli()%2000 < 1200 }

// measureLag sleeps 1 ms again and again until ctx ends.
func measureLag(ctx context.Context) (all []lag) {
	for ctx.Err() == nil {
		before := time.Now()
		time.Sleep(time.Millisecond)
		all = append(all, lag{before.UnixNano(), int64(time.Since(before) - time.Millisecond)})
	}
	return all
}

// child is a process that runs a childJob.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	dir   string
	ended bool
}

// startChild starts a process and returns when it is ready.
func startChild(t *testing.T, job childJob) *child {
	t.Helper()
	job.Dir = t.TempDir()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, dir: job.Dir, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return c
}

func (c *child) begin() { _, _ = io.WriteString(c.in, "go\n") }

// stop ends the child as a deploy would: it gives its leases back.
func (c *child) stop() {
	c.t.Helper()
	c.finish()
	c.ended = true
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("child: %v", err)
	}
}

// finish tells the child to stop, and does not wait for it.
func (c *child) finish() { _ = c.in.Close() }

// kill ends the child as the kernel would.
func (c *child) kill() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
}

// records reads what the child wrote of a load.
func (c *child) records(policy string) []record {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, policy))
	if err != nil {
		c.t.Fatal(err)
	}
	var all []record
	for ; len(b) >= recordSize; b = b[recordSize:] {
		all = append(all, readRecord(b))
	}
	return all
}

// report reads what the child said at its end.
func (c *child) report() (r report) {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, reportFile))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}
