package adversary

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Scope is the size of a world and the rules that hold in it.
type Scope struct {
	Name string

	Algorithm lua.Algorithm
	Bursts    []int64       // that the processes use, one each; the bound is that of the largest
	Tokens    int64         // refilled per Per; a window holds its burst, whatever this is
	Per       time.Duration // of a window, its length
	Block     time.Duration // of a sliding window, a whole part of Per
	Phase     time.Duration // where fixed windows begin

	// Versions are the windows of the processes, one each, if they differ in more than their bursts. If it is nil, all
	// have Per and Block.
	Versions []version

	Also  []lua.Limit // limits of all processes beside the first
	Later []lua.Limit // limits that come with Deploy

	Slower    bool          // every other process has half of the rate
	MaxDebt   int64         // how far below zero a token bucket may go, if that is more than its burst
	Size      int64         // of a lease; 0 follows demand
	NoLease   bool          // direct takes only
	Period    time.Duration // how long a lease should last
	Timeout   time.Duration // of a call; leases live for at least twice as long
	FailMode  local.FailMode
	Drift     float64 // by this part the clock of every other process is slow, and the others' fast
	FleetSize int64   // number of processes that a process assumes; 0: the real one
	Warm      bool    // demand is high from the start, so that the first call leases

	// Lossless means that no lease ends and no process crashes. In the end not one token may be missing.
	Lossless bool

	Prelude []Action // actions at the start of every schedule
	Actions []Action // what a choice chooses from; an action that comes twice is twice as likely
}

// version is the length of a sliding window, and of its blocks.
type version struct{ per, block time.Duration }

// defaultRoundTrip is the round trip that processes assume at first. A request that gives up sooner makes no call.
const defaultRoundTrip = 10 * time.Millisecond

func (s *Scope) burst() int64 {
	most := int64(0)
	for _, b := range s.Bursts {
		most = max(most, b)
	}
	return most
}

func (s *Scope) fleetSize() int64 {
	if s.FleetSize > 0 {
		return s.FleetSize
	}
	return int64(len(s.Bursts))
}

// limits returns those of process i, with or without those of a deploy.
func (s *Scope) limits(i int, later bool) []lua.Limit {
	per, block, tokens := s.Per, s.Block, s.Tokens
	if s.Versions != nil {
		per, block = s.Versions[i].per, s.Versions[i].block
	}
	switch {
	case !s.Slower || i%2 == 1:
	case s.Algorithm == lua.TokenBuckets: // which are named by their periods
		tokens /= 2
	default:
		per *= 2
	}
	first := lua.Limit{Cap: s.Bursts[i], Tokens: tokens, Period: per.Microseconds()}
	if s.Algorithm == lua.SlidingWindow {
		first.Period, first.Span = block.Microseconds(), int64(per/block)+1
	}
	all := append([]lua.Limit{first}, s.Also...)
	if later {
		all = append(all, s.Later...)
	}
	return all
}

// commonLimit returns the bound that all versions keep together: in any interval as long as the shortest of their
// limits, what the largest of them allows.
func (s *Scope) commonLimit() (all lua.Limit) {
	for i := range s.Bursts {
		allows := int64(1) << 40
		for _, l := range s.limits(i, false) {
			allows = min(allows, l.Cap)
			if all.Span == 0 || s.length(l) < s.length(all) {
				all.Period, all.Span = l.Period, l.Span
			}
		}
		all.Cap = max(all.Cap, allows)
	}
	return all
}

// length returns that of a window, or the time in which a bucket refills its tokens.
func (s *Scope) length(l lua.Limit) time.Duration {
	blocks := int64(1)
	if s.Algorithm == lua.SlidingWindow {
		blocks = l.Span - 1
	}
	return time.Duration(blocks*l.Period) * time.Microsecond
}

// policy returns that of process i.
func (s *Scope) policy(i int, later bool, uniform func() float64) *local.Policy {
	limits := s.limits(i, later)
	c := lua.Call{
		Algorithm: s.Algorithm, Cap: limits[0].Cap, Tokens: limits[0].Tokens, Period: limits[0].Period,
		Span:  limits[0].Span,
		Phase: s.Phase.Microseconds(), Also: limits[1:], MaxDebt: s.MaxDebt, TTL: s.longestLease().Microseconds(), Fleet: 1,
	}
	p := &local.Policy{
		Call: c, Cap: limits[0].Cap,
		Size: s.Size, Period: s.Period, NoLease: s.NoLease, FailMode: s.FailMode,
		Budget:  2 * s.Timeout, // longer than any product would wait, so that waiters meet replies of every age
		Timeout: s.Timeout, Uniform: uniform,
	}
	if s.Versions != nil && s.Versions[i].per < s.longestLease() {
		p.NoLease = true // tokens would be in leases for longer than they count
	}
	p.Unleased = p.NoLease && s.Algorithm == lua.SlidingWindow
	if len(limits) > 1 {
		p.First = local.Numbers{Cap: limits[0].Cap, Tokens: limits[0].Tokens, Per: s.length(limits[0])}
		if s.windows() {
			p.First.Tokens = limits[0].Cap
		}
	}
	for _, l := range limits { // the smallest burst and the slowest refill: on the safe side of each
		tokens, per := l.Tokens, s.length(l)
		if s.windows() {
			tokens = l.Cap
		}
		p.Cap = min(p.Cap, l.Cap)
		if p.Per == 0 || float64(tokens)/float64(per) < float64(p.Tokens)/float64(p.Per) {
			p.Tokens, p.Per = tokens, per
		}
	}
	return p
}

// windows reports whether the algorithm counts in windows. A refund undoes an admission then.
func (s *Scope) windows() bool {
	return s.Algorithm == lua.FixedWindow || s.Algorithm == lua.SlidingWindow
}

// longestLease returns the longest life of a lease, whatever the policy makes of the scope.
func (s *Scope) longestLease() time.Duration {
	return max(16*s.Period, 2*s.Timeout, time.Second)
}

// untilFull returns the time from the deepest debt to a full bucket, or until nothing counts.
func (s *Scope) untilFull() time.Duration {
	longest := time.Duration(0)
	for i := range s.Bursts {
		for _, l := range s.limits(i, true) {
			d := 2 * float64(s.length(l))
			if !s.windows() {
				d *= float64(l.Cap+max(l.Cap, s.MaxDebt)+1) / float64(l.Tokens)
			}
			longest = max(longest, time.Duration(min(d, float64(time.Hour*24*365))))
		}
	}
	return longest + 2*time.Second
}
