package legal

import (
	"context"
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

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
	Enter                 // N requests take a place each, ask for a token, and run for Pause
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
	Edge                  // requests about the end of a window of the calendar
	Amid                  // requests tokens, and gives others back before the request calls Redis
	Pause                 // the store stands still for Pause, amid requests that come N ms after each other
)

// verb is what can be a step.
type verb struct {
	name  string
	often int                                       // its weight; those without come with scenes: see kinds
	can   func(p *Plan, which int) bool             // whether it may be drawn for a plan; nil: always
	draw  func(d *drawer, s *Step, x tiered.Policy) // what else it needs, for a policy
	do    func(w *player, p *process, s *Step)      // plays it
}

// Where a verb may be drawn.
var (
	disturbed = func(p *Plan, _ int) bool { return p.Class != Calm }
	accidents = func(p *Plan, _ int) bool { return p.Class == Accidents }
	notSingle = func(p *Plan, _ int) bool { return !p.Single }
)

var verbs = [...]verb{
	Ask: {name: "ask", often: 12, do: func(_ *player, p *process, s *Step) {
		p.ask(0, s.Which, s.Key, p.cost(s), false, tiered.Limit{})
	}},
	Reserve: {name: "reserve", often: 12, do: func(_ *player, p *process, s *Step) {
		p.ask(0, s.Which, s.Key, p.cost(s), true, tiered.Limit{})
	}},
	Together: {name: "together", often: 4, can: notSingle, do: func(_ *player, p *process, s *Step) {
		if s.N%3 == 0 {
			p.apart(s)
		} else {
			p.together(s, false)
		}
	}},
	Both: {name: "reserve together", often: 3, can: notSingle, do: func(_ *player, p *process, s *Step) { p.together(s, true) }},
	Crowd: {
		name: "crowd", often: 4, draw: func(d *drawer, s *Step, _ tiered.Policy) { s.N = 2 + d.IntN(6) },
		do: func(w *player, p *process, s *Step) {
			for range s.N {
				w.meanwhile(func(lane time.Duration) { p.ask(lane, s.Which, s.Key, 1, true, tiered.Limit{}) })
			}
		},
	},
	Stream: {name: "stream", often: 8, draw: (*drawer).stream, do: func(_ *player, p *process, s *Step) { p.stream(0, s) }},
	Behind: {name: "stream behind", often: 4, draw: (*drawer).stream, do: func(w *player, p *process, s *Step) {
		w.meanwhile(func(lane time.Duration) { p.stream(lane, s) })
	}},
	Cancel: {name: "cancel", often: 7, do: settles},
	Settle: {name: "settle", often: 4, do: settles},
	Await: {
		name: "wait", often: 1, can: notSingle,
		draw: func(d *drawer, s *Step, _ tiered.Policy) { s.Pause = pick(d, 10*ms, 200*ms, 3*second) },
		do: func(_ *player, p *process, s *Step) {
			ctx, cancel := context.WithTimeout(context.Background(), s.Pause)
			defer cancel()
			p.await(ctx, 0, s)
		},
	},
	Peek: {name: "peek", often: 2, do: func(w *player, p *process, s *Step) {
		w.enter(0)
		p.limiters[s.Which].Peek(context.Background(), keyName(s.Key))
		p.group.Stats()
	}},
	Others: {name: "others", often: 3, do: by((*process).others)},
	Rule: {
		name: "rule", often: 10, can: func(p *Plan, which int) bool { return p.Plans[which] },
		draw: func(d *drawer, s *Step, x tiered.Policy) { s.Limit = d.rule(x) }, do: by((*process).rule),
	},
	Change: {
		name: "change", often: 8, draw: func(d *drawer, s *Step, x tiered.Policy) { s.Limit = d.another(x) },
		do: func(_ *player, p *process, s *Step) { p.change(s.Which, func(x *tiered.Policy) { x.Limit = s.Limit }) },
	},
	Tune: {
		name: "tune", often: 2,
		draw: func(d *drawer, s *Step, _ tiered.Policy) { s.Lease, s.FailMode = d.lease(), tiered.FailMode(d.IntN(3)) },
		do: func(_ *player, p *process, s *Step) {
			p.change(s.Which, func(x *tiered.Policy) { x.Lease, x.FailMode = s.Lease, s.FailMode })
		},
	},
	Reset: {name: "reset", often: 4, do: func(w *player, p *process, s *Step) { w.reset(p, s.Which, s.Key) }},
	Restart: {
		name: "restart", often: 3,
		draw: func(d *drawer, s *Step, x tiered.Policy) {
			if d.one(2) {
				s.Limit = d.another(x)
			}
		},
		do: restarts,
	},
	Crash:  {name: "crash", often: 2, can: disturbed, do: restarts},
	Forget: {name: "forget scripts", often: 3, do: func(w *player, _ *process, _ *Step) { w.backend.Forget() }},
	Back: {
		name: "clock back", often: 5, can: func(p *Plan, _ int) bool { return !p.Repeats },
		draw: func(d *drawer, s *Step, _ tiered.Policy) {
			s.Pause = pick(d, 30*ms, 400*ms, 900*ms, 2*second, 8*second, time.Hour)
		},
		do: befalls,
	},
	Ahead: {
		name: "clock ahead", often: 3, can: accidents,
		draw: func(d *drawer, s *Step, _ tiered.Policy) { s.Pause = pick(d, 30*ms, 700*ms, 5*second, time.Hour) }, do: befalls,
	},
	Vanish: {name: "vanish", often: 2, can: accidents, do: befalls},
	Lossy: {
		name: "lossy", often: 3, can: disturbed, draw: func(d *drawer, s *Step, _ tiered.Policy) { s.N = pick(d, 5, 20, 60) },
		do: disturbs(func(n *network, s *Step) { n.loss = s.N }),
	},
	Slow: {
		name: "slow", often: 3, can: disturbed,
		draw: func(d *drawer, s *Step, _ tiered.Policy) { s.Pause = pick(d, 5*ms, 30*ms, 100*ms, second) },
		do:   disturbs(func(n *network, s *Step) { n.slow = s.Pause }),
	},
	Repeat: {
		name: "repeat", often: 2, can: func(p *Plan, _ int) bool { return p.Repeats },
		do: disturbs(func(n *network, _ *Step) { n.repeat = true }),
	},
	Down: {
		name: "down", often: 4, can: disturbed, do: disturbs(func(n *network, s *Step) { n.down, n.hangs = true, s.N%2 == 0 }),
	},
	Well: {name: "well", often: 6, can: disturbed, do: disturbs(func(n *network, _ *Step) { *n = network{} })},

	Move:      {name: "move slots", do: func(w *player, _ *process, s *Step) { w.move(s) }},
	Meter:     {name: "meter", do: by((*process).meter)},
	Charge:    {name: "charge", do: func(_ *player, p *process, s *Step) { p.charge(s, p.later(s), false) }},
	Refund:    {name: "refund", do: by((*process).refund)},
	AtMost:    {name: "at most", do: by((*process).atMost)},
	Queue:     {name: "queue", do: by((*process).queue)},
	Enter:     {name: "enter", do: by((*process).enter)},
	Handover:  {name: "hand over", do: by((*process).handover)},
	Return:    {name: "come back", do: by((*process).comeBack)},
	Alternate: {name: "alternate", do: by((*process).alternate)},
	Stranger:  {name: "stranger", do: func(w *player, _ *process, s *Step) { w.stranger(s) }},
	Surge:     {name: "surge", do: func(w *player, _ *process, s *Step) { w.surge(s) }},
	Hurry:     {name: "hurry", do: by((*process).hurry)},
	Far:       {name: "far", do: disturbs(func(n *network, s *Step) { n.far, n.slow = s.Pause, s.Pause })},
	Steady:    {name: "steady", do: by((*process).steady)},
	Amend:     {name: "amend", do: by((*process).amend)},
	Reload:    {name: "reload", do: by((*process).reload)},
	Edge:      {name: "edge", do: by((*process).edge)},
	Amid:      {name: "amid", do: by((*process).amid)},
	Pause:     {name: "pause", do: by((*process).pause)},
}

// by is what a process does by itself.
func by(do func(*process, *Step)) func(*player, *process, *Step) {
	return func(_ *player, p *process, s *Step) { do(p, s) }
}

// disturbs changes the disturbances of network and store.
func disturbs(change func(*network, *Step)) func(*player, *process, *Step) {
	return func(w *player, _ *process, s *Step) { w.disturb(func(n *network) { change(n, s) }) }
}

func settles(w *player, _ *process, s *Step)  { w.settle(s) }
func restarts(w *player, _ *process, s *Step) { w.restart(s) }
func befalls(w *player, _ *process, s *Step)  { w.accident(s) }

// do plays a step.
func (w *player) do(i int, s *Step) {
	time.Sleep(s.After)
	w.at = i
	w.tell("step %d: %v", i, *s)
	verbs[s.Verb].do(w, w.slots[s.Who], s)
}

func (d *drawer) stream(s *Step, _ tiered.Policy) {
	s.N, s.Pause = 20+d.IntN(200), pick(d, ms, 3*ms, 10*ms, 40*ms)
}

func (d *drawer) step(p *Plan) Step {
	total := 0
	for _, v := range verbs {
		total += v.often
	}
	s := Step{Who: d.IntN(p.Processes), Which: d.IntN(len(p.Policies)), Key: pick(d, 0, 0, 0, 1)}
	for {
		n := d.IntN(total)
		for s.Verb = 0; n >= verbs[s.Verb].often; s.Verb++ {
			n -= verbs[s.Verb].often
		}
		if s.Verb.suits(p, s.Which) {
			break
		}
	}
	policy := p.Policies[s.Which]
	s.After = d.after(perOf(policy.Limit))
	s.N = d.IntN(10)
	if draw := verbs[s.Verb].draw; draw != nil {
		draw(d, &s, policy)
	}
	return s
}

// suits reports whether a verb may be drawn for a plan.
func (v Verb) suits(p *Plan, which int) bool { return verbs[v].can == nil || verbs[v].can(p, which) }

// others uses other keys.
func (p *process) others(s *Step) {
	for n := range s.N {
		p.player.enter(0)
		d := p.limiters[s.Which].Allow(context.Background(), fmt.Sprintf("other%d.%d", p.player.at, n))
		p.player.mu.Lock()
		p.counts[s.Which].count(&d, 1)
		p.player.mu.Unlock()
	}
}

// rule has PerKey return something else. Half of the time a request carries that instead of a
// Refresh.
func (p *process) rule(s *Step) {
	w := p.player
	w.mu.Lock()
	p.rules[s.Which][s.Key] = s.Limit
	w.mu.Unlock()
	carries := s.N%2 == 1 && s.Limit != (tiered.Limit{})
	if !carries {
		p.limiters[s.Which].Refresh(keyName(s.Key))
	}
	p.register()
	if carries {
		p.ask(0, s.Which, s.Key, 1, false, s.Limit)
	}
}

// change sets another policy in a process, if validation accepts it.
func (p *process) change(policy int, change func(*tiered.Policy)) {
	l := p.limiters[policy]
	x := l.Policy()
	change(&x)
	p.player.enter(0)
	if err := l.SetPolicy(x); err != nil {
		p.player.tell("%v", err)
		return
	}
	p.register()
}
