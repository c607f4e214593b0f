package legal

import (
	"math/rand/v2"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// kind is a kind of scenes: some steps that only together make a meeting. Some plans have scenes of a kind between their
// other steps. A kind has random numbers of its own, so the other steps of a seed are the same as without it.
type kind struct {
	salt      uint64                          // of its random numbers
	one       int                             // one plan in so many has such scenes
	prepare   func(d *drawer, p *Plan) bool   // if set, it may change the plan, and reports whether the plan can have them
	few, most int                             // scenes of a plan
	early     bool                            // they come before the store's clock is set, because nothing of them is judged afterwards
	scene     func(d *drawer, p *Plan) []Step // draws one; nil for none this time
}

// kinds has a row for each kind. A row may leave nothing of the rows before it: see Plan.only.
var kinds = [...]kind{
	{salt: 18, one: 3, few: 1, most: 3, scene: (*drawer).reload},
	{salt: 23, one: 1, prepare: (*drawer).forTwoPlans, few: 1, most: 3, scene: (*drawer).twoPlans},
	{salt: 19, one: 3, prepare: (*drawer).forCharges, few: 1, most: 5, scene: (*drawer).charge},
	{salt: 26, one: 3, prepare: (*drawer).forNodes, most: 4, scene: (*drawer).move},
	{salt: 20, one: 2, prepare: (*drawer).forReturns, few: 1, most: 3, early: true, scene: (*drawer).comesBack},
	{salt: 24, one: 6, prepare: (*drawer).forHandovers, few: 1, most: 3, early: true, scene: (*drawer).handover},
	{salt: 27, one: 8, prepare: (*drawer).forLarger, few: 1, most: 3, early: true, scene: (*drawer).larger},
	{salt: 28, one: 12, prepare: (*drawer).forStranger, few: 1, most: 3, early: true, scene: (*drawer).stranger},
	{salt: 29, one: 3, few: 1, most: 4, scene: (*drawer).hurry},
	{salt: 30, one: 3, prepare: (*drawer).forFar, few: 1, most: 2, scene: (*drawer).far},
	{salt: 31, one: 6, prepare: (*drawer).forAmends, few: 1, most: 3, scene: (*drawer).amend},
}

// add puts scenes of a kind into some plans.
func (k *kind) add(p *Plan) {
	d := drawer{rand.New(rand.NewPCG(p.Seed, k.salt))}
	if !d.one(k.one) || k.prepare != nil && !k.prepare(&d, p) {
		return
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
