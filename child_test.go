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

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// childJob is what a child process of a test does: offer requests for one key, and record each.
type childJob struct {
	URL      string
	Limit    tiered.Limit
	Offer    float64 // requests per second, on average
	Surges   bool    // most of them within 0.8 of each 2 s, so that the bucket and the leases fill up in between
	Size     int64   // of a lease; 0 follows demand
	Seed     uint64
	FailMode tiered.FailMode
	Record   string // file of records, one per request
}

// record is one request, as a child writes it: 17 bytes, unbuffered, so that it survives the child's death.
type record struct {
	before, after int64 // ns of the wall clock, the same for all processes of a machine
	allowed       bool
}

const childEnv = "TIERED_TEST_CHILD"

// TestMain makes a child of the processes that the tests start.
func TestMain(m *testing.M) {
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
	store, err := remote.Open(job.URL, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	l, err := tiered.New(store, tiered.Policy{
		Name: "api", Limit: job.Limit, Lease: tiered.Lease{Size: job.Size}, FailMode: job.FailMode,
	}, nil)
	if err != nil {
		return err
	}
	out, err := os.Create(job.Record)
	if err != nil {
		return err
	}
	defer out.Close()

	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, in); stop() }()

	const workers = 4 // a request that waits holds up a quarter of the others
	var all sync.WaitGroup
	for i := range workers {
		random := rand.New(rand.NewPCG(job.Seed, uint64(i)))
		all.Go(func() {
			next := time.Now()
			for {
				next = next.Add(time.Duration(random.ExpFloat64() * workers / (job.peak() * job.Offer) * float64(time.Second)))
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(next)):
				}
				if job.quiet(next) && random.Float64() > 0.04 {
					continue
				}
				before := time.Now().UnixNano()
				d := l.Allow(context.Background(), "shared")
				after := time.Now().UnixNano()
				var b [17]byte
				binary.LittleEndian.PutUint64(b[:], uint64(before))
				binary.LittleEndian.PutUint64(b[8:], uint64(after))
				if d.Allowed {
					b[16] = 1
				}
				_, _ = out.Write(b[:])
			}
		})
	}
	all.Wait()
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return l.Close(closing)
}

// peak is what is offered in a surge, in times the average.
func (j childJob) peak() float64 {
	if j.Surges {
		return 2.35
	}
	return 1
}

// quiet reports a time between surges. By the wall clock, so that all processes surge together.
func (j childJob) quiet(at time.Time) bool { return j.Surges && at.UnixMilli()%2000 < 1200 }

// child is a process that runs a childJob.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	path  string
	ended bool
}

// startChild starts a process and returns when it is ready.
func startChild(t *testing.T, job childJob) *child {
	t.Helper()
	job.Record = filepath.Join(t.TempDir(), "records")
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, path: job.Record, cmd: exec.Command(os.Args[0])}
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
	_ = c.in.Close()
	c.ended = true
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("child: %v", err)
	}
}

// kill ends the child as the kernel would.
func (c *child) kill() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
}

// records reads what the child wrote.
func (c *child) records() []record {
	c.t.Helper()
	b, err := os.ReadFile(c.path)
	if err != nil {
		c.t.Fatal(err)
	}
	var all []record
	for ; len(b) >= 17; b = b[17:] {
		all = append(all, record{
			before:  int64(binary.LittleEndian.Uint64(b)),
			after:   int64(binary.LittleEndian.Uint64(b[8:])),
			allowed: b[16] == 1,
		})
	}
	return all
}
