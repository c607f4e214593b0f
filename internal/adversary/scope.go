package adversary

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Scope is the size of a world and the rules that hold in it.
type Scope struct {
	Name string

	Bursts   []int64 // that the processes believe in, one each; the bound is that of the largest
	Tokens   int64   // refilled per Per
	Per      time.Duration
	Slower   bool          // every other process believes in half of that
	Size     int64         // of a lease; 0 follows demand
	NoLease  bool          // direct takes only
	Period   time.Duration // how long a lease should last
	Timeout  time.Duration // of a call; leases live for at least twice as long
	FailMode local.FailMode
	Drift    float64 // by this part the clock of every other process is slow, and the others' fast
	Fleet    int64   // processes that a process believes in; 0: as many as there are
	Warm     bool    // the demand is known to be high from the start, so that the first call leases

	// Books says that no lease ends and nobody crashes, so that in the end not a single token may be missing.
	Books bool

	Prelude []Action // what happens first, in every schedule
	Actions []Action // what a choice chooses from; an action that comes twice is twice as likely
}

// trip is the round trip that processes believe in at first: what is about to give up within one is not asked for.
const trip = 10 * time.Millisecond

func (s *Scope) burst() int64 {
	most := int64(0)
	for _, b := range s.Bursts {
		most = max(most, b)
	}
	return most
}

func (s *Scope) fleet() int64 {
	if s.Fleet > 0 {
		return s.Fleet
	}
	return int64(len(s.Bursts))
}

// policy is process i's.
func (s *Scope) policy(i int, uniform func() float64) *local.Policy {
	per := s.Per
	if s.Slower && i%2 == 0 {
		per *= 2
	}
	return &local.Policy{
		Cap: s.Bursts[i], Tokens: s.Tokens, Per: per,
		Size: s.Size, Period: s.Period, NoLease: s.NoLease, FailMode: s.FailMode,
		Budget:  2 * s.Timeout, // longer than any product would wait: so that those in line meet replies of every age
		Timeout: s.Timeout, Uniform: uniform,
	}
}

// longestLease is how long a lease lives at most, whatever the policy makes of the scope.
func (s *Scope) longestLease() time.Duration {
	return max(16*s.Period, 2*s.Timeout, time.Second)
}

// untilFull is how long a bucket takes from the deepest debt to full.
func (s *Scope) untilFull() time.Duration {
	d := float64(2*s.burst()+1)*float64(2*s.Per)/float64(s.Tokens) + float64(2*time.Second)
	return time.Duration(min(d, float64(time.Hour*24*365)))
}
