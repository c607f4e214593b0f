package legal

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/tiered"
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
	Trip      time.Duration   // of a message, both ways
	Repeats   bool            // messages may arrive twice; then the clock is not set back: a refund may count once more
	Single    bool            // no request is over several keys or waits, so that all refusals are known
	Warm      time.Duration   // before the first step
	Books     bool            // at the end a new process reads what is left; otherwise an operator resets
	Thin      bool            // for a store whose calls are expensive
	Nodes     int             // of the store at first, whose map has to be found; 0: the one node is known
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

// Suits reports whether gopher-lua can play a plan. If a table has a numeric key of up to 2^26, gopher-lua
// allocates all places up to it, and the script of a sliding window uses block numbers as keys.
func (p Plan) Suits() bool {
	suits := func(l tiered.Limit) bool { return precision(l) < 10*second || precision(l) > 30*day }
	for _, x := range p.Policies {
		for _, l := range append([]tiered.Limit{x.Limit}, x.Also...) {
			if x.Algorithm == tiered.SlidingWindow && !suits(l) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(p.Steps, func(s Step) bool {
		return s.Limit.Per > 0 && p.Policies[s.Which].Algorithm == tiered.SlidingWindow && !suits(s.Limit)
	})
}

// Verb is the kind of a step.
type Verb uint8

// The verbs. Who is a process, Which a policy, Key a key. N is a number or an index.
const (
	Ask       Verb = iota // requests tokens; see process.cost
	Reserve               // the same, to be given back or settled
	Together              // requests all policies at once, for one key or several; by some N each by itself
	Both                  // the same, reserved
	Crowd                 // N requests for one token each at the same time
	Stream                // N requests for one token each, Pause apart
	Behind                // the same, while the next steps are played
	Cancel                // gives reservation N back
	Settle                // settles a reservation at another cost
	Await                 // waits for tokens, for at most Pause
	Peek                  // peeks, and reads the figures
	Others                // uses N other keys, so that this one is evicted
	Rule                  // PerKey returns something else from now on
	Change                // SetPolicy with another Limit
	Tune                  // SetPolicy with another Lease or FailMode
	Reset                 // an operator fills a bucket
	Restart               // Who closes and starts again; Limit, if set, is that of another version
	Crash                 // Who is killed and starts again
	Forget                // the store forgets its scripts
	Back                  // the store's clock is set back by Pause
	Ahead                 // it jumps ahead
	Vanish                // the store loses the bucket
	Lossy                 // N percent of the messages are lost
	Slow                  // a message takes up to Pause longer
	Repeat                // every other message arrives twice
	Down                  // the store is down, or does not answer
	Well                  // network and store are undisturbed again
	Move                  // the slots go to N nodes from number Key on
	Meter                 // requests one token, again and again, and charges each request afterwards
	Charge                // charges a key
	Refund                // gives tokens to a key
	AtMost                // takes what there is of N tokens, and may leave before Redis answers
	Queue                 // many wait for a token each
	Handover              // uses most of a key in one process, and the rest in another
	Return                // asks for a key after Pause without disturbances, in which nobody did
	Alternate             // two processes ask for a key with different limits, for more than the larger one
	Stranger              // a process without standing shares comes, uses a key N times, and leaves
	Surge                 // all processes take what a key has
	Hurry                 // requests tokens in a context that ends after Pause
	Far                   // each message takes Pause longer, or up to twice that
	Steady                // requests one token N times a second
	Amend                 // gives back a reservation and charges the key in one call, Pause apart
	Reload                // SetPolicies without the policy, and Pause later with it; code may still use the Limiter of before
)

var verbs = [...]string{
	"ask", "reserve", "together", "reserve together", "crowd", "stream", "stream behind", "cancel", "settle", "wait",
	"peek",
	"others", "rule", "change", "tune", "reset", "restart", "crash", "forget scripts", "clock back", "clock ahead",
	"vanish",
	"lossy", "slow", "repeat", "down", "well", "move slots", "meter", "charge", "refund", "at most", "queue", "hand over", "come back", "alternate", "stranger", "surge", "hurry", "far", "steady", "amend", "reload",
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

func (s Step) String() string {
	text := fmt.Sprintf("+%v %s: process %d, policy %d, key %d, n %d", s.After, verbs[s.Verb], s.Who, s.Which, s.Key,
		s.N)
	if s.Pause != 0 {
		text += fmt.Sprintf(", %v", s.Pause)
	}
	if s.Limit != (tiered.Limit{}) {
		text += ", " + show(s.Limit)
	}
	if s.Verb == Tune {
		text += fmt.Sprintf(", %+v, %v", s.Lease, s.FailMode)
	}
	return text
}

// show formats a limit briefly.
func show(l tiered.Limit) string {
	switch l {
	case tiered.Unlimited():
		return "unlimited"
	case tiered.Blocked():
		return "blocked"
	}
	text := fmt.Sprintf("%d per %v", l.Tokens, l.Per)
	if l.Burst > 0 {
		text += fmt.Sprintf(" burst %d", l.Burst)
	}
	if l.Precision > 0 {
		text += fmt.Sprintf(" by %v", l.Precision)
	}
	return text
}

func (p Plan) String() string {
	var b strings.Builder
	o := p.Options
	fmt.Fprintf(&b, "seed %d: %s, %d processes, warm for %v, trip %v, budget %v, timeout %v, max keys %d, processes known %d, repeats %t, books %t, single %t, nodes %d\n",
		p.Seed, [...]string{"calm", "rough", "accidents"}[p.Class], p.Processes, p.Warm, p.Trip, o.Budget, o.Timeout, o.MaxKeys,
		o.Processes, p.Repeats, p.Books, p.Single, p.Nodes)
	for i, x := range p.Policies {
		fmt.Fprintf(&b, "policy %d: %v, %s", i, x.Algorithm, show(x.Limit))
		for _, l := range x.Also {
			fmt.Fprintf(&b, " also %s", show(l))
		}
		for _, name := range slices.Sorted(maps.Keys(x.Plans)) {
			fmt.Fprintf(&b, ", %s %s", name, show(x.Plans[name]))
		}
		fmt.Fprintf(&b, ", calendar %t, %v, lease %+v, per key %t, standing shares %v\n",
			x.Calendar, x.FailMode, x.Lease, p.Plans[i], x.Standing)
	}
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%4d %v\n", i, s)
	}
	return b.String()
}

// Draw returns the plan of a seed.
func Draw(seed uint64) Plan {
	d := drawer{rand.New(rand.NewPCG(seed, 17))}
	p := Plan{
		Seed: seed, Class: pick(&d, Calm, Calm, Calm, Rough, Rough, Accidents), Processes: pick(&d, 1, 1, 2, 2, 3),
		Books: d.one(2), Repeats: d.one(4), Single: d.one(4),
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
		p.Plans = append(p.Plans, len(x.Also) == 0 && d.one(2))
	}
	if slices.ContainsFunc(p.Policies, func(x tiered.Policy) bool { return x.Standing == tiered.StandingOn }) {
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
