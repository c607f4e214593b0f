package adversary

import (
	"slices"
	"strings"
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

	// Versions are the windows of the processes, one each, if they differ in more than their
	// bursts. If it is nil, all have Per and Block.
	Versions []version

	Also  []lua.Limit // limits of all processes beside the first; with Cross every other one has more of them
	Later []lua.Limit // limits that come with Deploy

	Slower    bool          // every other process has half of the rate
	Cross     bool          // and a larger burst and rate of further limits, if it has those
	MaxDebt   int64         // how far below zero a token bucket may go, if that is more than its burst
	Size      int64         // of a lease; 0 follows demand
	NoLease   bool          // direct takes only
	Period    time.Duration // how long a lease should last
	Timeout   time.Duration // of a call; leases live for at least twice as long
	FailMode  local.FailMode
	Drift     float64 // by this part the clock of every other process is slow, and the others' fast
	FleetSize int64   // number of processes that a process assumes; 0: the real one
	Warm      bool    // demand is high from the start, so that the first call leases

	// Lossless means that no lease ends and no process crashes. In the end not one token may be
	// missing.
	Lossless bool

	Prelude []Action // actions at the start of every schedule
	Actions []Action // what a choice chooses from; an action that comes twice is twice as likely
}

// version is the length of a sliding window, and of its blocks.
type version struct{ per, block time.Duration }

// defaultRoundTrip is the round trip that processes assume at first. A request that gives up sooner
// makes no call.
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
	for j := 1; s.Cross && i%2 == 1 && j < len(all); j++ {
		all[j].Cap, all[j].Tokens = all[j].Cap+5, 2*all[j].Tokens
	}
	if later {
		all = append(all, s.Later...)
	}
	return all
}

// commonLimit returns the bound that all versions keep together: in any interval as long as the
// shortest of their limits, what the largest of them allows.
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
		for _, l := range limits {
			n := local.Numbers{Cap: l.Cap, Tokens: l.Tokens, Per: s.length(l)}
			if s.windows() {
				n.Tokens = l.Cap
			}
			p.Each = append(p.Each, n)
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

const second = time.Second

// Algorithms are those that are played, in the order of reports.
func Algorithms() []lua.Algorithm {
	return []lua.Algorithm{lua.TokenBucket, lua.TokenBuckets, lua.FixedWindow, lua.SlidingWindow}
}

// Scopes are the worlds of random schedules. They differ in what could hide a mistake: how large
// the burst is beside a lease, how many processes there are, whether tokens come back, who decides
// when Redis does not answer.
func Scopes(a lua.Algorithm) []*Scope {
	scopes := []*Scope{
		{Name: "one process", Bursts: []int64{2}, Tokens: 1, Per: second},
		{Name: "two processes, cold", Bursts: []int64{4, 4}, Tokens: 2, Per: second},
		{Name: "two processes", Bursts: []int64{9, 9}, Tokens: 2, Per: second, Warm: true},
		{Name: "three processes", Bursts: []int64{21, 21, 21}, Tokens: 5, Per: 2 * second, Warm: true},
		{
			Name: "odd rate, clocks 0.9 % off", Bursts: []int64{16, 16}, Tokens: 7, Per: 3 * second, Warm: true,
			Drift: 0.009,
		},
		{Name: "two limits", Bursts: []int64{5, 16}, Tokens: 2, Per: second, Warm: true},
		{Name: "two rates", Bursts: []int64{9, 9}, Tokens: 4, Per: second, Slower: true, Warm: true},
		{Name: "two limits that cross", Bursts: []int64{30, 5}, Tokens: 4, Per: second, Slower: true, Cross: true, Warm: true},
		{Name: "leases of three", Bursts: []int64{12, 12}, Tokens: 1, Per: second, Size: 3, Warm: true},
		{Name: "direct only", Bursts: []int64{3, 3}, Tokens: 1, Per: second, NoLease: true},
		{Name: "ends", Bursts: []int64{16}, Tokens: 9, Per: second, Warm: true},
		{Name: "ends, two", Bursts: []int64{24, 24}, Tokens: 11, Per: second, Warm: true, Drift: 0.009},
		{Name: "accidents", Bursts: []int64{9, 9}, Tokens: 2, Per: second, Warm: true},
		{Name: "accidents, cold", Bursts: []int64{4, 4, 4}, Tokens: 2, Per: second},
		{Name: "slow leases", Bursts: []int64{16, 16}, Tokens: 1, Per: 4 * second, Period: 2 * second, Warm: true},
	}
	if a.Has(lua.Several) {
		scopes = append(scopes, &Scope{Name: "two lists that cross", Bursts: []int64{16, 9}, Tokens: 4, Per: second, Cross: true, Warm: true})
	}
	if a.Has(lua.Window) { // windows have no rate
		scopes = slices.DeleteFunc(scopes, func(s *Scope) bool { return s.Slower })
	}
	for _, s := range scopes {
		s.everyday(0)
		if strings.HasPrefix(s.Name, "two limits") || s.Slower || s.Cross { // until the larger one governs no more
			s.Actions = append(s.Actions, times(4, Action{Wait, 0, 450}, Action{Wait, 0, 1000})...)
		}
		if strings.HasPrefix(s.Name, "accidents") {
			s.Actions = append(s.Actions, Action{Forward, 0, 700}, Action{Vanish, 0, 0})
		}
		if strings.HasPrefix(s.Name, "ends") {
			s.Prelude, s.Actions = lateRenewal(len(s.Bursts)), ends(len(s.Bursts))
		}
	}
	fallbacks := []*Scope{
		{Name: "fallback", Bursts: []int64{6, 6, 6}, Tokens: 2, Per: second, FailMode: local.FailLocal},
		{Name: "fallback, one", Bursts: []int64{4}, Tokens: 1, Per: second, FailMode: local.FailLocal},
		{Name: "open", Bursts: []int64{4, 4}, Tokens: 1, Per: second, FailMode: local.FailOpen},
	}
	if !a.Has(lua.Window) {
		fallbacks = append(fallbacks,
			&Scope{Name: "deep debt", Bursts: []int64{4, 4}, Tokens: 2, Per: second, FailMode: local.FailOpen, MaxDebt: 30})
	}
	for _, s := range fallbacks {
		s.Actions = append(everything(len(s.Bursts), s.burst()), outages(len(s.Bursts))...)
		if s.MaxDebt > 0 {
			s.Actions = append(s.Actions, times(9, Action{Owe, 0, 9}, Action{Owe, 1, 40})...)
		}
	}
	losslessScopes := []*Scope{
		{Name: "lossless", Bursts: []int64{8, 8}},
		{Name: "lossless, one", Bursts: []int64{5}},
		{Name: "lossless, fallback", Bursts: []int64{24, 24}, FailMode: local.FailLocal, FleetSize: 16},
	}
	for _, s := range losslessScopes {
		if s.FailMode == 0 && s.Name != "lossless, fallback" {
			s.FailMode, s.Warm = local.FailClosed, true
		}
		// No refill to speak of, and leases that outlive everything.
		s.Lossless, s.Tokens, s.Per, s.Period, s.Timeout = true, 1, 1e6*time.Hour, 1000*second, 500*second
		s.Actions = lossless(len(s.Bursts), s.burst())
	}
	scopes = append(scopes, deploys(a)...)
	if a == lua.SlidingWindow {
		scopes = append(scopes, versions()...)
	}
	scopes = append(append(scopes, fallbacks...), losslessScopes...)
	for _, s := range scopes {
		if s.Period == 0 {
			s.Period = 250 * time.Millisecond
		}
		if s.Timeout == 0 {
			s.Timeout = 600 * time.Millisecond
		}
		s.count(a)
	}
	return scopes
}

// deploys are worlds in which limits change while leases are out, and one more comes if there may
// be several.
func deploys(a lua.Algorithm) []*Scope {
	all := []*Scope{
		{Name: "deploy", Bursts: []int64{5, 16}, Tokens: 2, Per: second, Warm: true},
		{Name: "deploy, three", Bursts: []int64{12, 6, 9}, Tokens: 3, Per: second, Warm: true},
	}
	if !a.Has(lua.Window) {
		all = append(all,
			&Scope{Name: "deploy, two rates", Bursts: []int64{9, 9}, Tokens: 4, Per: second, Slower: true, Warm: true},
			&Scope{
				Name: "deploy, rates and bursts", Bursts: []int64{16, 5, 9}, Tokens: 4, Per: second, Slower: true, Cross: true,
				Warm: true,
			},
			&Scope{Name: "deploy, direct", Bursts: []int64{3, 9}, Tokens: 2, Per: second, Slower: true, NoLease: true})
	}
	for _, s := range all {
		s.everyday(2)
		if a == lua.TokenBucket {
			continue
		}
		s.Later = []lua.Limit{{Cap: 7, Tokens: 1, Period: 1500e3, Span: 5}}
		s.Actions = append(s.Actions, times(2, Action{Deploy, 0, 0})...)
	}
	return all
}

// versions are worlds in which the processes' sliding windows differ in length and precision, and
// change to those of other processes.
func versions() []*Scope {
	const ms = time.Millisecond
	all := []*Scope{
		{
			Name: "versions, precision", Bursts: []int64{9, 9},
			Versions: []version{{4 * second, second}, {4 * second, 500 * ms}},
		},
		{
			Name: "versions, length", Bursts: []int64{8, 12},
			Versions: []version{{4 * second, second}, {6 * second, 1500 * ms}},
		},
		{
			Name: "versions, three", Bursts: []int64{12, 9, 7},
			Versions: []version{{4 * second, second}, {5 * second, second}, {500 * ms, 125 * ms}},
		},
	}
	for _, s := range all {
		s.Warm = true
		s.everyday(3)
	}
	return all
}

// everyday makes it a scope of a demand that is often high, in which each process is so often told
// each limit.
func (s *Scope) everyday(changes int) {
	s.FailMode, s.Actions = local.FailClosed, everything(len(s.Bursts), s.burst())
	for p := range s.Bursts {
		s.Actions = append(s.Actions, times(8, Action{Rush, p, 0})...)
		for n := range s.Bursts {
			s.Actions = append(s.Actions, times(changes, Action{Change, p, n})...)
		}
	}
}

// count makes the scope one of an algorithm. Windows are shorter than what a schedule lasts and a
// message may take, and hold several lives of a lease at most.
func (s *Scope) count(a lua.Algorithm) {
	s.Algorithm = a
	if s.Lossless && a != lua.TokenBucket {
		s.Per = 1e5 * time.Hour // the scripts of the others know no longer one
		s.Block = s.Per / 2
		if s.windows() { // one that is full forgives debts
			s.FailMode, s.Warm = local.FailClosed, true
			s.Actions = slices.DeleteFunc(s.Actions, func(x Action) bool { return x.Verb == Owe })
		}
		return
	}
	several := len(s.Bursts) > 1
	switch a {
	default:
		panic("adversary: no scopes of a " + a.String())
	case lua.TokenBucket:
	case lua.TokenBuckets:
		s.Also = []lua.Limit{{Cap: s.burst() + 2, Tokens: 7, Period: 10e6}}
		if strings.HasPrefix(s.Name, "ends") { // what a lease's room refills while it lives must be tokens in each
			s.Also = []lua.Limit{{Cap: s.burst() + 2, Tokens: 2 * s.Tokens, Period: 2 * s.Per.Microseconds()}}
		}
	case lua.FixedWindow:
		s.Per, s.Later = 2*second, nil
		if several {
			s.Per, s.Phase = 1500*time.Millisecond, 700*time.Millisecond
		}
	case lua.SlidingWindow:
		if s.Per = s.longestLease(); s.NoLease { // else tokens would lie in leases for longer than they count
			s.Per /= 8 // a call that settles says the life of a lease all the same
		}
		s.Block = s.Per / 4
		if several {
			s.Also = []lua.Limit{{Cap: s.burst() + 2, Period: s.Block.Microseconds() * 2, Span: 5}}
		}
	}
}

// times repeats an action: so much more likely it is.
func times(n int, as ...Action) (all []Action) {
	for range n {
		all = append(all, as...)
	}
	return all
}

// work is what happens every day, in each process and on the wire.
func work(processes int, burst int64) (all []Action) {
	for p := range processes {
		all = append(all, times(6, Action{Ask, p, 1}, Action{Send, p, 0})...)
		all = append(all, times(2, Action{Ask, p, 2}, Action{Look, p, 0}, Action{Cancel, p, -1})...)
		all = append(all,
			Action{Ask, p, int(burst)}, Action{Leave, p, 0}, Action{Cancel, p, 0}, Action{Trim, p, -1},
			Action{Send, p, -1}, Action{Probe, p, 0}, Action{Evict, p, 0}, Action{GiveUp, p, 0})
	}
	all = append(all, times(4*processes, Action{Flow, 0, 0}, Action{Execute, 0, 0}, Action{Deliver, 0, 0})...)
	all = append(all, times(2*processes, Action{Execute, 0, -1}, Action{GiveUp, 0, 0})...) // the last one overtakes
	return append(all,
		Action{Execute, 0, 1}, Action{Repeat, 0, 0}, Action{Repeat, 0, -1}, Action{Lose, 0, 0},
		Action{Deliver, 0, -1}, Action{Deliver, 0, 1}, Action{Echo, 0, 0}, Action{Echo, 0, -1}, Action{Cut, 0, 0},
		Action{Outsider, 0, 1}, Action{Outsider, 0, 0})
}

// everything is work and all that may befall it at no price. Accidents have a price (see concede),
// and where one may happen less can be asked of the rest: they have scopes of their own.
func everything(processes int, burst int64) []Action {
	all := times(3, work(processes, burst)...)
	for p := range processes {
		all = append(all, times(3, Action{ReadClock, p, 0}, Action{AskStale, p, 1}, Action{Owe, p, 1})...)
		all = append(all, Action{Drop, p, 0}, Action{Suspend, p, 0}, Action{Guess, p, -1}, Action{Guess, p, 1},
			Action{Lag, p, 10}, Action{Lag, p, 800})
	}
	all = append(all, times(4, Action{Wait, 0, 1}, Action{Wait, 0, 3}, Action{Wait, 0, 10}, Action{Edge, 0, 0})...)
	return append(all,
		Action{Wait, 0, 25}, Action{Wait, 0, 60}, Action{Edge, 0, -1},
		Action{Burn, processes - 1, 0}, Action{Crash, 0, 0}, Action{Crash, processes - 1, 0},
		Action{Reset, 0, 0}, Action{Give, processes - 1, 2}, Action{Back, 0, 400}, Action{Back, 0, 3000})
}

// ends makes calls around the end of a lease, and little else.
func ends(processes int) (all []Action) {
	for p := range processes {
		all = append(all, times(2, Action{Ask, p, 1}, Action{Probe, p, 0}, Action{Send, p, 0}, Action{Rush, p, 0})...)
		all = append(all, Action{Evict, p, 0}, Action{GiveUp, p, 0}, Action{Lag, p, 800})
	}
	return append(all, times(processes, Action{Flow, 0, 0}, Action{Execute, 0, 0}, Action{Execute, 0, 0},
		Action{Deliver, 0, 0}, Action{Deliver, 0, 0}, Action{Edge, 0, 0}, Action{Wait, 0, 3}, Action{Wait, 0, 10},
		Action{Outsider, 0, 0})...)
}

// lateRenewal is a lease that has nearly ended, and a renewal on its way.
func lateRenewal(processes int) []Action {
	all := []Action{{Flow, 0, 0}, {Wait, 0, 20}}
	for p := range processes {
		all = append(all, Action{Rush, p, 0}, Action{Probe, p, 0}, Action{Send, p, 0})
	}
	return all
}

// outages are actions after which processes decide by the fail mode.
func outages(processes int) (all []Action) {
	for p := range processes {
		all = append(all, times(6, Action{Ask, p, 1})...)
		all = append(all, times(4, Action{Drop, p, 0}, Action{GiveUp, p, 0})...)
		all = append(all, times(2, Action{Probe, p, 0})...)
	}
	return all
}

// lossless are actions after which no token may be missing: no lease ends, no process crashes.
func lossless(processes int, burst int64) []Action {
	all := work(processes, burst)
	for p := range processes {
		all = append(all, Action{Owe, p, 1}, Action{Drop, p, 0}, Action{Evict, p, 0}, Action{Guess, p, -1},
			Action{Guess, p, 0})
	}
	return append(all, Action{Wait, 0, 0})
}
