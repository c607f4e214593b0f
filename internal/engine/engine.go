// Package engine decides. A request is a list of parts, one for each key. The parts ask the sources
// of their keys' tokens in one order, in sources.go, and each ends as an [Outcome] of four words.
// Package tiered makes the settings that the engine goes by, and makes a Decision of each outcome.
// The engine knows neither a Policy nor a Decision.
package engine

// This file has the data that everything in the package reads. The other files have what is done
// with it, and each uses only more basic files.

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Options are what a Group is made of.
type Options struct {
	Store   remote.Store
	Budget  time.Duration  // see tiered.Options
	MaxKeys int            // of each cache
	Uniform func() float64 // every random choice except the lease id and the seeds of hashes
	Known   bool           // the number of processes is known without Redis
	Journal *report.Journal
	Hooks   Hooks

	// Initial returns the policy of new buckets of the Limiter that has a number, and is in use.
	Initial func(number int) *local.Policy
}

// Group is what the Limiters of one tiered.Group share. All methods may be called concurrently.
type Group struct {
	Options
	Base  time.Time
	Lease atomic.Pointer[string] // this process' id: see newLease

	Cache           *local.Cache[Bucket, *Bucket]
	CacheAfterClose *local.Cache[Bucket, *Bucket] // for decisions after Close
	Dispatch        *dispatch.Dispatcher          // sends the calls; set before the first decision
	Shares          standing.Shares               // the standing shares of all policies that have some
	HasShares       atomic.Bool                   // some policy has standing shares
	FleetKnown      atomic.Bool                   // the size of the fleet is known, from Redis or from Options
	Heard           atomic.Bool                   // Redis has answered this process
	Closed          atomic.Bool                   // decisions follow the fail modes, and leases are returned
	Standstills     atomic.Int64                  // so far
	Simulated       Simulated                     // nil in a service

	seq          atomic.Int64 // of all calls of all keys: a key that was evicted must not begin at 1 again
	ran, due     atomic.Int64 // ns since the base: when the clock was watched last, and when Run is to do so next
	wallAhead    atomic.Int64 // ns by which the wall clock was ahead of the monotonic clock
	standstillMu sync.Mutex   // held while leases are dropped after a standstill
	leaseGen     atomic.Int64 // rises before and after each standstill. Tokens are returned only within one generation

	waiters       sync.Pool // of *waiter
	schedule      schedule
	debts         *rate.Limiter // of calls that tell of debts which no request reports
	queues        waitQueues
	joinMu        sync.Mutex           // held while one request joins several queues
	spent         local.SpentFallbacks // what evicted keys have used of what they may use in an outage
	warnFleetOnce sync.Once            // warns that the size of the fleet is not known
	warnHeardOnce sync.Once            // warns that Redis has not answered yet
	forgotten     chan struct{}        // capacity 1: a bucket was removed
}

// Hooks are told what happens. They must return at once, and must not call the engine. Accepted and
// Failed are nil if nobody listens.
type Hooks struct {
	Decision   func(*Told)                                                        // of a Limiter in ModeTraced
	Accepted   func(*Bucket, *dispatch.Node, *lua.Call, lua.Reply, time.Duration) // a call, after a round trip
	Failed     func(b *Bucket, n *dispatch.Node, c *lua.Call, err error, class string)
	Waited     func(WaitEnd)
	StateLost  func(*Bucket, *dispatch.Node) // Redis has lost a bucket
	Standstill func(by time.Duration)        // all leases were dropped, or have ended
}

// WaitEnd is the end of a wait.
type WaitEnd struct {
	Limiter *Limiter
	Key     string
	Cost    int64
	Time    time.Duration // how long it lasted
	Err     error         // nil if the tokens were taken
	Waiting int64         // calls that still wait, for any key of the policy
}

// Node is what is known of a Redis node besides what the dispatcher knows. It is the dispatcher's
// observer of the node.
type Node interface {
	dispatch.NodeObserver
	Overran(waited, late time.Duration) // a caller got no answer within the time it waits, and woke up so late after it
	Settled(tokens int64)               // tokens that were admitted without Redis were reported
	Doubted() (until time.Duration)     // until then the node may have come back empty after an outage
	KeptData()                          // its data outlived the outage
}

// Limiter decides by one policy. All methods may be called concurrently. A nil one refuses.
type Limiter struct {
	Group  *Group
	Number int          // of none other of the Group
	Name   string       // of the policy
	Kind   remote.Kind  // of its buckets
	Beside bool         // the policy had another Limiter, which may still be used: see leaseID
	Place  atomic.Int64 // of the policy among those that this process announces, -1 if it is removed

	mode     atomic.Uint32 // what is special about all its decisions: the bits below
	settings atomic.Pointer[Settings]
	lookUps  lookUps

	refreshes atomic.Int64 // calls of Refresh
	carries   atomic.Bool  // requests have carried limits

	Standing Standing
	Figures
}

// lookUps are the running calls of PerKey, one per key.
type lookUps struct {
	mu   sync.Mutex
	keys map[string]*lookUp
}

type lookUp struct {
	done  chan struct{}
	stale bool // Refresh was called meanwhile
}

// Figures are what a Limiter counts, without what its buckets count.
type Figures struct {
	mu      sync.Mutex
	evicted local.Stats    // of forgotten buckets, and by fail modes that were changed
	refused report.Evicted // what forgotten buckets refused

	rejected   int64 // calls that the store refused for their bucket alone
	forgiven   int64 // debt that was given up because Redis rejected the calls that reported it
	unanswered int64 // tokens asked for by calls without an answer

	Requests          report.Requests
	Waits             report.Waits
	Charged           atomic.Int64 // tokens charged to standing shares, or as a debt
	AdmittedUnlimited atomic.Int64 // tokens admitted without a limit
	Shadowed          atomic.Int64 // tokens that were refused, and yet admitted
	PerKeyFaults      atomic.Int64 // PerKey panicked or returned no limit, or a request carried an invalid one
	NearLimit         atomic.Int64 // see [local.Policy].NearLimit
	Paid              atomic.Int64 // see [local.Policy].Paid
	Refunded          atomic.Int64 // tokens of admitted requests that were given back: they are counted as spent no more
}

// Gone are the figures of forgotten buckets, and of calls that brought nothing.
type Gone struct {
	local.Stats
	Refused                        report.Top
	Rejected, Forgiven, Unanswered int64
}

// What is special about all decisions of a Limiter. Most decisions are made while none of these is
// set.
const (
	ModeTraced    = 1 << iota // a hook receives decisions
	ModeShadow                // refusals admit
	ModeUnlimited             // there is no limit, and no PerKey
	modeCarried               // requests have carried limits
	ModeStanding              // it has standing shares
)

// Settings are those of a Limiter until its policy changes. Package tiered makes them of a Policy.
type Settings struct {
	Mode    uint32        // of the bits ModeTraced to ModeStanding
	Initial *local.Policy // for new buckets: that of Limit, or Unresolved if KeyLimit must be called
	Limit   Limit         // the policy's
	Windows bool          // the policy counts by windows, and not by token buckets

	KeyLimit func(key string) Limit // the limit of a key; nil if each has that of the policy
	CheckKey func(Limit) error      // why no request may carry the limit

	// Resolve makes the policy of a limit: its Owner is a *[Resolved]. has is what standing shares
	// have of the limit already, or nil.
	Resolve func(l Limit, has standing.Limits) *local.Policy

	Policy any // of package tiered, which tells by it: the engine does not know what it is

	mu       sync.Mutex
	first    *local.Policy           // of the limit that was asked for first; a map takes half a kilobyte
	policies map[Limit]*local.Policy // of the others, by limit; usually none or few
}

// MaxPolicies bounds the limits of keys that are shared among keys. Beyond it each key has a copy
// of 200 bytes.
const MaxPolicies = 1024

// Resolved is the owner of a local policy: the limits of a key. The policy has them as numbers.
type Resolved struct {
	Limiter   *Limiter
	Settings  *Settings     // under which it was resolved
	Retention time.Duration // upper bound of the time for which what a key used counts
	Limit     Limit         // the policy's, the key's, or that of a request
	Limits    []Limit       // each that it has, at least one
	Smallest  uint8         // number, from 1, of the limit with the smallest burst

	Shares standing.Limits // what standing shares have of each limit; nil if they have nothing

	mixed *mixed // of a key whose requests carry different limits; nil of any other
}

// mixed is what a key knows of the limits that its requests carry, if they differ. The times are
// since the Group's base.
type mixed struct {
	kept    []kept       // of each limit
	otherAt atomic.Int64 // when a request last carried less
	told    atomic.Pointer[toldLater]
}

// kept are the times until when a key keeps the burst and the rate of a limit, unless a request
// carries it again.
type kept struct{ burst, rate atomic.Int64 }

// toldLater is when Redis will have tokens for requests of a cost, by the limit that they carry. It
// is believed for a while, because many requests are refused before that time.
type toldLater struct {
	cost            int64
	by              *Resolved
	opens, believed time.Duration // since the Group's base
}

// Bucket is a local.Bucket with what the Group needs to send its calls.
type Bucket struct {
	local.Bucket
	node    atomic.Pointer[dispatch.Node] // the node that it was last sent to; nil before
	checkAt time.Duration                 // when the schedule checks it; 0 for never. Guarded by the schedule's mutex
}

// A source is where the tokens of a key come from, or what knows that there are none. The sources
// are asked in this order: Request.walk takes from them, Part.look asks what they would say, which
// is all that Peek does, and what they gave goes back by putBack. Take asks the first of them by
// hand, because nearly all requests end there.
type source uint8

const (
	nowhere       source = iota // nothing was taken
	lease                       // tokens of this process that Redis granted
	standingShare               // tokens that come to this process without a call
	denial                      // none: Redis answers, and this process knows that it refuses
	redis                       // a call, for all who wait for the key; see redis.go
	failMode                    // the fallback, or what else the policy says; see outage.go
)

// Told is an outcome, with what else a Decision reports: the request was for Key, cost Cost, and
// was decided at Now. Bucket is the key's, nil if this process keeps none.
type Told struct {
	local.Outcome
	Key    string
	Cost   int64
	Bucket *Bucket
	Now    time.Duration

	Carried *Resolved // the limit that the request carries; nil if it carries none

	// What Redis answered, as in LastReport, if it was only asked what it would say.
	Dry   bool
	Limit uint8 // the number of the limit that alone was asked about, from 1; 0 for all
	Which uint8
	Clear time.Duration
}

// Now returns the time since the Group's base, by the monotonic clock. A decision reads it once.
func (g *Group) Now() time.Duration { return time.Since(g.Base) }

// place returns the place of the policy among those that this process announces, -1 if it is
// removed.
func (l *Limiter) place() int { return int(l.Place.Load()) }

// Settings returns the present ones.
func (l *Limiter) Settings() *Settings { return l.settings.Load() }

// Owner returns the owner of a policy.
func Owner(p *local.Policy) *Resolved { return p.Owner.(*Resolved) }

// Limiter returns the Limiter that the bucket belongs to.
func (b *Bucket) Limiter() *Limiter { return Owner(b.Policy()).Limiter }

// Key returns the user's key, or its digest.
func (b *Bucket) Key() string { return b.ID().Key }

func nodeOf(n *dispatch.Node) Node { return n.Observer().(Node) }
