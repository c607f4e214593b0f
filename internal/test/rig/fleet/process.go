// Package fleet runs limiters in processes of their own, on a real Redis. The processes share
// limits; the test freezes them, kills them and cuts them off.
//
// A process is the test program, started again: TestMain must call [Main]. It makes the requests of
// its [Job] and writes down every decision with the time that it took ([Record]).
package fleet

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// CloseTime is what a process has to return its leases.
const CloseTime = 5 * time.Second

// The longest that a process is waited for, on a machine that has other things to do.
const (
	answerTime = 30 * time.Second
	leaveTime  = 20 * time.Second // to return its leases, and to see its goroutines end
)

// Process is a process of a test. Its methods are for the test's own goroutine. What goes wrong
// fails the test.
type Process struct {
	t       testing.TB
	job     Job
	cmd     *exec.Cmd
	in      io.Closer
	orders  *gob.Encoder
	answers chan *Report // closed when it tells nothing any more
	stderr  bytes.Buffer // read it when the process has ended
	ended   bool
}

// Start starts a process and returns when it can begin. It is killed at the end of the test.
func Start(t testing.TB, job Job) *Process {
	t.Helper()
	p := launch(t, job)
	p.do(order{Job: &p.job})
	return p
}

// Refusal starts a process that cannot do its job, and returns what it says when it ends.
func Refusal(t testing.TB, job Job) string {
	t.Helper()
	p := launch(t, job)
	if _, err := p.ask(order{Job: &p.job}, answerTime); err == nil {
		t.Fatal("a process starts that should not")
	}
	p.ended = true
	if err := p.wait(); err == nil || !p.cmd.ProcessState.Exited() {
		t.Fatalf("a process ends with %v", err)
	}
	return p.stderr.String()
}

// launch starts a process without a job.
func launch(t testing.TB, job Job) *Process {
	t.Helper()
	program := fatal.Get(os.Executable())(t)
	job.Dir = t.TempDir()
	// One answer at most is under way, so who tells it never waits for a driver that has given up.
	p := &Process{t: t, job: job, cmd: exec.Command(program), answers: make(chan *Report, 1)}
	p.cmd.Env = append(os.Environ(), childVariable+"=1")
	if job.Zones != "" {
		p.cmd.Env = append(p.cmd.Env, "ZONEINFO="+job.Zones)
	}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = redistest.DieWithParent()
	in, errIn := p.cmd.StdinPipe()
	out, errOut := p.cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut, p.cmd.Start()); err != nil {
		t.Fatalf("a process does not start: %v", err)
	}
	p.in, p.orders = in, gob.NewEncoder(in)
	go p.listen(gob.NewDecoder(out))
	t.Cleanup(p.Kill)
	return p
}

// listen passes the answers on until the process ends.
func (p *Process) listen(answers *gob.Decoder) {
	defer close(p.answers)
	for {
		r := &Report{}
		if answers.Decode(r) != nil {
			return
		}
		p.answers <- r
	}
}

// ask gives an order and waits for the answer. A process that gives none is killed.
func (p *Process) ask(o order, patience time.Duration) (*Report, error) {
	_ = p.orders.Encode(&o) // if it has ended there is no answer either
	select {
	case r, ok := <-p.answers:
		if ok {
			return r, nil
		}
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
	}
	return nil, errors.New("a process does not answer")
}

// do gives an order that must be followed.
func (p *Process) do(o order) *Report {
	p.t.Helper()
	r, err := p.ask(o, answerTime)
	if err != nil {
		p.t.Fatal(err) // Kill, at the end of the test, tells what the process said
	}
	return r
}

// Begin has the process offer the requests of its job, and measure its lag.
func (p *Process) Begin() { p.t.Helper(); p.do(order{Begin: true}) }

// Report asks how the process is.
func (p *Process) Report() Report { p.t.Helper(); return *p.do(order{}) }

// Pause freezes the process (SIGSTOP).
func (p *Process) Pause() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume thaws it (SIGCONT).
func (p *Process) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Kill ends the process as the kernel would (SIGKILL), and waits for it. Killing one that has ended
// is fine.
func (p *Process) Kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill()
	if err := p.wait(); p.cmd.ProcessState.Exited() {
		p.t.Errorf("a process ended by itself: %v", err)
	}
}

// wait waits for the end of the process.
func (p *Process) wait() error {
	_ = p.in.Close() // who still waits for orders has none
	for range p.answers {
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.stderr.String())
	}
	return nil
}

// Stop ends the process as a deploy would: it returns its leases.
func (p *Process) Stop() Report {
	p.t.Helper()
	return Fleet{p}.Stop()[p]
}

// Records reads what the process wrote of a load.
func (p *Process) Records(policy string) []Record {
	p.t.Helper()
	b := fatal.Get(os.ReadFile(filepath.Join(p.job.Dir, policy)))(p.t)
	return readRecords(b)
}

// Fleet is processes that do the same job.
type Fleet []*Process

// StartAll starts n processes, each with a seed of its own, and has them begin together.
func StartAll(t testing.TB, job Job, n int) (f Fleet) {
	t.Helper()
	for i := range n {
		job.Seed = uint64(i)
		f = append(f, Start(t, job))
	}
	for _, p := range f {
		p.Begin()
	}
	return f
}

// Net makes the network of all like that, for connections that they have too.
func (f Fleet) Net(faults faultnet.Faults) {
	for _, p := range f {
		p.do(order{Net: &faults})
	}
}

// Stop ends all processes that have not ended, together, and returns what they report.
func (f Fleet) Stop() map[*Process]Report {
	last, wrong := make([]*Report, len(f)), make([]error, len(f))
	var all sync.WaitGroup
	for i, p := range f {
		if !p.ended {
			p.ended = true
			all.Go(func() {
				var silent error
				last[i], silent = p.ask(order{Leave: CloseTime}, leaveTime)
				wrong[i] = errors.Join(silent, p.wait())
			})
		}
	}
	all.Wait()
	reports := make(map[*Process]Report)
	for i, p := range f {
		if wrong[i] != nil {
			p.t.Errorf("a process ended: %v", wrong[i])
		}
		if r := last[i]; r != nil {
			reports[p] = *r
			if r.Refused != "" && !p.job.Damaged {
				p.t.Errorf("on a Redis that nobody damaged: %s", r.Refused)
			}
		}
	}
	return reports
}

// Records is what all processes wrote of a load, by time.
func (f Fleet) Records(policy string) (all []Record) {
	for _, p := range f {
		all = append(all, p.Records(policy)...)
	}
	byTime(all)
	return all
}
