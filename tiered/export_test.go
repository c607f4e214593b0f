package tiered

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What the tests see of the inside. Everything else of them goes by the API.

func Now(g *Group) time.Duration                      { return g.now() }
func WatchClock(g *Group, now time.Duration)          { g.watchClock(now) }
func Announced(g *Group) (remote.Announcement, int64) { return g.announced() }
func Dispatch(g *Group) *dispatch.Dispatcher          { return g.dispatch }
func Cache(g *Group) *local.Cache[bucket, *bucket]    { return g.cache }
func Shares(g *Group) *standing.Shares                { return &g.shares }
func Store(g *Group) remote.Store                     { return g.store }
func LeaseOf(g *Group) *atomic.Pointer[string]        { return &g.lease }
func WallAhead(g *Group) *atomic.Int64                { return &g.wallAhead }
func FleetKnown(g *Group) *atomic.Bool                { return &g.fleetKnown }
func Limiters(g *Group) *limiters                     { return &g.limiters }
func Queues(g *Group) *waitQueues                     { return &g.queues }
func Journal(g *Group) *report.Journal                { return g.journal }
func OptionsOf(g *Group) *options                     { return &g.options }

func (ls *limiters) Placed() []*Limiter  { return ls.placed }
func (ls *limiters) Present() []*Limiter { return ls.present() }

func (qs *waitQueues) Mu() *sync.Mutex                 { return &qs.mu }
func (qs *waitQueues) Queues() map[local.ID]*waitQueue { return qs.queues }

func ID(l *Limiter, key string) local.ID            { return l.id(key) }
func Carries(l *Limiter) *atomic.Bool               { return &l.carries }
func Kind(l *Limiter) remote.Kind                   { return l.kind }
func Settings(l *Limiter) *atomic.Pointer[settings] { return &l.settings }
func StandingOf(l *Limiter) *standingUse            { return &l.standing }

func (s *settings) Initial() *local.Policy   { return s.initial }
func (u *standingUse) Agreed() *atomic.Bool  { return &u.agreed }
func (u *standingUse) Total() int64          { return u.total() }
func (p Policy) LimitsText() string          { return p.limitsText() }
func (o *Options) Fill() (options, error)    { return o.fill() }
func (h *health) StateLosses() *atomic.Int64 { return &h.stateLosses }

type (
	Bucket    = bucket
	Simulated = simulated
)

var (
	Call            = call
	NewTracer       = newTracer
	HealthOf        = healthOf
	NewQueuedCaller = newQueuedCaller
	ResetAfter      = resetAfter
	FailModes       = failModes
	ErrClosed       = errClosed
	ErrTooLate      = errTooLate
)

const (
	MaxBlocks  = maxBlocks
	MaxDial    = maxDial
	MaxEntries = maxEntries
	MaxLimits  = maxLimits
	MaxPer     = maxPer
	MaxPlans   = maxPlans
	MaxPeriod  = maxPeriod
	MaxSleep   = maxSleep
	MaxTokens  = maxTokens
	MaxWindow  = maxWindow
	MinIdle    = minIdle
	MinPeriod  = minPeriod
)

func (qs *waitQueues) Enter(ctx context.Context, c *queuedCaller) { qs.enter(ctx, c) }
func (qs *waitQueues) Leave(c *queuedCaller)                      { qs.leave(c) }

func (t *tracer) State(e StateEvent)    { t.state(e) }
func (t *tracer) Fault(e FaultEvent)    { t.fault(e) }
func (t *tracer) RecentEvents() []Event { return t.recentEvents() }
