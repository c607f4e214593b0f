package legal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Class says how much is disturbed.
type Class uint8

// The classes.
const (
	Calm      Class = iota // neither the network nor the store is disturbed
	Rough                  // messages are late, lost or repeated, the store may be down, processes crash
	Accidents              // also, the store's clock jumps ahead and buckets are lost: that has a price
)

// Plan is one history of some processes. It can be played any number of times.
type Plan struct {
	Seed      uint64
	Class     Class
	Processes int
	Options   tiered.Options
	Policies  []tiered.Policy // of the processes at the start
	Plans     []bool          // whether a policy has PerKey
	AtOnce    atonce.Policy   // of what runs at the same time; without places there is none
	Trip      time.Duration   // of a message, both ways
	Repeats   bool            // messages may arrive twice; then the clock is not set back: a refund may count once more
	Single    bool            // no request is over several keys or waits, so that all refusals are known
	Warm      time.Duration   // before the first step
	Books     bool            // at the end a new process reads what is left; otherwise an operator resets
	Thin      bool            // for a store whose calls are expensive
	Nodes     int             // of the store at first, whose map has to be found; 0: the one node is known
	Carried   bool            // requests may make calls on their own goroutines, because the store keeps its timeout
	Real      bool            // in real time: as the machine may be busy, disturbances cannot be excluded
	Steps     []Step
}

// Thinned returns a plan with fewer calls, for a store whose calls are expensive.
func (p Plan) Thinned() Plan {
	p.Thin = true
	p.Steps = slices.Clone(p.Steps[:min(len(p.Steps), 30)])
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Verb == Stream || s.Verb == Behind {
			s.N = s.N%20 + 5
		}
	}
	return p
}

// InRealTime returns a thinned plan that takes some seconds of real time.
func (p Plan) InRealTime() Plan {
	p = p.Thinned()
	p.Real, p.Warm = true, 0
	if p.Class == Calm {
		p.Class = Rough
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.After, s.Pause = min(s.After, 60*ms), min(s.Pause, 100*ms); s.Verb == Stream || s.Verb == Behind {
			s.Pause = min(s.Pause, 3*ms)
		}
	}
	return p
}

// Suits reports whether gopher-lua can play a plan. If a table has a numeric key of up to 2^26,
// gopher-lua allocates all places up to it, and the script of a sliding window uses block numbers
// as keys.
func (p Plan) Suits() bool {
	suits := func(all tiered.Limit) bool {
		return !slices.ContainsFunc(all.Each(), func(l tiered.Limit) bool { return precision(l) >= 10*second && precision(l) <= 30*day })
	}
	for _, x := range p.Policies {
		if x.Algorithm == tiered.SlidingWindow && !suits(x.Limit) {
			return false
		}
	}
	return !slices.ContainsFunc(p.Steps, func(s Step) bool {
		return s.Limit.Per > 0 && p.Policies[s.Which].Algorithm == tiered.SlidingWindow && !suits(s.Limit)
	})
}

// Step is one step of a plan. It happens After the one before.
type Step struct {
	Verb            Verb
	After, Pause    time.Duration
	Who, Which, Key int
	N               int
	Limit           tiered.Limit
	Lease           tiered.Lease
	FailMode        tiered.FailMode
}

func (s Step) String() string { return fmt.Sprintf("%v: %s", s.Verb, proof.Code(s)) }

func (v Verb) String() string { return verbs[v].name }

func (c Class) String() string { return [...]string{"calm", "rough", "accidents"}[c] }

func (p Plan) String() string {
	var b strings.Builder
	steps := p.Steps
	p.Steps = nil
	b.WriteString(proof.Code(p) + "\n")
	for i, s := range steps {
		fmt.Fprintf(&b, "%4d %v\n", i, s)
	}
	return b.String()
}

// Draw returns the plan of a seed.
func Draw(seed uint64) Plan {
	d := drawer{rand.New(rand.NewPCG(seed, 17))}
	p := Plan{
		Seed: seed, Class: pick(&d, Calm, Calm, Calm, Rough, Rough, Accidents), Processes: pick(&d, 1, 1, 2, 2, 3),
		Books: d.one(2), Repeats: d.one(4), Single: d.one(4), Carried: mix(seed, 32)%2 == 0,
	}
	p.Options = tiered.Options{
		Budget:  pick(&d, 0, 0, 5*time.Millisecond, 100*time.Millisecond),
		Timeout: pick(&d, 0, 0, 0, 600*time.Millisecond, 3*time.Second),
		MaxKeys: pick(&d, 0, 0, 1, 2, 4),
	}
	if p.Options.Budget == 0 {
		p.Options.Budget = defaults.Budget
	}
	// A microsecond more than Budget: if two timers ended together, the processors would choose.
	p.Options.Timeout = max(p.Options.Timeout, defaults.Timeout, p.Options.Budget+time.Microsecond)
	p.Trip = p.Options.Budget / time.Duration(pick(&d, 20, 50, 100))
	p.Repeats = p.Repeats && p.Class != Calm
	for i := range pick(&d, 1, 1, 2, 3) {
		x := d.policy()
		x.Name = fmt.Sprintf("p%d", i)
		p.Policies = append(p.Policies, x)
		p.Plans = append(p.Plans, single(x.Limit) && d.one(2))
	}
	if slices.ContainsFunc(p.Policies, func(x tiered.Policy) bool { return x.Standing > 0 }) {
		p.Warm = pick(&d, 0, 70*second, 70*second, 100*second) // a new table lends nothing for 65 s
	}
	for range 30 + d.IntN(60) {
		p.Steps = append(p.Steps, d.step(&p))
	}
	p.Options.Processes = pick(&d, 0, 0, 0, 2, 5)
	for i := range kinds {
		kinds[i].add(&p)
	}
	return p
}

// kind is a kind of scenes: some steps that only together make a meeting. Some plans have scenes of
// a kind between their other steps. A kind has random numbers of its own, so the other steps of a
// seed are the same as without it.
type kind struct {
	salt      uint64                          // of its random numbers
	one       int                             // one plan in so many has such scenes
	in        func(p *Plan) bool              // whether a plan can have them; nil: each can
	half      int                             // one of these in so many is made ordinary; 0: all are
	ordinary  func(d *drawer, p *Plan)        // if set, it changes the plan
	few, most int                             // scenes of a plan
	early     bool                            // they come before the store's clock is set, because nothing of them is judged afterwards
	scene     func(d *drawer, p *Plan) []Step // draws one; nil for none this time
}

// kinds has a row for each kind. A row may leave nothing of the rows before it: see Plan.only.
var kinds = [...]kind{
	{salt: 18, one: 3, few: 1, most: 3, scene: (*drawer).reload},
	{salt: 23, one: 1, in: calm, few: 1, most: 3, scene: (*drawer).twoPlans},
	{salt: 34, one: 7, ordinary: (*drawer).listing, most: 3, scene: (*drawer).twoLists},
	{salt: 19, one: 3, half: 3, ordinary: (*drawer).splitting, few: 1, most: 5, scene: (*drawer).charge},
	{salt: 26, one: 3, ordinary: func(d *drawer, p *Plan) { p.Nodes = 1 + d.IntN(3) }, most: 4, scene: (*drawer).move},
	{salt: 20, one: 2, half: 3, ordinary: (*drawer).returning, few: 1, most: 3, early: true, scene: (*drawer).comesBack},
	{salt: 24, one: 6, in: calm, half: 2, ordinary: (*drawer).handing, few: 1, most: 3, early: true, scene: (*drawer).handover},
	{salt: 27, one: 8, in: calm, ordinary: (*drawer).alternating, few: 1, most: 3, early: true, scene: (*drawer).larger},
	{salt: 28, one: 12, in: calm, ordinary: (*drawer).standing, few: 1, most: 3, early: true, scene: (*drawer).stranger},
	{salt: 29, one: 3, few: 1, most: 4, scene: (*drawer).hurry},
	{salt: 30, one: 3, in: rough, half: 2, ordinary: (*drawer).leasing, few: 1, most: 2, scene: (*drawer).far},
	{salt: 33, one: 8, ordinary: (*drawer).quotas, few: 1, most: 3, scene: (*drawer).month},
	{salt: 31, one: 6, in: calm, half: 2, ordinary: (*drawer).amending, few: 1, most: 3, scene: (*drawer).amend},
	{salt: 33, one: 3, ordinary: (*drawer).placing, few: 2, most: 8, scene: (*drawer).enters},
	{salt: 35, one: 6, half: 3, ordinary: (*drawer).leasing, few: 1, most: 3, scene: (*drawer).amids},
	{salt: 36, one: 4, in: rough, half: 3, ordinary: (*drawer).leasing, few: 1, most: 2, scene: (*drawer).pauses},
}

func calm(p *Plan) bool { return p.Class == Calm }

func rough(p *Plan) bool { return p.Class != Calm }

// add puts scenes of a kind into some plans.
func (k *kind) add(p *Plan) {
	d := drawer{rand.New(rand.NewPCG(p.Seed, k.salt))}
	if !d.one(k.one) || k.in != nil && !k.in(p) {
		return
	}
	if k.ordinary != nil && (k.half == 0 || d.one(k.half)) {
		k.ordinary(&d, p)
	}
	for range k.few + d.IntN(k.most-k.few+1) {
		scene, end := k.scene(&d, p), len(p.Steps)
		if set := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Verb == Back || s.Verb == Ahead }); k.early && set >= 0 {
			end = set
		}
		p.Steps = slices.Insert(p.Steps, d.IntN(end+1), scene...)
	}
}

// only makes p a plan of an ordinary policy, with no steps yet.
func (p *Plan) only(c Class, x tiered.Policy) {
	x.Name = "p0"
	p.Class, p.Policies, p.Plans, p.Steps = c, []tiered.Policy{x}, []bool{false}, nil
	p.Repeats, p.Warm = p.Repeats && c != Calm, 0
}

const (
	ms     = time.Millisecond
	second = time.Second
	day    = 24 * time.Hour
	year   = 365 * day
)

// drawer draws what validation accepts.
type drawer struct{ *rand.Rand }

// pick returns one of several values, each equally likely.
func pick[T any](d *drawer, from ...T) T { return from[d.IntN(len(from))] }

// one returns true one time in n.
func (d *drawer) one(n int) bool { return d.IntN(n) == 0 }

// valid reports whether validation accepts a policy.
func valid(p tiered.Policy) bool { return p.Validate() == nil }

// Algorithms are those that are drawn. A history knows what each promises.
var Algorithms = []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingLog, tiered.SlidingWindow}

// policy draws policies until one is valid.
func (d *drawer) policy() tiered.Policy {
	for {
		p := tiered.Policy{
			Name: "p", Algorithm: pick(d, Algorithms...), FailMode: tiered.FailMode(d.IntN(3)),
			Lease: d.lease(),
		}
		p.Calendar = p.Algorithm == tiered.FixedWindow && d.one(2)
		p.Limit = d.limit(p.Algorithm)
		for range pick(d, 0, 0, 0, 0, 1, 1, 2, 7) {
			if p.Algorithm == tiered.TokenBucket || p.Algorithm == tiered.SlidingWindow {
				p.Limit = p.Limit.And(d.limit(p.Algorithm))
			}
		}
		if p.Algorithm == tiered.TokenBucket {
			p.MaxDebt = pick(d, 0, 0, d.tokens())
		}
		if valid(p) {
			return d.withStanding(p)
		}
	}
}

// withStanding returns p, and often with standing shares if it may have them.
func (d *drawer) withStanding(p tiered.Policy) tiered.Policy {
	with := p
	with.Standing = pick(d, 0, 1./8, 1./8, 1./2, float64(1+d.IntN(6))/8)
	if valid(with) {
		return with
	}
	return p
}

func (d *drawer) lease() tiered.Lease {
	none := tiered.Lease{Size: tiered.NoLease}
	return pick(d, tiered.Lease{}, tiered.Lease{}, none, none, tiered.Lease{Size: 1},
		tiered.Lease{Size: int64(1 + d.IntN(30))},
		tiered.Lease{Period: 5 * ms}, tiered.Lease{Period: time.Minute})
}

// tokens returns a number that is usually small, so that errors show.
func (d *drawer) tokens() int64 {
	return pick(d, int64(1), 2, 3, 5, 10, 10, 30, 50, 100, 100, 400, 1000, 10_000, 1<<20, 1<<40)
}

// per returns a time from a microsecond to the longest, usually one that ends within a plan.
func (d *drawer) per() time.Duration {
	return pick(d, time.Microsecond, 7*time.Microsecond, ms, 20*ms, 100*ms, 300*ms, 500*ms, 750*ms, second, second,
		2*second, 5*second, 30*second, time.Minute, time.Minute, time.Hour, time.Hour, day, day, 30*day, year,
		10*year, 40*year, 100*year)
}

// single reports whether l is one limit.
func single(l tiered.Limit) bool { return len(l.Each()) == 1 }

func (d *drawer) limit(a tiered.Algorithm) tiered.Limit {
	l := tiered.Limit{Tokens: d.tokens(), Per: d.per()}
	switch a {
	case tiered.TokenBucket:
		l.Burst = pick(d, 0, 0, 1, d.tokens(), d.tokens())
	case tiered.SlidingWindow:
		l.Precision = d.precision(l.Per)
	}
	return l
}

func (d *drawer) precision(per time.Duration) time.Duration {
	return pick(d, 0, 0, per, per/2, per/7, per/100, per/500).Truncate(time.Microsecond)
}

// another draws a limit that may replace p's by SetPolicy, PerKey or a deploy.
func (d *drawer) another(p tiered.Policy) tiered.Limit {
	for {
		next := p
		l := &next.Limit
		if d.one(6) {
			*l = pick(d, tiered.Unlimited(), tiered.Blocked())
			if valid(next) && single(p.Limit) {
				return *l
			}
			continue
		}
		switch n := d.IntN(8); {
		case n < 3: // another number
			l.Tokens = max(l.Tokens*pick(d, int64(2), 4, 100, 1000)/pick(d, int64(1), 8, 20, 10_000), 1)
		case n < 5 && p.Algorithm == tiered.TokenBucket:
			l.Burst = d.tokens()
		case n < 7 && p.Algorithm == tiered.TokenBucket && single(p.Limit):
			if l.Burst == 0 {
				l.Burst = l.Tokens
			}
			l.Tokens, l.Per = d.tokens(), d.per()
		case p.Algorithm == tiered.SlidingWindow:
			if d.one(2) {
				l.Per = d.per()
			}
			l.Precision = d.precision(l.Per)
		default:
			l.Tokens = d.tokens()
		}
		if valid(next) {
			return next.Limit
		}
	}
}

// rule draws a result of PerKey.
func (d *drawer) rule(p tiered.Policy) tiered.Limit {
	if d.one(2) {
		return pick(d, tiered.Unlimited(), tiered.Blocked())
	}
	if d.one(2) {
		return tiered.Limit{}
	}
	if !single(p.Limit) {
		return d.others(p)
	}
	p.MaxDebt = 0 // a larger burst is the key's MaxDebt
	return d.another(p)
}

// after returns the pause before a step: almost none, or as long as something takes that the
// limiter does.
func (d *drawer) after(per time.Duration) time.Duration {
	most := pick(d, 0, 0, ms, 20*ms, 20*ms, 300*ms, 300*ms, 2*second, min(per, 20*second), min(2*per, 30*second))
	if d.one(60) {
		most = 20 * time.Minute
	}
	return time.Duration(d.Int64N(int64(most)+1)) / 1000 * 1000
}
