package tiered

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Limiter decides by one policy, also concurrently. A zero or nil one refuses.
type Limiter struct {
	core      engine.Limiter
	group     *Group
	ownsGroup bool // made by New, so Close closes the Group

	setMu    sync.Mutex   // one SetPolicy at a time
	revision atomic.Int64 // of the policy

	mu       sync.Mutex
	others   otherLimits // processes with other limits
	limits   string      // the text of the limits of limitsOf, because each report of presence has it
	limitsOf *Policy
	split    splitUse // how the processes split the limits

	unknownPlans atomic.Int64 // requests with a plan that the policy does not have
	removed      atomic.Bool  // by SetPolicies
	was          *Policy      // the last policy before it was removed; guarded by the mutex of the Group's limiters
}

// place returns the place of the policy among those that this process announces, -1 if it is
// removed.
func (l *Limiter) place() int { return int(l.core.Place.Load()) }

// policyOf returns the policy that settings were made of. Code that reports a decision reads the
// policy too, by the settings of the local policy's owner.
func policyOf(s *engine.Settings) *Policy { return s.Policy.(*Policy) }

// Group is any number of policies over one store: they share one cache of keys, one queue of calls
// to each Redis node and one set of goroutines. It may be used concurrently. A zero or nil Group
// has no policies.
type Group struct {
	core     *engine.Group
	store    remote.Store
	options  Options // with the defaults
	limiters limiters
	trace    *tracer
	journal  *report.Journal // nil without a Logger
	reloads  reloads

	sharesReport   sharesReport
	greeted        atomic.Bool // the log says that Redis has answered
	hasAnnounced   atomic.Bool // this process has announced its policies once
	warnPlacesOnce sync.Once   // warns that there are more policies than can be announced
	setPoliciesMu  sync.Mutex  // one SetPolicies at a time

	guestsMu sync.Mutex
	guests   []engine.Guest[AtOnceStats]

	stop      context.CancelFunc
	stopHooks context.CancelFunc // ends the hooks; the last step of Close
	tasks     sync.WaitGroup     // all goroutines but those of callbacks and of the dispatcher
	callbacks sync.WaitGroup     // the goroutines that call the hooks and the Logger

	// A Close whose context ends first ends the calls. Then another one can give nothing back.
	callsEnd   sync.Once
	callsEnded chan struct{} // closed when no goroutine makes calls any more, nor will
}

// limiters are those of a Group.
//
// A bucket in Redis has one Limiter, however often its policy changes. Two Limiters would lease
// from it under one lease id, and Redis would take the calls of both for those of one process. So a
// policy that was removed and comes back has the Limiter that it had, for as long as anything can
// still use it: the caller's code, or a bucket in the cache. Then the Group forgets it. A policy
// that comes back as another one gets a Limiter beside it, with a lease id of its own.
type limiters struct {
	mu      sync.RWMutex
	next    int                                // number of the next Limiter. None is used twice
	byID    map[int]weak.Pointer[Limiter]      // by number: of all policies, and of what may still have buckets
	all     []*Limiter                         // of the policies, in the order of adding
	placed  []*Limiter                         // by place in what this process announces; nil: free
	version int64                              // rises when a place gets another policy
	byName  map[string]*Limiter                // of the policies
	gone    map[string][]weak.Pointer[Limiter] // of the policies that were removed, by name
}

// otherLimits are the processes that have other limits for a policy, and what has been said about
// them.
type otherLimits struct {
	services, here int64 // processes of other services, and of this one: the most that a node counted
	warned         bool  // about other services: once
	told           bool  // about this service: once per change
}

// splitUse is what a Limiter knows of how the processes split its limits. It is guarded by the
// Limiter's mutex.
type splitUse struct {
	standing.Agreement
	crowd  crowd
	warned bool // it was said that other processes split the limits otherwise
}

// wants returns how many eighths of the limits of p this process wants the processes to share.
func (u *splitUse) wants(p *Policy) int {
	if u.crowd.is {
		return 0
	}
	return p.eighths()
}

// redisPart returns how many eighths of the limits l leaves to shares when it takes from Redis.
func (l *Limiter) redisPart() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.split.Redis()
}

// sharesReport is what has been reported of the table of fractions.
type sharesReport struct {
	failures atomic.Int64 // polls in a row

	mu   sync.Mutex
	last standing.State // without Left
}

// reloads counts reloads of the configuration: see Stats.Reloads.
type reloads struct {
	mu              sync.Mutex
	applied, failed int64
	err             error // of the last one
}

// A nil or zero Limiter or Group is a mistake: usually the error of New or NewGroup was ignored.
// Its methods must not panic, because they would do so at the first request. They refuse.
var (
	errZeroLimiter = errors.New("tiered: the Limiter is nil or zero: must be made by New or Group.NewLimiter")
	errInGroup     = errors.New("tiered: nothing is closed, because the Limiter is one of a Group: must be Group.Close")
	errZeroGroup   = errors.New("tiered: the Group is nil or zero: must be made by NewGroup")
)

// isZero reports whether l is nil or was not made by New or Group.NewLimiter.
func (l *Limiter) isZero() bool { return l == nil || l.group == nil }

// isZero reports whether g is nil or was not made by NewGroup.
func (g *Group) isZero() bool { return g == nil || g.core == nil }

// orBackground returns ctx, or a context that never ends if it is nil.
func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
