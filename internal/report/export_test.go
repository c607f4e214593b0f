package report

// The bounds that the tests reach.
const (
	HookRoom     = hookRoom
	Kinds        = kinds
	RecentEvents = recentEvents
)

// Room is what the events take in memory, which no answer shows.
func (r *Recent) Room() int { return cap(r.events) }

// Made reports whether the counts of requests take memory: only those of requests of more than one token do.
func (r *Requests) Made() bool { return r.counts.Load() != nil }
