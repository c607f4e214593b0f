package metrics

import "github.com/tiered-limiter/tiered-limiter/tiered"

// Figures are what a Reader reads of a Group.
type Figures interface {
	Stats() tiered.Stats
	HasStanding(tiered.Stats) bool
}

// ReaderOf and TotalsReaderOf return Readers of invented figures: no Group has counted something in
// each of them, or has names that no policy can have.
func ReaderOf(f Figures) *Reader { return newReader(nil, group{source: f}) }

func TotalsReaderOf(f Figures, each func(map[string]tiered.PolicyStats)) *Reader {
	r := ReaderOf(f)
	r.totals = &totals{each: each}
	return r
}

// Totals are the sums of a Reader. It has no series of some of them.
type Totals = totals

func (t *totals) Of(policies map[string]tiered.PolicyStats) tiered.PolicyStats { return t.of(policies) }

// Gone is for how many policies that were removed there is memory, and MostGone its bound: 10 000
// policies of a Group take seconds.
func (t *totals) Gone() int { return len(t.gone) }

const MostGone = mostGone

// IsLargest reports whether the total of a figure is the largest of a policy.
func IsLargest(figure string) bool { return notCounters[figure] == largest }
