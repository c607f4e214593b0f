//go:build unix

package sim

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// liveProcess is a process of the operating system.
type liveProcess struct {
	*harness.Process
	run     *run
	process atomic.Pointer[process] // that it became
	excused atomic.Bool             // it was ever paused: its lag is a fault's
}

// newLiveProcess starts a child, and does not wait until it is ready.
func newLiveProcess(r *run) (*liveProcess, error) {
	o := &liveProcess{run: r}
	var err error
	o.Process, err = harness.Launch(o.heard)
	return o, liveError(err)
}

// liveError says of which engine an error is.
func liveError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sim: engine live: %w", err)
}

// heard notes an event.
func (o *liveProcess) heard(e harness.Event) {
	p := o.process.Load()
	switch {
	case p == nil: // nothing that it could have to tell
	case e.Calls > 0:
		o.run.called(o.run.since(e.At), p.number, e.Calls)
	case e.State != nil:
		o.run.breaker(o.run.since(e.At), p, e.State.To)
	case e.Happened != "":
		o.run.happened(e.Happened)
	case e.Refused != "" && !strings.Contains(e.Refused, "WRONGTYPE"): // see unasked
		o.run.fail(liveError(errors.New("redis refuses a call that nobody disturbed: " + e.Refused)))
	}
}

func (o *liveProcess) decide(
	limit int, key string, cost int64, leave time.Duration,
) (d tiered.Decision, came, took time.Duration, told bool) {
	a := o.Ask(harness.Question{Load: limit, Key: key, Cost: cost, Leave: leave})
	if a == nil {
		return d, o.run.at(), 0, false
	}
	return tiered.Decision{Allowed: a.Allowed, Reason: a.Reason, Tier: a.Tier, RetryAfter: a.RetryAfter}, o.run.since(a.Came), a.Took, true
}

// noted notes by how much the machine held the process up, and returns its figures, nil of no report.
func (o *liveProcess) noted(r *harness.Report) *tiered.Stats {
	if r == nil {
		return nil
	}
	if !o.excused.Load() {
		o.run.lag.Note(r.Lag)
	}
	return &r.Stats
}

func (o *liveProcess) stats() *tiered.Stats { return o.noted(o.Report()) }

func (o *liveProcess) busy() bool {
	r := o.Report()
	o.noted(r)
	return r != nil && r.Busy
}

func (o *liveProcess) stop() {
	o.excused.Store(true)
	o.Pause()
}

func (o *liveProcess) resume() { o.Resume() }

func (o *liveProcess) crash() *tiered.Stats {
	o.Kill()
	return nil
}

func (o *liveProcess) leave() *tiered.Stats {
	return o.noted(o.Leave(leaveTime, leaveTime+time.Second))
}

func (o *liveProcess) end() error { return liveError(o.End()) }
