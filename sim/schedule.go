package sim

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// schedule plans everything but traffic: when processes start, faults begin and end, and figures
// are taken. One goroutine does it all. Events of one instant run a nanosecond apart, in the order
// in which they were planned.
type schedule struct {
	run    *run
	events []event // by time
	active []*fault
}

type event struct {
	at time.Duration
	do func()
}

// fault is one of the scenario's, while it lasts.
type fault struct {
	*scenario.Fault
	number int
	random *rand.Rand // of its own
	slots  []int      // of the processes concerned, rising; nil is all
	paused []*process // that stand still
	lapsed bool       // a link that flaps is up
}

// newSchedule plans a run. The processes start one after the other, and figures are taken at the
// end of each step.
func newSchedule(r *run) *schedule {
	s := &schedule{run: r}
	random := newRand(r.seed, "starts")
	slot := min(startup/time.Duration(r.scenario.Fleet.N), maxStartGap)
	for i := range r.scenario.Fleet.N {
		// Each has a slot of its own, so no two start at one instant.
		s.plan(slot*time.Duration(i)+time.Duration(random.Int64N(int64(slot))), func() { s.start(i) })
	}
	s.faults()
	step := r.meter.Step()
	s.plan(step, func() {
		s.again(func() time.Duration {
			for _, p := range *r.fleet.live.Load() {
				r.meter.Sample(r.at(), p.number, p.group.Stats(), false)
			}
			if r.progress != nil {
				r.progress(r.at(), time.Duration(r.scenario.Length))
			}
			return r.at() + step
		})
	})
	return s
}

// The processes start within this time, and no further apart.
const (
	startup     = time.Second
	maxStartGap = 10 * time.Millisecond
)

// plan adds an event.
func (s *schedule) plan(at time.Duration, do func()) {
	i, _ := slices.BinarySearchFunc(s.events, at, func(e event, at time.Duration) int {
		return cmp.Or(cmp.Compare(e.at, at), -1) // behind its equals
	})
	s.events = slices.Insert(s.events, i, event{at, do})
}

// again takes a turn now, and one at each time that the last returned, until that is 0.
func (s *schedule) again(turn func() (next time.Duration)) {
	if next := turn(); next > 0 {
		s.plan(next, func() { s.again(turn) })
	}
}

// until runs the events up to the end, that included.
func (s *schedule) until(end time.Duration) {
	for len(s.events) > 0 && s.events[0].at <= end {
		e := s.events[0]
		s.events = s.events[1:]
		s.run.sleepUntil(e.at)
		e.do()
		time.Sleep(time.Nanosecond) // all that follows from it now happens before the next event
	}
	s.run.sleepUntil(end)
}

// faults plans all faults of the scenario.
func (s *schedule) faults() {
	sc := s.run.scenario
	for i := range sc.Faults {
		f := &fault{Fault: &sc.Faults[i], number: i, random: newRand(s.run.seed, fmt.Sprintf("fault %d", i))}
		if f.Kind == "failover" && f.Lose < f.At {
			s.plan(time.Duration(f.At-f.Lose), s.run.server.remember)
		}
		s.plan(time.Duration(f.At), func() { s.begin(f) })
	}
}

// begin is the beginning of a fault, and plans its end.
func (s *schedule) begin(f *fault) {
	r := s.run
	r.meter.Fault(r.at(), f.number, false)
	f.slots = s.choose(f)
	switch f.Kind {
	case "flush":
		r.server.flush()
	case "evict":
		r.server.evict(int(f.Keys), f.random)
	case "scriptflush":
		r.server.flushScripts()
	case "clock":
		r.server.step(time.Duration(f.By))
		r.meter.Happened(r.at(), "clock_step")
	case "crash":
		s.crash(f)
		return
	case "crashloop":
		s.crashLoop(f)
	case "pause":
		for _, slot := range f.slots {
			if p := r.fleet.at(slot); p != nil {
				f.paused = append(f.paused, p)
				p.pause.shut()
			}
		}
	case "deploy":
		s.deploy(f)
		return
	case "scale":
		s.scale(f)
	case "flood":
		flood := r.newFlood(f.number, time.Duration(f.At), s.endOf(f))
		r.traffic.Go(flood.open)
	case "flap":
		s.flap(f)
	}
	if !scenario.Lasts(f.Kind) {
		s.ended(f)
		return
	}
	s.active = append(s.active, f)
	s.apply()
	if f.For > 0 {
		s.plan(s.endOf(f), func() { s.end(f) })
	}
}

// endOf returns when a fault ends.
func (s *schedule) endOf(f *fault) time.Duration {
	if f.For == 0 {
		return time.Duration(s.run.scenario.Length)
	}
	return time.Duration(f.At + f.For)
}

func (s *schedule) ended(f *fault) { s.run.meter.Fault(s.run.at(), f.number, true) }

// end ends a fault that lasts.
func (s *schedule) end(f *fault) {
	s.active = slices.DeleteFunc(s.active, func(a *fault) bool { return a == f })
	switch f.Kind {
	case "kill":
		s.run.server.flush()
		s.run.server.flushScripts()
	case "failover":
		s.run.server.promote()
	case "pause":
		for _, p := range f.paused {
			if !s.paused(p) {
				p.pause.open()
			}
		}
	}
	s.apply()
	s.ended(f)
}

// lift ends all faults that are left when the run is over.
func (s *schedule) lift() {
	for len(s.active) > 0 {
		s.end(s.active[0])
	}
}

// paused reports whether another fault pauses a process too.
func (s *schedule) paused(p *process) bool {
	return slices.ContainsFunc(s.active, func(f *fault) bool { return slices.Contains(f.paused, p) })
}

// apply sets what is wrong by all active faults.
func (s *schedule) apply() {
	var state serverState
	var slower scenario.Duration
	for _, f := range s.active {
		switch f.Kind {
		case "kill", "failover":
			state.down = true
		case "freeze":
			state.frozen = true
		case "refuse":
			state.refuse = f.Error
		case "slow":
			slower += f.Delay
		}
	}
	s.run.slower.Store(int64(slower))
	s.run.server.serve(state)
	for slot := range s.run.network.links {
		s.connect(slot)
	}
}

// connect sets the network of a slot.
func (s *schedule) connect(slot int) {
	var c conditions
	for _, f := range s.active {
		if _, concerned := slices.BinarySearch(f.slots, slot); f.lapsed || f.slots != nil && !concerned {
			continue
		}
		c = c.plus(f.network())
	}
	s.run.network.links[slot].set(c)
}

// network returns what a fault does to the network of a process.
func (f *fault) network() (c conditions) {
	chance := f.Chance
	if chance == 0 {
		chance = 1
	}
	switch f.Kind {
	case "blackhole":
		c.holdOut, c.holdIn = f.Only != "replies", f.Only != "requests"
	case "flap":
		c.holdOut, c.holdIn = true, true
	case "cut":
		c.cut = chance
	case "lose":
		c.lose = chance
	case "latency":
		c.delay, c.jitter = time.Duration(f.Delay), time.Duration(f.Jitter)
	}
	return c
}

// choose draws the slots that a fault concerns. nil is all, later ones too.
func (s *schedule) choose(f *fault) []int {
	n := len(s.run.network.links)
	var slots []int
	for slot := range n {
		if s.run.fleet.at(slot) != nil {
			slots = append(slots, slot)
		}
	}
	switch {
	case f.Procs.Count > 0:
		n = f.Procs.Count
	case f.Procs.Share > 0:
		n = int(math.Ceil(f.Procs.Share * float64(len(slots))))
	case hitsProcesses(f.Kind):
		return slots
	default:
		return nil
	}
	f.random.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
	slots = append([]int{}, slots[:min(n, len(slots))]...)
	slices.Sort(slots)
	return slots
}

// hitsProcesses reports whether such a fault concerns processes and not their network.
func hitsProcesses(kind string) bool {
	return kind == "crash" || kind == "crashloop" || kind == "pause"
}

// flap switches a link, which is down, up and down until the fault ends.
func (s *schedule) flap(f *fault) {
	at := time.Duration(f.At)
	f.lapsed = true // until the first turn
	s.again(func() time.Duration {
		f.lapsed = !f.lapsed
		s.apply()
		if f.lapsed {
			at += time.Duration(f.Up)
		} else {
			at += time.Duration(f.Down)
		}
		return s.within(f, at)
	})
}

// within returns a time if the fault still lasts then, and else 0.
func (s *schedule) within(f *fault, at time.Duration) time.Duration {
	if at >= s.endOf(f) {
		return 0
	}
	return at
}

// crash ends processes, and starts others if they are to come back.
func (s *schedule) crash(f *fault) {
	for _, slot := range f.slots {
		s.run.fleet.crash(slot)
	}
	back := time.Duration(f.At + f.Restart)
	if f.Restart == 0 || back >= time.Duration(s.run.scenario.Length) {
		s.ended(f)
		return
	}
	s.plan(back, func() {
		for _, slot := range f.slots {
			if s.run.fleet.at(slot) == nil { // else another fault has filled the slot
				s.start(slot)
			}
		}
		s.ended(f)
	})
}

// crashLoop ends the same processes again and again, and replaces them each time.
func (s *schedule) crashLoop(f *fault) {
	at := time.Duration(f.At)
	s.again(func() time.Duration {
		for _, slot := range f.slots {
			s.run.fleet.crash(slot)
			s.start(slot)
		}
		at += time.Duration(f.Every)
		return s.within(f, at)
	})
}

// deploy replaces one process after the other, in the order of their slots.
func (s *schedule) deploy(f *fault) {
	slot, n := -1, len(s.run.network.links)
	s.again(func() time.Duration {
		if slot++; slot == n {
			s.ended(f)
			return 0
		}
		if p := s.run.fleet.take(slot); p != nil {
			s.start(slot)
			s.run.fleet.leave(p)
		}
		return s.run.at() + time.Duration(f.Every)
	})
}

// scale adds processes, or shuts some down in good order.
func (s *schedule) scale(f *fault) {
	for slot := range max(f.N, len(s.run.network.links)) {
		p := s.run.fleet.at(slot)
		switch {
		case slot < f.N && p == nil:
			s.start(slot)
		case slot >= f.N && p != nil:
			s.run.fleet.take(slot)
			s.run.fleet.leave(p)
		}
	}
}

// start starts a process in a slot.
func (s *schedule) start(slot int) {
	r := s.run
	for len(r.network.links) <= slot {
		r.network.links = append(r.network.links, &link{changed: make(chan struct{})})
	}
	s.connect(slot)
	if err := r.fleet.start(slot); err != nil {
		r.fail(err)
	}
}
