package lua

import "time"

// DefaultBlock returns the length of the blocks in which a sliding window of length per counts, if
// its limit does not set one: a sixtieth of per from a minute on, and otherwise a fortieth. It is
// rounded up to whole microseconds, because a slightly shorter block would need one more of them,
// and tokens would come back a block later.
func DefaultBlock(per time.Duration) time.Duration {
	parts := 40
	if per >= time.Minute {
		parts = 60
	}
	unit := time.Duration(parts) * time.Microsecond
	return (per + unit - 1).Truncate(unit) / time.Duration(parts)
}
