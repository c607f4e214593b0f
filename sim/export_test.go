package sim

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Instants are the turns of those who come at one time: no run shows that their order did not
// matter.
type (
	Instants = instants
	Instant  = instant
)

// Slack is how far a turn may be from the time of who takes it.
const Slack = slack

func (i *instants) Enter(now time.Duration) time.Duration            { return i.enter(now) }
func (i *instants) Join(now time.Duration, number uint64) *instant   { return i.join(now, number) }
func (i *instants) Wait(now time.Duration, w *instant) time.Duration { return i.wait(now, w) }
func (i *instant) Number() uint64                                    { return i.number }

// Reply is an error reply of the simulated Redis, and Unasked what ends a run: a run that is right
// has none.
type Reply = reply

var Unasked = unasked

// NewStore is a process' store, to be timed without a limiter. It must be called in a bubble.
func NewStore(trip time.Duration) remote.Store {
	s := &scenario.Scenario{Length: scenario.Duration(time.Minute), Net: scenario.Net{RTT: scenario.Duration(trip)}}
	r := (&plan{scenario: s, seed: 1}).newRun()
	r.network.links = []*link{{changed: make(chan struct{})}}
	return newStore(r, &process{})
}

// Spread is the first stream's choice among the processes of a scenario, and their leaving: no
// report tells them apart.
func Spread(s *scenario.Scenario) (choose func() (slot int, ok bool), leave func(slot int), err error) {
	p, err := prepare(s, nil)
	if err != nil {
		return nil, nil, err
	}
	r := &run{plan: p}
	r.fleet = &fleet{run: r, slots: make([]*process, s.Fleet.N)}
	for i := range s.Fleet.N {
		r.fleet.set(i, &process{number: i, slot: i})
	}
	stream := r.newStream(0)
	return func() (int, bool) {
		p := stream.chooseProcess()
		if p == nil {
			return 0, false
		}
		return p.slot, true
	}, func(slot int) { r.fleet.take(slot) }, nil
}
