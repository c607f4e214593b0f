package debugpage

// How the page writes numbers, durations and the part of the standing shares: the tests see it of
// values that are hours or billions, and of a fleet.
var (
	Count      = count
	Length     = length
	StandingOf = standingOf
)
