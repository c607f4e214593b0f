package fleet

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// Process is one process of a fleet. Its methods are for the test's own goroutine.
type Process struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	dir   string
	hurt  bool // Job.Damaged
	ended bool
}

// Start starts a process and returns when it is ready. It is killed at the end of the test.
func Start(t testing.TB, job Job) *Process {
	t.Helper()
	job.Dir = t.TempDir()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, dir: job.Dir, hurt: job.Damaged, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the process says %q, %v", line, err)
	}
	return p
}

// Begin has the process offer its requests.
func (p *Process) Begin() { p.tell(order{Begin: true}) }

// Net makes the process' network like that, for connections that it has too.
func (p *Process) Net(f faultnet.Faults) { p.tell(order{Net: &f}) }

func (p *Process) tell(o order) {
	p.t.Helper()
	line, err := json.Marshal(o)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.t.Errorf("a process takes no orders: %v", err)
	}
}

// Pause freezes the process (SIGSTOP).
func (p *Process) Pause() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume thaws it (SIGCONT).
func (p *Process) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Finish tells the process to stop, and does not wait for it.
func (p *Process) Finish() { _ = p.in.Close() }

// Stop ends the process as a deploy would: it gives its leases back.
func (p *Process) Stop() Report {
	p.t.Helper()
	p.Finish()
	p.ended = true
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("a process of the fleet: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(p.dir, reportFile))
	if err != nil {
		p.t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		p.t.Fatal(err)
	}
	if r.Refused != "" && !p.hurt {
		p.t.Errorf("on a Redis that nobody damaged: %s", r.Refused)
	}
	return r
}

// Kill ends the process as the kernel would. Killing one that has ended is fine.
func (p *Process) Kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

// Records reads what the process wrote of a load.
func (p *Process) Records(policy string) []Record {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, policy))
	if err != nil {
		p.t.Fatal(err)
	}
	return readRecords(b)
}

// Fleet is processes that do the same job.
type Fleet []*Process

// StartFleet starts n processes, each with a seed of its own, and has them begin together.
func StartFleet(t testing.TB, job Job, n int) (f Fleet) {
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

// Net makes the network of all like that.
func (f Fleet) Net(faults faultnet.Faults) {
	for _, p := range f {
		p.Net(faults)
	}
}

// Stop ends all processes that have not ended, together, and returns what they report.
func (f Fleet) Stop() map[*Process]Report {
	all := make(map[*Process]Report)
	for _, p := range f {
		p.Finish()
	}
	for _, p := range f {
		if !p.ended {
			all[p] = p.Stop()
		}
	}
	return all
}

// Records is what all processes wrote of a load, by time.
func (f Fleet) Records(policy string) (all []Record) {
	for _, p := range f {
		all = append(all, p.Records(policy)...)
	}
	byTime(all)
	return all
}
