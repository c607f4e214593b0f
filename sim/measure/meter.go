package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Meter measures a run. Its methods may be called concurrently.
type Meter struct{}

// New returns a meter for a run of s.
func New(s *scenario.Scenario) *Meter { panic("contract") }

// Request is one that is under way. It is a value: keeping it costs nothing.
type Request struct {
	at             time.Duration
	process, limit int32
	cost           int64
	key            string
	within         bool // an ideal bucket of the key admits it
}

// Asked notes that a process was asked: limit is the index in Scenario.Limits.
func (m *Meter) Asked(at time.Duration, process, limit int, key string, cost int64) Request {
	panic("contract")
}

// Decided notes what became of it.
func (m *Meter) Decided(at time.Duration, r Request, d tiered.Decision) { panic("contract") }

// Called notes that a process sent n calls of the script in one round trip, and Granted that Redis granted tokens to it,
// whether it hears of that or not.
func (m *Meter) Called(at time.Duration, process, n int)             { panic("contract") }
func (m *Meter) Granted(at time.Duration, process int, tokens int64) { panic("contract") }

// Breaker notes a change of a process' breaker: "closed", "open", "probing"; Joined and Died that a process came and went.
func (m *Meter) Breaker(at time.Duration, process int, state string) { panic("contract") }
func (m *Meter) Joined(at time.Duration, process int)                { panic("contract") }
func (m *Meter) Died(at time.Duration, process int)                  { panic("contract") }

// Fault notes that fault number i of the scenario began or ended.
func (m *Meter) Fault(at time.Duration, i int, ended bool) { panic("contract") }

// Happened counts one of scenario.Happenings that the meter cannot see by itself.
func (m *Meter) Happened(name string) { panic("contract") }

// Sample notes what a process' Stats say, at the end of each step of the series and when the process ends; last says that no
// more will come of this process.
func (m *Meter) Sample(at time.Duration, process int, s *tiered.Stats, last bool) { panic("contract") }

// Step is the length of a step of the series.
func (m *Meter) Step() time.Duration { panic("contract") }

// Report closes the books. Engine, Seed and Version are the caller's to fill in.
func (m *Meter) Report(end time.Duration) *Report { panic("contract") }
