package rls

import (
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// namePart is of a name of statistics: what an entry of a descriptor adds to it.
type namePart struct {
	fixed string
	value valuePart
}

// valuePart says whether the entry's key and its value stand there.
type valuePart uint8

const (
	noValue   valuePart = iota // what is fixed stands there
	someValue                  // the value too, unless it is empty
	anyValue                   // in any case
)

// namesOf returns the parts of a rule's name if values of descriptors are in it, and nil otherwise:
// then it is what the configuration has, the path. detailed is detailed_metric of the rule. What
// shares its limit has one name, whatever else is asked for.
func namesOf(n *node, path []string, detailed bool) []namePart {
	parts, shares, valued := make([]namePart, len(path)), false, detailed
	for i := len(path) - 1; i >= 0; i, n = i-1, n.in {
		parts[i].fixed = path[i]
		open := n.key == path[i] || strings.Contains(path[i], "*") // a value may be any of several
		switch {
		case n.share != "":
			shares = true
		case detailed:
			parts[i].value = anyValue
		case n.valued && open:
			parts[i].value, valued = someValue, true
		}
	}
	if !valued {
		return nil
	}
	for i := range parts {
		if shares && parts[i].value == anyValue {
			parts[i].value = someValue
		}
	}
	return parts
}

// longestKept is the longest room for a name, in bytes, that is kept for the next call.
const longestKept = 16 << 10

// fail counts a call that is answered with an error.
func (s *Service) fail(code codes.Code) {
	s.calls.fail(code)
	switch code {
	case codes.InvalidArgument:
		s.options.Statistics.Failed(false)
	case codes.Unavailable: // without a configuration it is not because of Redis
		s.options.Statistics.Failed(s.state.Load() != nil)
	}
}

// count counts what was decided as envoyproxy/ratelimit does.
func (s *Service) count(st *state, r *pb.RateLimitRequest, used *room) {
	to := s.options.Statistics
	if st.domains[r.GetDomain()] == nil {
		to.UnknownDomain(r.GetDomain(), len(r.GetDescriptors()))
		return
	}
	for i := range used.checks {
		c := &used.checks[i]
		if c.limiter == nil || c.back {
			continue
		}
		d := &c.decision
		to.Add(s.countsOf(c, r, i, used), statistics.Hit{
			Hits: uint64(c.hits), Limit: uint64(c.rule.answer.GetRequestsPerUnit()), Left: uint64(max(0, d.Remaining+c.gone)),
			Over: !d.Allowed || d.Reason == tiered.Shadowed, Shadow: d.Reason == tiered.Shadowed, Local: d.Tier == tiered.Local,
		})
	}
}

// countsOf returns where a descriptor counts: for its rule, for its values if they are asked for,
// or for all that it is if its limit comes with it. It is nil if there are too many.
func (s *Service) countsOf(c *check, r *pb.RateLimitRequest, i int, used *room) *statistics.Counts {
	to := s.options.Statistics
	if c.counts == nil || c.rule.names != nil {
		name := append(used.name[:0], r.GetDomain()...)
		for k, e := range r.GetDescriptors()[i].GetEntries() {
			part := namePart{value: someValue}
			if c.counts != nil {
				part = c.rule.names[k]
			}
			name = append(name, '.')
			if part.value == noValue {
				name = append(name, part.fixed...)
				continue
			}
			name = append(name, e.GetKey()...)
			if e.GetValue() != "" || part.value == anyValue {
				name = append(append(name, '_'), s.Key(e.GetValue())...)
			}
		}
		used.name = name
		if is := to.Value(name); is != nil || c.counts == nil {
			return is
		}
	}
	is := c.counts.Load()
	if is == nil {
		is = to.Rule(c.rule.domain + "." + c.rule.path)
		c.counts.Store(is)
	}
	return is
}
