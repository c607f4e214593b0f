package tiered

import "context"

// AllowSeparately decides several uses in their order, each as [Use.Allow] would: one that is refused takes nothing, and
// changes nothing for the others. It writes the Decision of the i-th use to each[i]. If each is longer than uses, its
// last elements stay as they are. If it is shorter, the last Decisions are dropped.
//
// What this process does not know goes to Redis in one pipeline per node. All wait at the same time, each at most for
// its Options.Budget, and no longer than [Limiter.AllowN] if ctx has a deadline. So the call takes no longer than the
// longest of them.
func AllowSeparately(ctx context.Context, uses []Use, each []Decision) {
	var room [inlineParts]part
	r := request(room[:0])
	for _, u := range uses {
		r = append(r, part{taking: taking{limiter: u.limiter, key: u.key, cost: u.cost}, limit: u.limit})
	}
	r.decideSeparately(ctx, each)
}
