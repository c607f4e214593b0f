package rls

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Options are the options of a Service. A nil *Options, and each zero field, means the default.
type Options struct {
	// Together takes the hits of all descriptors of a request, or none. The file of a domain may
	// say otherwise. A descriptor with quota_mode takes its hits by itself, if the others do not
	// refuse the request. By default each descriptor decides by itself, as in
	// envoyproxy/ratelimit: one that is over its limit does not give back what the others took.
	//
	// A request that is refused takes nothing, so hits that are known only afterwards do not count
	// if they are more than what is left.
	Together bool

	// OnlyOver takes no hits of the other descriptors if one is over its limit. That one counts as
	// it would alone. It is STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT of envoyproxy/ratelimit, but
	// for rules in shadow mode and in quota mode: these take nothing if another one refuses, and
	// hinder no other, or what is admitted would not be counted. Together is stronger.
	OnlyOver bool

	// Shadow answers OK to every request. The answers for the single descriptors stay as they are.
	Shadow bool

	// Quota gives every rule quota_mode, also limits that requests carry: a request is refused if
	// all its descriptors are over their limits. Their statuses tell which ones are.
	Quota bool

	// Metadata puts what was asked into the answer's dynamic metadata.
	Metadata bool

	// Headers, if not nil, are the names of the headers that an answer asks Envoy to add.
	Headers *Headers

	// MaxDescriptors is the most descriptors of a request, and the most entries of a descriptor: 1
	// … 10 000; 0 means 1000. A request or a descriptor with more is over the limit.
	MaxDescriptors int

	// HashKey, if set, is a secret of 16 bytes or more. The limiter and Redis then have an HMAC of
	// a descriptor's values in place of them, for values that are secrets. It must be the same in
	// all replicas, and a new one starts all counts anew.
	HashKey []byte

	// Statistics, if not nil, count what envoyproxy/ratelimit counts, under its names.
	Statistics *statistics.Counters

	// Logger is told what an operator should mend, at most once a minute for each kind of it. At
	// LevelDebug it is told what was decided about each descriptor, and no other line has values of
	// descriptors. Nil means [slog.Default].
	Logger *slog.Logger
}

// Headers are names of headers: for the limit, for the hits that are left, and for the seconds
// until the limit is whole again or, if it refuses, until it admits what was asked for. They are of
// the last descriptor that refused the request, or else of the one that has the fewest hits left.
type Headers struct{ Limit, Remaining, Reset string }

// DefaultHeaders are those of envoyproxy/ratelimit.
var DefaultHeaders = Headers{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

const (
	mostDescriptors    = 10_000
	defaultDescriptors = 1000
	mostMultiplied     = 100 // policies for periods of several units that requests carry: a policy is never removed
)

// Service is an envoy.service.ratelimit.v3.RateLimitService.
type Service struct {
	pb.UnimplementedRateLimitServiceServer
	group   *tiered.Group
	options Options
	hasher  *hasher // nil without HashKey
	now     func() time.Time
	log     *slog.Logger
	calls   calls
	notes   notes

	mu        sync.Mutex // of changes
	overrides []tiered.Policy
	state     atomic.Pointer[state] // nil before Use
}

// state is a configuration with the limiters of its policies. It never changes.
type state struct {
	*Config
	limiters  map[*rule]*limited
	overrides map[overridden]*tiered.Limiter
	unmatched map[string]*atomic.Uint64 // descriptors that met no rule, by domain; "" are all domains that are not known
}

// limited is a rule in a Service.
type limited struct {
	*tiered.Limiter
	counts atomic.Pointer[statistics.Counts] // nil until it is asked
}

// Rule is a limit that requests meet.
type Rule struct {
	Policy string // the name by which [tiered.Group.Stats] knows it
	Domain string
	Path   string // as [Config.String] has it, or "a limit that comes with the request, per" and its period
}

// Rules yields the limits of the configuration in the order of its files, and then the limits that
// came with requests, by period. There is none before [Service.Use], and none for rules that are
// unlimited.
func (s *Service) Rules() iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		st := s.state.Load()
		if st == nil {
			return
		}
		for _, r := range st.rules {
			if !r.unlimited && !yield(Rule{r.policy.Name, r.domain, r.path}) {
				return
			}
		}
		for o, l := range st.overrides {
			if !yield(Rule{l.Policy().Name, o.domain, "a limit that comes with the request, per " + perText(o.unit, o.multiplier)}) {
				return
			}
		}
	}
}

// overridden are the limits that requests carry: those of a domain with a period share a policy.
type overridden struct {
	domain     string
	unit       pb.RateLimitResponse_RateLimit_Unit
	multiplier uint32 // of the unit; 0 for one unit
}

// New returns a Service that decides with the limiters of group. The Service makes the group's
// policies: nobody else may. Until [Service.Use] it answers Unavailable. All methods may be called
// concurrently.
func New(group *tiered.Group, o *Options) (*Service, error) {
	s := &Service{group: group, now: time.Now, log: slog.Default()}
	if o != nil {
		s.options = *o
	}
	if s.options.Logger != nil {
		s.log = s.options.Logger
	}
	if s.options.MaxDescriptors == 0 {
		s.options.MaxDescriptors = defaultDescriptors
	}
	var all []error
	switch {
	case group == nil:
		all = append(all, errors.New("rls: the Group is nil: must be set"))
	case group.Stats().Format == "":
		all = append(all, errors.New("rls: the Group is zero: must be made by tiered.NewGroup"))
	}
	if n := s.options.MaxDescriptors; n < 1 || n > mostDescriptors {
		all = append(all, fmt.Errorf("rls: Options.MaxDescriptors is %d: must be 1 to %d", n, mostDescriptors))
	}
	if n := len(s.options.HashKey); n > 0 {
		if s.hasher = newHasher(slices.Clone(s.options.HashKey)); n < shortestSecret {
			all = append(all, fmt.Errorf("rls: Options.HashKey has %d bytes: must have %d or more", n, shortestSecret))
		}
	}
	if h := s.options.Headers; h != nil && (h.Limit == "" || h.Remaining == "" || h.Reset == "") {
		all = append(all, fmt.Errorf("rls: Options.Headers is %q: must have three names", *h))
	}
	if all != nil {
		return nil, errors.Join(all...)
	}
	return s, nil
}

// Use makes c the configuration. If the group cannot have its policies, it returns an error and
// changes nothing. What a rule has counted stays if the rule's place, its unit, its algorithm and
// its further limits do.
func (s *Service) Use(c *Config) error {
	if c == nil {
		return errors.New("rls: the Config is nil: must be made by Load or Parse")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.group.SetPolicies(append(c.Policies(), s.overrides...)); err != nil {
		return err
	}
	next := &state{c, map[*rule]*limited{}, map[overridden]*tiered.Limiter{}, map[string]*atomic.Uint64{"": new(atomic.Uint64)}}
	for name := range c.domains {
		next.unmatched[name] = new(atomic.Uint64)
	}
	for _, r := range c.rules {
		if !r.unlimited {
			l, _ := s.group.Limiter(r.policy.Name)
			next.limiters[r] = &limited{Limiter: l}
		}
	}
	if before := s.state.Load(); before != nil {
		next.overrides = before.overrides
		for name, n := range before.unmatched {
			if next.unmatched[name] != nil {
				next.unmatched[name] = n
			}
		}
	}
	s.state.Store(next)
	return nil
}

// Config returns the configuration that is used, or nil before [Service.Use].
func (s *Service) Config() *Config {
	if st := s.state.Load(); st != nil {
		return st.Config
	}
	return nil
}

// override returns the limiter for limits that requests of a domain carry. Only known domains and
// units have one, and few multiples of units.
func (s *Service) override(st *state, domain string, limit *pb.RateLimitResponse_RateLimit) (*tiered.Limiter, error) {
	o := overridden{domain: domain, unit: limit.GetUnit()}
	if m := limit.GetUnitMultiplier().GetValue(); m > 1 {
		o.multiplier = m
	}
	if l := st.overrides[o]; l != nil {
		return l, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st = s.state.Load()
	if l := st.overrides[o]; l != nil {
		return l, nil
	}
	kind := "override-"
	if o.multiplier > 0 {
		multiplied := 0
		for other := range st.overrides {
			if other.multiplier > 0 {
				multiplied++
			}
		}
		if multiplied >= mostMultiplied {
			return nil, fmt.Errorf("limit.unit_multiplier is %d: must be one of the %d that were asked for first",
				o.multiplier, mostMultiplied)
		}
		kind += strconv.FormatUint(uint64(o.multiplier), 10) + "-"
	}
	p := policyOf(&pb.RateLimitResponse_RateLimit{RequestsPerUnit: 1, Unit: o.unit, UnitMultiplier: limit.GetUnitMultiplier()})
	p.Name = policyName([]string{domain}, kind+strings.ToLower(o.unit.String()))
	l, err := s.group.NewLimiter(p)
	if err != nil {
		return nil, err
	}
	next := &state{st.Config, st.limiters, map[overridden]*tiered.Limiter{o: l}, st.unmatched}
	for k, v := range st.overrides {
		next.overrides[k] = v
	}
	s.overrides = append(s.overrides, p)
	s.state.Store(next)
	return l, nil
}

// check is a descriptor of a request, with the limit that it meets.
type check struct {
	refused  bool  // by its form: it is over the limit, and takes nothing
	rule     *rule // nil if there is none, or if another one replaces it
	limiter  *tiered.Limiter
	counts   *atomic.Pointer[statistics.Counts] // of the rule; nil for a limit that comes with the request
	key      string
	hits     int64 // 0 only looks
	gone     int64 // hits that were left, and are gone because those asked for are refused
	back     bool  // the hits are given back
	decided  bool
	limit    tiered.Limit
	decision tiered.Decision
}

// room is what a call needs until it is answered. It is used again: a flood of values that were
// never seen makes garbage enough, and garbage decides how much memory the process takes.
type room struct {
	checks    []check
	uses      []tiered.Use
	decisions []tiered.Decision
	name      []byte // of statistics
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// take adds what a check takes to what is decided next.
func (r *room) take(c *check) {
	r.uses, r.decisions = append(r.uses, c.use()), append(r.decisions, tiered.Decision{})
}

// empty forgets what was decided, and the keys.
func (r *room) empty() {
	clear(r.uses)
	clear(r.decisions)
	r.uses, r.decisions = r.uses[:0], r.decisions[:0]
}

// release gives the room back.
func (r *room) release() {
	r.empty()
	clear(r.checks)
	r.checks = r.checks[:0]
	if cap(r.name) > longestKept {
		r.name = nil
	}
	rooms.Put(r)
}

// ShouldRateLimit implements the protocol. It waits for Redis for at most the group's Budget, and
// leaves 10 ms or half of what the caller has left: Envoy tells its timeout with each call, so the
// answer comes in time. While Redis does not answer, the fail mode of each rule decides; for
// fail-closed the answer is the status Unavailable, so that Envoy's failure_mode_deny says what
// happens.
//
// Nothing that a client can bring into a call makes the answer an error, because Envoy lets a
// request through whose call fails. It is counted as it is, or is over the limit.
func (s *Service) ShouldRateLimit(ctx context.Context, r *pb.RateLimitRequest) (_ *pb.RateLimitResponse, err error) {
	defer func() {
		if err != nil {
			s.fail(status.Code(err))
		}
	}()
	st := s.state.Load()
	switch n := len(r.GetDescriptors()); {
	case ctx.Err() != nil: // a lease would admit the request, and nobody reads the answer any more
		return nil, status.FromContextError(ctx.Err()).Err()
	case st == nil:
		return nil, status.Error(codes.Unavailable, "there is no configuration yet")
	case r.GetDomain() == "":
		s.warn(noDomain, r, "a call without a domain is refused with InvalidArgument, so failure_mode_deny decides over it")
		return nil, status.Error(codes.InvalidArgument, "domain is empty: must be set")
	case n < 1:
		s.warn(noDescriptors, r, "a call without descriptors is refused with InvalidArgument, so failure_mode_deny decides over it")
		return nil, status.Error(codes.InvalidArgument, "there are 0 descriptors: must be 1 or more")
	case n > s.options.MaxDescriptors: // a client may send the headers of all
		s.warn(tooMany, r, "a call with more descriptors than MaxDescriptors is over the limit",
			"descriptors", n, "MaxDescriptors", s.options.MaxDescriptors)
		checks := make([]check, n)
		for i := range checks {
			checks[i].refused = true
		}
		return s.answer(r, checks), nil
	}
	used := rooms.Get().(*room)
	defer used.release()
	used.checks = slices.Grow(used.checks, len(r.GetDescriptors()))[:len(r.GetDescriptors())]
	checks := used.checks
	in := st.domains[r.GetDomain()]
	for i, d := range r.GetDescriptors() {
		s.resolve(&checks[i], st, in, r, d)
	}
	replace(checks)
	together := s.options.Together
	if in != nil && in.together != nil {
		together = *in.together
	}
	if together || s.options.OnlyOver {
		s.together(ctx, used, together)
	}
	used.each(ctx)
	for i := range checks {
		if d := &checks[i].decision; checks[i].limiter != nil {
			switch d.Reason {
			case tiered.Unavailable, tiered.Unknown:
				return nil, status.Errorf(codes.Unavailable, "descriptors[%d]: %s", i, d.Reason)
			case tiered.Canceled:
				return nil, status.FromContextError(ctx.Err()).Err()
			}
		}
	}
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.debug(ctx, r, checks)
	}
	if s.options.Statistics != nil {
		s.count(st, r, used)
	}
	return s.answer(r, checks), nil
}

// replace takes out the limits that others replace.
func replace(checks []check) {
	for i := range checks {
		if checks[i].rule == nil {
			continue
		}
		for _, name := range checks[i].rule.replaces {
			for k := range checks {
				if r := checks[k].rule; r != nil && r.answer.GetName() == name && !r.unlimited {
					checks[k].limiter = nil
				}
			}
		}
	}
}

func (c *check) use() tiered.Use { return c.limiter.For(c.key).N(c.hits).WithLimit(c.limit) }

// look reads what is left, and takes nothing. It is over the limit if nothing is left.
func (c *check) look(ctx context.Context) {
	d := c.use().N(1).Peek(ctx)
	if d.Reason == tiered.Granted || d.Reason == tiered.Limited || d.Reason == tiered.ExceedsBurst {
		d.Allowed = d.Remaining > 0 || c.rule.policy.Shadow
	}
	c.decision = d
}

// giveBack gives the hits back. If Redis does not answer, they stay taken.
func (c *check) giveBack(ctx context.Context) {
	if err := c.limiter.Refund(ctx, c.key, c.hits); err != nil {
		c.decision = tiered.Decision{Reason: tiered.Unavailable}
		return
	}
	c.look(ctx)
	c.decision.Allowed = true
}

// takes reports whether the check is to take hits. Otherwise it looks, gives hits back, has no
// limit or is decided.
func (c *check) takes() bool { return c.limiter != nil && !c.decided && c.hits > 0 && !c.back }

// each decides by itself each check that is not decided yet, in the order of the request.
func (r *room) each(ctx context.Context) {
	checks := r.checks
	r.empty()
	for i := range checks {
		if c := &checks[i]; c.takes() {
			r.take(c)
		}
	}
	tiered.All(r.uses...).AllowSeparately(ctx, r.decisions)
	var looks sync.WaitGroup // at the same time, because each may wait for Redis
	defer looks.Wait()
	n := 0
	for i := range checks {
		switch c := &checks[i]; {
		case c.takes():
			c.decision = r.decisions[n]
			c.countRefused(ctx)
			n++
		case c.limiter == nil, c.decided:
		case c.back:
			looks.Go(func() { c.giveBack(ctx) })
		default:
			looks.Go(func() { c.look(ctx) })
		}
	}
}

// countRefused takes hits that are refused, if the rule counts them: of a window what is left of
// it, of a token bucket all, as a debt. Redis hears of it within 50 ms. In shadow mode too, where
// they are admitted.
//
// A single hit that a window refuses finds nothing left. It takes nothing: otherwise it would take
// what other replicas hold in leases and give back.
func (c *check) countRefused(ctx context.Context) {
	d := &c.decision
	switch d.Reason {
	case tiered.Limited, tiered.ExceedsBurst, tiered.Shadowed:
	default:
		return
	}
	if !c.rule.countsRefused(c.hits) || c.hits == 1 && c.rule.has(lua.Window) {
		return
	}
	_ = c.use().Charge() // it is valid: it was decided about
	p := &c.rule.policy
	debt := max(p.MaxDebt, p.Limit.Burst, p.Limit.Tokens) // the rest is forgiven
	longer, edges := refill(p, min(c.hits, debt)), c.rule.has(lua.Edges)
	if edges { // its window ends when it does, also one of the calendar, which has no Per
		longer = 0
	}
	switch window := c.rule.has(lua.Window); {
	case d.RetryAfter == 0 || edges: // no retry helps, or the window's end is told
	case len(p.Also) > 0 || window && d.Remaining > 0: // what is left of a window is gone; the next refusal finds nothing
		d.RetryAfter = max(d.RetryAfter, c.use().Peek(ctx).RetryAfter)
	case !window:
		d.RetryAfter = min(d.RetryAfter+longer, refill(p, c.hits+debt))
	}
	c.gone = d.Remaining
	d.Remaining, d.ResetAfter = 0, max(min(d.ResetAfter, math.MaxInt64/4)+longer, d.RetryAfter)
}

// refill returns how long the limit of a policy takes for n tokens.
func refill(p *tiered.Policy, n int64) time.Duration {
	return time.Duration(min(float64(n)*float64(p.Limit.Per)/float64(p.Limit.Tokens), math.MaxInt64/4))
}

// together takes the hits of all checks, or none. A check that took nothing because of another one
// answers what is left. It leaves to each what cannot refuse the request: checks that take no hits,
// and those in quota mode. If the request is refused, those in quota mode take nothing either, and,
// unless it is strict, those that are over their limits count as they would alone.
func (s *Service) together(ctx context.Context, r *room, strict bool) {
	checks := r.checks
	var at []*check
	for i := range checks {
		if c := &checks[i]; c.takes() && !s.quota(c) {
			r.take(c)
			at = append(at, c)
		}
	}
	if !slices.ContainsFunc(checks, func(c check) bool { return c.refused && !s.quota(&c) }) {
		if at == nil {
			return
		}
		d := r.decisions
		all := tiered.All(r.uses...).AllowEach(ctx, d)
		for i, c := range at {
			c.decision, c.decided = d[i], true
			if d[i].Reason == tiered.Unknown && all.Reason != tiered.Unknown { // not decided: another one refused before
				c.decision.Allowed, c.decision.Reason = true, tiered.Granted
			}
		}
		for _, c := range at {
			if !strict {
				c.countRefused(ctx)
			}
		}
		if all.Allowed {
			return
		}
	}
	var looks sync.WaitGroup
	defer looks.Wait()
	for i := range checks {
		if c := &checks[i]; c.takes() {
			c.decided = true
			looks.Go(func() { c.look(ctx) })
		}
	}
}

// quota reports whether a check is in quota mode: it refuses a request only if all that are in
// quota mode are over their limits.
func (s *Service) quota(c *check) bool {
	if c.rule != nil && c.rule.unlimited {
		return false
	}
	return s.options.Quota || c.limiter != nil && c.rule.quota
}
