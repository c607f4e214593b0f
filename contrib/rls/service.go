package rls

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
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

	// Standing is the part of each limit that the replicas share, as tiered.Policy.Standing, of
	// rules that can have it and for which the files say nothing: token buckets and fixed windows
	// that are large enough.
	Standing float64

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
	if part := s.options.Standing; !slices.Contains(slices.Collect(maps.Values(defaults.Parts)), part) {
		all = append(all, fmt.Errorf("rls: Options.Standing is %v: must be a multiple of 1/8 from 0 to 3/4", part))
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
	if err := s.group.SetPolicies(append(c.policies(s.options.Standing), s.overrides...)); err != nil {
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
