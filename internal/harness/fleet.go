//go:build unix

package harness

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// TB is what a fleet needs of a testing.TB.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	TempDir() string
	Cleanup(f func())
}

// closeTime is what a Member has to return its leases, leaveTime what it has for that and to see its goroutines end.
const (
	closeTime = 5 * time.Second
	leaveTime = 20 * time.Second
)

// Member is a process of a fleet of a test, and records its requests. Its methods are for the test's own goroutine. What goes
// wrong fails the test.
type Member struct {
	*Process
	t     TB
	job   Job
	ended bool
}

// Start starts a process and returns when it can begin. It is killed at the end of the test.
func Start(t TB, job Job) *Member {
	t.Helper()
	job.Dir = t.TempDir()
	m := &Member{t: t, job: job}
	var err error
	if m.Process, err = Launch(nil); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(m.Kill)
	if m.call(order{Job: &m.job}, readyTime) == nil {
		m.ended = true
		m.Process.Kill()
		t.Fatalf("a process does not begin: %v", m.End())
	}
	return m
}

// Stop ends the process as a deploy would: it returns its leases.
func (m *Member) Stop() Report {
	m.t.Helper()
	return Fleet{m}.Stop()[m]
}

// Kill ends the process as the kernel would, and waits for it. Killing one that has ended is fine.
func (m *Member) Kill() {
	if m.ended {
		return
	}
	m.ended = true
	m.Process.Kill()
	if err := m.End(); err != nil {
		m.t.Errorf("%v", err)
	}
}

// Records reads what the process wrote of a load.
func (m *Member) Records(policy string) []Record {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.job.Dir, policy))
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	return readRecords(b)
}

// Fleet is processes that do the same job.
type Fleet []*Member

// StartFleet starts n processes, each with a seed of its own, and has them begin together.
func StartFleet(t TB, job Job, n int) (f Fleet) {
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
func (f Fleet) Stop() map[*Member]Report {
	last := make([]*Report, len(f))
	var all sync.WaitGroup
	for i, m := range f {
		if !m.ended {
			all.Go(func() { last[i] = m.Leave(closeTime, leaveTime) })
		}
	}
	all.Wait()
	reports := make(map[*Member]Report)
	for i, m := range f {
		if m.ended {
			continue
		}
		m.ended = true
		switch err := m.End(); {
		case err != nil:
			m.t.Errorf("%v", err)
		case last[i] == nil:
			m.t.Errorf("a process left without a report")
		case last[i].Refused != "" && !m.job.Damaged:
			m.t.Errorf("on a Redis that nobody damaged: %s", last[i].Refused)
		}
		if last[i] != nil {
			reports[m] = *last[i]
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
