//go:build unix

package sim

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
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The longest that a child is waited for, on a machine that has other things to do.
const (
	readyTime = 30 * time.Second
	tellTime  = time.Second
)

// outside is a process of the operating system: a child, as the driver sees it.
type outside struct {
	run    *run
	cmd    *exec.Cmd
	in     io.WriteCloser
	orders *sender
	errors bytes.Buffer // what it printed; read it when it has ended

	process  atomic.Pointer[process] // that it became
	stopped  atomic.Bool             // it stands still
	excused  atomic.Bool             // it ever did: its lag is a fault's
	expected atomic.Bool             // its end is
	lost     bool                    // it ended by itself; read it when it is gone
	ready    chan struct{}
	gone     chan struct{} // it tells nothing any more
	asked    sync.Mutex    // for figures
	figures  chan *figures
	farewell chan *figures

	mu      sync.Mutex
	next    uint64 // number of a question, or of figures
	waiting map[uint64]chan *answer
}

// newOutside starts a child, and does not wait until it is ready.
func newOutside(r *run) (*outside, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := &outside{
		run: r, cmd: exec.Command(program), ready: make(chan struct{}), gone: make(chan struct{}),
		figures: make(chan *figures, 1), farewell: make(chan *figures, 1), waiting: make(map[uint64]chan *answer),
	}
	o.cmd.Env = append(os.Environ(), liveVariable+"=1")
	o.cmd.Stderr = &o.errors
	o.cmd.SysProcAttr = redisserver.DieWithParent()
	in, errIn := o.cmd.StdinPipe()
	out, errOut := o.cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut, o.cmd.Start()); err != nil {
		return nil, fmt.Errorf("sim: a process of engine live does not start: %w", err)
	}
	o.in, o.orders = in, newSender(in)
	go o.listen(out)
	return o, nil
}

// wait waits until it is ready.
func (o *outside) wait() error {
	timer := time.NewTimer(readyTime)
	defer timer.Stop()
	select {
	case <-o.ready:
		return nil
	case <-o.gone:
	case <-timer.C:
	}
	return fmt.Errorf("sim: a process of engine live is not ready after %v", readyTime)
}

// become makes it a process of the fleet.
func (o *outside) become(p *process, j *job) {
	o.process.Store(p)
	o.order(&order{Job: j})
}

// order gives an order; to a child that has ended it goes nowhere.
func (o *outside) order(what *order) { _ = o.orders.send(what) }

// network is how its network is from now on.
func (o *outside) network(f faultnet.Faults) { o.order(&order{Faults: &f}) }

// listen hears what the child tells, until it ends.
func (o *outside) listen(out io.Reader) {
	defer close(o.gone)
	defer func() { o.lost = !o.expected.Load() }()
	all := gob.NewDecoder(bufio.NewReaderSize(out, 1<<16))
	for {
		var n news
		if err := all.Decode(&n); err != nil {
			return
		}
		p := o.process.Load()
		switch {
		case n.Ready:
			close(o.ready)
		case n.Wrong != "":
			o.run.fail(fmt.Errorf("sim: a process of engine live: %s", n.Wrong))
		case n.Answer != nil:
			o.mu.Lock()
			heard := o.waiting[n.Answer.ID]
			delete(o.waiting, n.Answer.ID)
			o.mu.Unlock()
			if heard != nil {
				heard <- n.Answer
			}
		case n.Figures != nil && n.Figures.Number == 0:
			o.lags(n.Figures)
			o.farewell <- n.Figures
		case n.Figures != nil:
			o.lags(n.Figures)
			select {
			case <-o.figures: // nobody waited long enough for those
			default:
			}
			o.figures <- n.Figures
		case p == nil: // nothing that it could have to tell
		case n.Calls > 0:
			o.run.called(o.run.since(n.At), p.number, n.Calls)
		case n.Breaker != "":
			o.run.breaker(o.run.since(n.At), p, n.Breaker)
		case n.Happened != "":
			o.run.happened(n.Happened)
		}
	}
}

// lags notes by how much the machine held it up.
func (o *outside) lags(f *figures) {
	if !o.excused.Load() {
		o.run.lag.note(f.Lag)
	}
}

func (o *outside) decide(limit int, key string, cost int64, leave time.Duration) (d tiered.Decision, came, took time.Duration, told bool) {
	heard := make(chan *answer, 1)
	o.mu.Lock()
	o.next++
	id := o.next
	o.waiting[id] = heard
	o.mu.Unlock()
	o.order(&order{Ask: &question{ID: id, Limit: limit, Key: key, Cost: cost, Leave: leave}})
	select {
	case a := <-heard:
		return tiered.Decision{Allowed: a.Allowed, Reason: a.Reason, Tier: a.Tier, RetryAfter: a.RetryAfter}, o.run.since(a.Came), a.Took, true
	case <-o.gone:
		return d, o.run.at(), 0, false
	}
}

// ask asks for the figures; nil are those of who stands still, or has ended.
func (o *outside) ask() *figures {
	if o.stopped.Load() {
		return nil
	}
	o.asked.Lock()
	defer o.asked.Unlock()
	o.mu.Lock()
	o.next++
	number := o.next
	o.mu.Unlock()
	o.order(&order{Stats: number})
	timer := time.NewTimer(tellTime)
	defer timer.Stop()
	for {
		select {
		case f := <-o.figures:
			if f.Number == number {
				return f
			}
		case <-o.gone:
			return nil
		case <-timer.C:
			return nil
		}
	}
}

func (o *outside) stats() *tiered.Stats {
	if f := o.ask(); f != nil {
		return &f.Stats
	}
	return nil
}

func (o *outside) busy() bool {
	f := o.ask()
	return f != nil && f.Busy
}

func (o *outside) stop() {
	o.stopped.Store(true)
	o.excused.Store(true)
	o.signal(syscall.SIGSTOP)
}

func (o *outside) resume() {
	o.signal(syscall.SIGCONT)
	o.stopped.Store(false)
}

// signal sends a signal; one that has ended is none the worse.
func (o *outside) signal(s os.Signal) { _ = o.cmd.Process.Signal(s) }

func (o *outside) crash() *tiered.Stats {
	o.expected.Store(true)
	o.signal(syscall.SIGKILL)
	return nil
}

func (o *outside) leave() *tiered.Stats {
	o.expected.Store(true)
	o.order(&order{Leave: true})
	timer := time.NewTimer(leaveTime + tellTime)
	defer timer.Stop()
	select {
	case f := <-o.farewell:
		return &f.Stats
	case <-o.gone:
		select {
		case f := <-o.farewell:
			return &f.Stats
		default:
		}
	case <-timer.C:
		o.signal(syscall.SIGKILL)
	}
	return nil
}

// end waits for the process, and says why it ended when nobody had told it to.
func (o *outside) end() error {
	_ = o.in.Close() // who still waits for orders has none
	<-o.gone
	o.orders.close()
	err := o.cmd.Wait()
	if o.lost {
		return fmt.Errorf("sim: a process of engine live ended by itself: %w: %s", cmp.Or(err, io.ErrUnexpectedEOF), o.errors.String())
	}
	return nil
}
