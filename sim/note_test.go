package sim

import (
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// notes is a meter that keeps what it was told, for tests of the engines.
type notes struct {
	scenario *scenario.Scenario

	mu       sync.Mutex
	asked    int64 // requests
	decided  int64
	reasons  map[tiered.Reason]int64
	calls    int64
	granted  int64 // by Redis
	breakers map[string]int64
	happened map[string]int64
	joined   int64
	died     int64
	begun    []int // faults
	ended    []int
	last     map[int]tiered.Stats
	reply    map[int]map[tiered.Reason]int64
	ask      map[int]int64 // requests in each second
	per      map[int]int64 // requests by process
}

func newNotes(s *scenario.Scenario) *notes {
	return &notes{
		scenario: s, reasons: map[tiered.Reason]int64{}, breakers: map[string]int64{}, happened: map[string]int64{},
		last:  map[int]tiered.Stats{},
		reply: map[int]map[tiered.Reason]int64{}, ask: map[int]int64{}, per: map[int]int64{},
	}
}

func (n *notes) Asked(at time.Duration, process, limit int, key string, cost int64) measure.Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	n.ask[int(at/time.Second)]++
	n.per[process]++
	return measure.Request{}
}

func (n *notes) Decided(at time.Duration, _ measure.Request, d tiered.Decision) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.decided++
	n.reasons[d.Reason]++
	second := n.reply[int(at/time.Second)]
	if second == nil {
		second = map[tiered.Reason]int64{}
		n.reply[int(at/time.Second)] = second
	}
	second[d.Reason]++
}

func (n *notes) Called(_ time.Duration, _, calls int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls += int64(calls)
}

func (n *notes) Granted(_ time.Duration, _ int, tokens int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.granted += tokens
}

func (n *notes) Breaker(_ time.Duration, _ int, state string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.breakers[state]++
}

func (n *notes) Joined(time.Duration, int) { n.mu.Lock(); defer n.mu.Unlock(); n.joined++ }
func (n *notes) Died(time.Duration, int)   { n.mu.Lock(); defer n.mu.Unlock(); n.died++ }

func (n *notes) Fault(_ time.Duration, i int, ended bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ended {
		n.ended = append(n.ended, i)
	} else {
		n.begun = append(n.begun, i)
	}
}

func (n *notes) Happened(name string) { n.mu.Lock(); defer n.mu.Unlock(); n.happened[name]++ }

func (n *notes) Sample(_ time.Duration, process int, s *tiered.Stats, _ bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last[process] = *s
}

func (n *notes) Step() time.Duration {
	return max(time.Duration(n.scenario.Length)/600, 100*time.Millisecond)
}

func (n *notes) Report(time.Duration) *measure.Report { return &measure.Report{} }

// stats are all processes' figures of a limit, at last.
func (n *notes) stats(limit string) (sum tiered.PolicyStats) {
	for _, process := range n.last {
		p := process.Policies[limit]
		sum.Granted += p.Granted
		sum.Spent += p.Spent
		sum.Returned += p.Returned
		sum.Burnt += p.Burnt
		sum.Held += p.Held
		sum.Shared += p.Shared
		sum.Open += p.Open
		sum.Settled += p.Settled
	}
	return sum
}

// rehearse runs a scenario and returns what was noted, and the run's hash.
func rehearse(t *testing.T, text string, o *Options) (*notes, string) {
	t.Helper()
	s, err := scenario.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := prepare(s, o)
	if err != nil {
		t.Fatal(err)
	}
	n := newNotes(p.scenario)
	r, err := p.run(t, n)
	if err != nil {
		t.Fatal(err)
	}
	return n, r.Unseed
}
