//go:build unix

package harness

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/redisserver"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// The longest that a child is waited for, on a machine that has other things to do.
const (
	readyTime  = 30 * time.Second
	reportTime = time.Second
)

// Process is a child, as the driver sees it. Its methods may be called concurrently, but for Kill, Leave and End.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	orders *sender
	hear   func(Event)
	stderr bytes.Buffer // read it when the process has ended

	paused   atomic.Bool
	expected atomic.Bool   // its end is
	killed   bool          // by Kill
	lost     bool          // it ended by itself; read it when it is gone
	wrong    string        // why, if it said so
	gone     chan struct{} // closed when it tells nothing any more

	mu      sync.Mutex
	next    uint64 // ID of an order that is answered
	waiting map[uint64]chan *message
}

// Launch starts a child, and does not wait until it is ready. It calls hear with each event, one after the other.
func Launch(hear func(Event)) (*Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(program), hear: hear, gone: make(chan struct{}), waiting: make(map[uint64]chan *message)}
	p.cmd.Env = append(os.Environ(), childVariable+"=1")
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = redisserver.DieWithParent()
	in, errIn := p.cmd.StdinPipe()
	out, errOut := p.cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut, p.cmd.Start()); err != nil {
		return nil, fmt.Errorf("a process does not start: %w", err)
	}
	p.in, p.orders = in, newSender(in)
	go p.listen(out)
	return p, nil
}

// Wait waits until the process is ready for its job.
func (p *Process) Wait() error {
	if p.call(order{}, readyTime) == nil {
		return fmt.Errorf("a process is not ready after %v", readyTime)
	}
	return nil
}

// order gives an order. To a process that has ended it goes nowhere.
func (p *Process) order(what order) { _ = p.orders.send(&what) }

// call gives an order and waits for the answer, nil if the process ends before, or the time, 0 being endless.
func (p *Process) call(what order, patience time.Duration) *message {
	heard := make(chan *message, 1)
	p.mu.Lock()
	p.next++
	what.ID = p.next
	p.waiting[what.ID] = heard
	p.mu.Unlock()
	p.order(what)
	var late <-chan time.Time
	if patience > 0 {
		late = time.After(patience)
	}
	select {
	case m := <-heard:
		return m
	case <-late:
	case <-p.gone:
	}
	select {
	case m := <-heard: // at the same instant
		return m
	default:
		return nil
	}
}

// Do gives the process its job. It offers no requests before Begin.
func (p *Process) Do(j *Job) { p.order(order{Job: j}) }

// Begin has the process offer the requests of its job, and measure its lag.
func (p *Process) Begin() { p.order(order{Begin: true}) }

// Net makes the network of the process like that, for connections that it has too.
func (p *Process) Net(f faultnet.Faults) { p.order(order{Net: &f}) }

// Redirect makes the process dial another address from now on.
func (p *Process) Redirect(addr string) { p.order(order{Addr: addr}) }

// listen hears what the child tells, until it ends.
func (p *Process) listen(out io.Reader) {
	defer close(p.gone)
	defer func() { p.lost = !p.expected.Load() }()
	all := gob.NewDecoder(bufio.NewReaderSize(out, 1<<16))
	for {
		var m message
		if err := all.Decode(&m); err != nil {
			return
		}
		switch {
		case m.Wrong != "":
			p.wrong = m.Wrong
		case m.Event != nil:
			p.hear(*m.Event)
		default:
			p.mu.Lock()
			heard := p.waiting[m.ID]
			delete(p.waiting, m.ID)
			p.mu.Unlock()
			if heard != nil {
				heard <- &m
			}
		}
	}
}

// Ask has the process decide a request. It returns nil if the process ends before it has.
func (p *Process) Ask(q Question) *Answer {
	if m := p.call(order{Ask: &q}, 0); m != nil {
		return m.Answer
	}
	return nil
}

// Report asks for a report. It returns nil if the process is paused or has ended, or tells none within a second.
func (p *Process) Report() *Report {
	if p.paused.Load() {
		return nil
	}
	return p.report(order{Report: true}, reportTime)
}

func (p *Process) report(what order, patience time.Duration) *Report {
	if m := p.call(what, patience); m != nil {
		return m.Report
	}
	return nil
}

// Pause freezes the process (SIGSTOP).
func (p *Process) Pause() {
	p.paused.Store(true)
	p.signal(syscall.SIGSTOP)
}

// Resume thaws it (SIGCONT).
func (p *Process) Resume() {
	p.signal(syscall.SIGCONT)
	p.paused.Store(false)
}

// signal sends a signal. One that has ended is none the worse.
func (p *Process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process as the kernel would (SIGKILL). Call End next.
func (p *Process) Kill() {
	p.expected.Store(true)
	p.killed = true
	p.signal(syscall.SIGKILL)
}

// Leave has the process return its leases within closing, and waits for its last report. If there is none within patience, it
// returns nil and the process is killed. Call End next.
func (p *Process) Leave(closing, patience time.Duration) *Report {
	p.expected.Store(true)
	r := p.report(order{Leave: closing}, patience)
	if r == nil {
		p.Kill()
	}
	return r
}

// End waits for the process. An error says that it ended although nobody had told it to, or not as it should.
func (p *Process) End() error {
	_ = p.in.Close() // who still waits for orders has none
	<-p.gone
	p.orders.close()
	err := p.cmd.Wait()
	switch {
	case p.wrong != "":
		return fmt.Errorf("a process cannot go on: %s", p.wrong)
	case p.lost:
		return fmt.Errorf("a process ended by itself: %w: %s", cmp.Or(err, io.ErrUnexpectedEOF), p.stderr.String())
	case err != nil && !p.killed:
		return fmt.Errorf("a process ended: %w: %s", err, p.stderr.String())
	}
	return nil
}
