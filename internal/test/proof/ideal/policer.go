package ideal

import "time"

// Policer finds the worst interval of a stream of admissions at known instants. Make one with
// [NewPolicer].
//
// It fills a bucket that leaks at the rate: the deepest level is the most that any interval
// admitted beyond rate·length, and that interval began when the bucket was last empty.
type Policer struct {
	limit    limit
	depth    wide  // units, at last
	last     int64 // ns
	started  bool
	from     int64 // ns, the first admission since the bucket was empty
	tokens   int64 // admitted since then
	deepest  wide
	interval Excess // of deepest
}

// NewPolicer returns a policer that has seen nothing yet. The limit is tokens per period, and
// burst.
func NewPolicer(tokens int64, per time.Duration, burst int64) *Policer {
	l := newLimit(tokens, per, burst)
	return &Policer{limit: l, interval: l.excess(0, 0, 0)}
}

// Admit records that n tokens were admitted at a time (ns). Times must not go back; they may be
// equal.
func (p *Policer) Admit(at, n int64) {
	if p.started {
		p.depth = p.depth.minus(p.limit.refill(p.last, at))
	}
	if !(wide{}).less(p.depth) {
		p.depth, p.from, p.tokens = wide{}, at, 0
	}
	p.last, p.started = at, true
	p.depth = p.depth.plus(p.limit.cost(n))
	p.tokens += n
	if p.deepest.less(p.depth) {
		p.deepest = p.depth
		p.interval = p.limit.excess(p.from, at, p.tokens)
	}
}

// Refund records that n tokens admitted earlier were given back at a time (ns), as to a central
// bucket: they count from their admission to now. What would overfill the bucket is lost.
func (p *Policer) Refund(at, n int64) {
	if p.started {
		p.depth = p.depth.minus(p.limit.refill(p.last, at))
	}
	p.last, p.started = at, true
	p.depth = p.depth.minus(p.limit.cost(n))
	p.tokens -= n
	if !(wide{}).less(p.depth) {
		p.depth, p.from, p.tokens = wide{}, at, 0
	}
}

// Forget forgets the worst interval so far, and not the level: from now on [Policer.Worst] is the
// worst of the intervals that end at an admission yet to come, whenever they began.
func (p *Policer) Forget() { p.deepest, p.interval = wide{}, p.limit.excess(0, 0, 0) }

// Depth reports how many tokens the bucket that leaks holds, as of the last event: how far below
// full an ideal token bucket would be.
func (p *Policer) Depth() float64 { return p.depth.float() / float64(p.limit.period) }

// Worst reports the worst interval so far. Before the first token that is an empty one: Over is
// −burst.
func (p *Policer) Worst() Excess { return p.interval }
