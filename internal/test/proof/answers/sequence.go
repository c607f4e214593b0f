package answers

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const (
	ms     = time.Millisecond
	second = time.Second
)

// Sequence is what some processes do, one step after the other. It can be played any number of
// times.
type Sequence struct {
	Seed      uint64
	Processes int
	Policies  []tiered.Policy // without PerKey
	Rules     []rules         // what PerKey returns, by policy; nil is no PerKey
	Budget    time.Duration
	MaxKeys   int
	Fleet     int     // Options.Processes
	Random    float64 // every jitter
	Traced    bool    // a hook gets the decisions
	Steps     []Step
}

// rules are limits of single keys.
type rules = map[string]tiered.Limit

var keys = [...]string{"a", "b"}

// Step is one step of a sequence. It happens After the one before.
type Step struct {
	Verb            Verb
	After, Pause    time.Duration
	Who, Which, Key int
	N               int64 // tokens
	Pick            int   // a choice
	Empty           bool  // AllowN until it is refused comes first
	Limit           tiered.Limit
	By              by
	Costs           []int64 // of a crowd
}

// by says by what limit a request goes.
type by uint8

const (
	byKey   by = iota // that of its key
	byLimit           // Limit
	byPlan            // that of a plan
)

// plan is the plan of policies that have one.
const plan = "plan"

type drawer struct{ *rand.Rand }

// Algorithms are those that are drawn.
var Algorithms = []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingLog, tiered.SlidingWindow}

func pick[T any](d drawer, from ...T) T { return from[d.IntN(len(from))] }

// Draw returns the sequence of a seed.
func Draw(seed uint64) Sequence {
	d := drawer{rand.New(rand.NewPCG(seed, 39))}
	s := Sequence{
		Seed: seed, Processes: pick(d, 1, 1, 2, 3), Budget: pick(d, 20*ms, 20*ms, 5*ms), MaxKeys: pick(d, 100, 100, 100, 1, 2, 4),
		Fleet: pick(d, 1, 1, 2), Random: pick(d, 0, 0.5, 0.999), Traced: d.IntN(3) == 0,
	}
	names := []string{"p", "q"}
	for _, name := range names[:pick(d, 1, 1, 2)] {
		p, r := d.policy(name)
		s.Policies, s.Rules = append(s.Policies, p), append(s.Rules, r)
	}
	s.calendars(drawer{rand.New(rand.NewPCG(seed, 56))})
	s.lists(drawer{rand.New(rand.NewPCG(seed, 57))})
	outages := d.IntN(3) == 0
	for range 5 + d.IntN(25) {
		x := d.step(&s, outages)
		s.Steps = append(s.Steps, x)
		switch x.Verb { // what is told soon afterwards
		case Change, Rule, Carry, Charge, Settle, Cancel:
			if d.IntN(2) == 0 {
				y := d.step(&s, outages)
				y.Verb, y.By, y.Limit = pick(d, Back, Back, Look, Each, Scout, Charge), x.By, x.Limit
				y.N = max(y.N, 1)
				y.After, y.Who, y.Which, y.Key = pick(d, 0, ms, 30*ms, second), x.Who, x.Which, x.Key
				if y.Verb != Back {
					y.By = byKey
				}
				s.Steps = append(s.Steps, y)
			}
		}
	}
	return s
}

// calendars makes days of the calendar of the windows of some policies.
func (s *Sequence) calendars(d drawer) {
	for i := range s.Policies {
		if p := &s.Policies[i]; p.Algorithm == tiered.FixedWindow && d.IntN(3) == 0 {
			day := func(l tiered.Limit) tiered.Limit {
				if l.Per > 0 { // not Unlimited or Blocked
					l = tiered.PerDay(l.Tokens).In(pick(d, "UTC", "Etc/GMT-1", "Etc/GMT+11"))
				}
				return l
			}
			p.Calendar, p.Standing, p.Limit = false, 0, day(p.Limit)
			for name, l := range p.Plans {
				p.Plans[name] = day(l)
			}
			for key, l := range s.Rules[i] {
				s.Rules[i][key] = day(l)
			}
		}
	}
}

// lists gives some policies with several limits a plan and a key with as many.
func (s *Sequence) lists(d drawer) {
	for i := range s.Policies {
		p := &s.Policies[i]
		if !several(p.Limit) || d.IntN(2) == 0 {
			continue
		}
		if d.IntN(3) > 0 {
			p.Plans = map[string]tiered.Limit{plan: d.like(*p)}
		} else {
			s.Rules[i] = rules{keys[d.IntN(2)]: d.like(*p)}
		}
	}
}

// like returns as many limits as a policy has, of the same times, with other numbers.
func (d drawer) like(p tiered.Policy) tiered.Limit {
	for {
		each := p.Limit.Each()
		for i := range each {
			l := d.limit(p.Algorithm)
			each[i].Tokens, each[i].Burst = l.Tokens, l.Burst
		}
		if l := each[0].And(each[1:]...); p.CheckLimit(l) == nil {
			return l
		}
	}
}

func (d drawer) policy(name string) (tiered.Policy, rules) {
	for {
		p := tiered.Policy{
			Name: name, Algorithm: pick(d, Algorithms...), FailMode: tiered.FailMode(d.IntN(3)), Shadow: d.IntN(10) == 0,
			Lease: pick(d, tiered.Lease{}, tiered.Lease{}, tiered.Lease{Size: tiered.NoLease}, tiered.Lease{Size: 1},
				tiered.Lease{Size: 5}, tiered.Lease{Period: 5 * ms}, tiered.Lease{Period: 2 * second}),
		}
		p.Limit = d.limit(p.Algorithm)
		p.Calendar = p.Algorithm == tiered.FixedWindow && d.IntN(2) == 0
		var r rules
		switch several := p.Algorithm == tiered.TokenBucket || p.Algorithm == tiered.SlidingWindow; {
		case several && d.IntN(3) == 0:
			for range pick(d, 1, 1, 2) {
				p.Limit = p.Limit.And(d.limit(p.Algorithm))
			}
		case d.IntN(5) == 0:
			l := d.limit(p.Algorithm)
			if p.Algorithm == tiered.FixedWindow || p.Algorithm == tiered.SlidingLog {
				l.Per = p.Limit.Per
			}
			r = rules{keys[d.IntN(2)]: pick(d, l, l, tiered.Unlimited(), tiered.Blocked())}
		}
		if r == nil && !several(p.Limit) && d.IntN(3) == 0 {
			l := d.limit(p.Algorithm)
			if p.Algorithm != tiered.TokenBucket && p.Algorithm != tiered.SlidingWindow {
				l.Per = p.Limit.Per
			}
			p.Plans = map[string]tiered.Limit{plan: l}
		}
		if p.Algorithm == tiered.TokenBucket {
			p.MaxDebt = pick[int64](d, 0, 0, 5000)
		}
		if (p.Algorithm == tiered.TokenBucket || p.Algorithm == tiered.FixedWindow) && d.IntN(4) == 0 {
			p.Standing = 1.0 / 8
		}
		if p.Validate() == nil {
			return p, r
		}
	}
}

func (d drawer) limit(a tiered.Algorithm) tiered.Limit {
	l := tiered.Limit{
		Tokens: pick[int64](d, 1, 2, 3, 5, 7, 10, 11, 30, 64, 100, 274, 409, 1000),
		Per:    pick(d, 100*ms, 300*ms, second, second, 2*second, 10*second, time.Minute, time.Minute, time.Hour),
	}
	switch a {
	case tiered.TokenBucket:
		l.Burst = pick(d, 0, 0, 1, 20, 100, 2*l.Tokens)
	case tiered.SlidingWindow:
		l.Precision = pick(d, 0, 0, l.Per, l.Per/2, l.Per/7).Truncate(time.Microsecond)
	}
	return l
}

func burst(l tiered.Limit) int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Tokens
}

func limits(p tiered.Policy) []tiered.Limit { return p.Limit.Each() }

func several(l tiered.Limit) bool { return len(l.Each()) > 1 }

// per is the time of a limit's window, or the longest that it may be.
func per(l tiered.Limit) time.Duration { return cmp.Or(l.Per, l.Calendar.Longest()) }

// tokenTime is the time in which the refill brings a token.
func tokenTime(l tiered.Limit) time.Duration { return per(l)/time.Duration(l.Tokens) + 1 }

func (d drawer) step(s *Sequence, outages bool) Step {
	which := d.IntN(len(s.Policies))
	p := s.Policies[which]
	most := burst(slices.MinFunc(limits(p), func(a, b tiered.Limit) int { return int(burst(a) - burst(b)) }))
	x := Step{
		Verb: Verb(d.IntN(len(verbs))), Who: d.IntN(s.Processes), Which: which, Key: pick(d, 0, 0, 0, 1), Pick: d.IntN(12),
		After: pick(d, 0, ms, ms, 30*ms, 300*ms, second, 6*second, 12*second, tokenTime(p.Limit), min(per(p.Limit), time.Minute)/2) +
			time.Duration(d.IntN(1000)),
		N: pick(d, 1, 1, 1, 2, most/4, most/2, most*3/4, most, most, most+1),
	}
	x.N = max(x.N, 1)
	if d.IntN(3) == 0 {
		x.Verb = pick(d, Ask, Back, Back, Climb, Crowd, Look, Look, Scout)
	}
	switch x.Verb {
	case Carry:
		x.By = byLimit
		if p.Plans != nil && d.IntN(2) == 0 {
			x.By = byPlan
		}
		if s.Rules[which] != nil { // the key would have a limit for as long as it is kept
			x.Verb, x.By = Ask, byKey
		}
	case Rule:
		if s.Rules[which] == nil {
			x.Verb = Back
		}
	case Crowd:
		for range 2 + d.IntN(4) {
			x.Costs = append(x.Costs, max(pick(d, 1, 2, most/4, most/2, most*3/4, most, 1+d.Int64N(max(most, 1))), 1))
		}
	case Down, Hang, Well:
		if !outages {
			x.Verb = Ask
		}
	case Again, Others:
		x.N = int64(2 + d.IntN(40))
	case Settle:
		x.N = pick(d, 0, 1, x.N, 2*most)
	case Charge:
		x.N = pick(d, 1, most/2+1, most, 3*most, 1+d.Int64N(most+1))
	case Ask:
		if d.IntN(20) == 0 {
			x.N = -1
		}
	case Wait, Behind, Hurry, WaitAll:
		x.Pause = pick(d, ms, 300*ms, 5*second)
		if x.Verb == WaitAll && d.IntN(8) > 0 { // afterwards the figures are not judged
			x.Verb = Wait
		}
	}
	switch x.Verb {
	case Change, Carry, Rule, Each:
		x.Empty = d.IntN(3) == 0
	}
	if x.Verb == Change || x.Verb == Carry || x.Verb == Rule {
		x.Limit = d.limit(p.Algorithm)
		if several(p.Limit) || p.Algorithm == tiered.FixedWindow || p.Algorithm == tiered.SlidingLog {
			x.Limit.Per, x.Limit.Precision, x.Limit.Calendar = p.Limit.Per, p.Limit.Precision, p.Limit.Calendar
		}
		if further := p.Limit.Each()[1:]; len(further) > 0 {
			for i := range further {
				if x.Pick%3 > 0 {
					further[i].Tokens, further[i].Burst = max(further[i].Tokens*int64(x.Pick)/4, 1), 0
				}
			}
			x.Limit = x.Limit.And(further...)
		}
	}
	return x
}

// Shrink returns a simpler sequence that is still broken.
func (s Sequence) Shrink(broken func(Sequence) bool) Sequence {
	s.Steps = proof.Shortest(s.Steps, func(steps []Step) bool { t := s; t.Steps = steps; return broken(t) })
	if one := s; len(s.Policies) > 1 {
		if one.Policies, one.Rules = s.Policies[:1], s.Rules[:1]; broken(one) {
			s = one
		}
	}
	return proof.Simplest(s, broken)
}
