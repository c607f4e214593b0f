package tiered

import (
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What the tests see of the inside. Everything else of them goes by the API.

func Engine(g *Group) *engine.Group   { return g.core }
func Core(l *Limiter) *engine.Limiter { return &l.core }
func Announced(g *Group) (remote.Announcement, int64) {
	a, _, version := g.announced()
	return a, version
}

func Dispatch(g *Group) *dispatch.Dispatcher { return g.core.Dispatch }
func Limiters(g *Group) *limiters            { return &g.limiters }
func Journal(g *Group) *report.Journal       { return g.journal }
func OptionsOf(g *Group) *Options            { return &g.options }

// Policies returns the policies, in the order in which they were added.
func (g *Group) Policies() (all []Policy) {
	if g.isZero() {
		return nil
	}
	for _, l := range g.limiters.present() {
		all = append(all, l.Policy())
	}
	return all
}

// AllowSeparately is what the rate limit service asks.

// Call returns a call for the bucket of that name, with the numbers of l's policy.
func Call(name string, l *Limiter) lua.Call {
	c := l.core.Settings().Initial.Call
	c.Bucket = name
	return c
}

func (ls *limiters) Placed() []*Limiter { return ls.placed }

func (p Policy) LimitsText() string          { return p.limitsText() }
func (o *Options) Fill() (Options, error)    { return o.fill() }
func (h *health) StateLosses() *atomic.Int64 { return &h.stateLosses }

var (
	NewTracer = newTracer
	HealthOf  = healthOf
	FailModes = failModes
)

const (
	DefaultBudget      = defaults.Budget
	DefaultTimeout     = defaults.Timeout
	DefaultMaxInFlight = defaults.MaxInFlight
	DefaultPeriod      = defaults.Period

	MaxBlocks  = maxBlocks
	MaxDial    = maxDial
	MaxEntries = maxEntries
	MaxLimits  = maxLimits

	MaxKeyLength = defaults.MaxKeyLength

	MaxPer    = maxPer
	MaxPlans  = maxPlans
	MaxRecent = maxRecent
	MaxPeriod = maxPeriod
	MaxTokens = maxTokens
	MaxWindow = maxWindow
	MinPeriod = minPeriod
)

func (t *tracer) State(e Event)         { t.state(e) }
func (t *tracer) Fault(e Event)         { t.fault(e) }
func (t *tracer) RecentEvents() []Event { return t.recentEvents() }

// RecentRoom is what the recent events take in memory, which no answer shows.
func (t *tracer) RecentRoom() int { return cap(t.recent) }
