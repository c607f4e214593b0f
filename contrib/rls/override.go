package rls

import (
	"fmt"
	"strconv"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// mostMultiplied is how many policies there are for periods of several units that requests carry: a
// policy is never removed.
const mostMultiplied = 100

// overridden are the limits that requests carry: those of a domain with a period share a policy.
type overridden struct {
	domain     string
	unit       pb.RateLimitResponse_RateLimit_Unit
	multiplier uint32 // of the unit; 0 for one unit
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

// tied returns the limiter and the key of the rule that a descriptor meets besides the limit that
// it carries: both count together, as in envoyproxy/ratelimit, if they have the same period. It is
// nil if the descriptor meets none. A rule that is tried out, has more limits or another algorithm,
// or whose values share a limit counts by itself.
func (st *state) tied(in *domain, entries []*entry, limit *pb.RateLimitResponse_RateLimit, values []string) (*tiered.Limiter, []string) {
	at, found := in.find(entries, values)
	if at == nil || at.rule == nil || at.rule.unlimited {
		return nil, values
	}
	r := at.rule
	if !r.has(lua.Edges) || !r.policy.Calendar || r.policy.Shadow || r.also != nil || periodOf(r.answer) != periodOf(limit) {
		return nil, values
	}
	for i, e := range entries {
		if found[i] != e.GetValue() {
			return nil, values
		}
	}
	return st.limiters[r].Limiter, found
}

// carried returns the limit that a request carries.
func carried(o *ratelimit.RateLimitDescriptor_RateLimitOverride) (*pb.RateLimitResponse_RateLimit, error) {
	l := &pb.RateLimitResponse_RateLimit{
		RequestsPerUnit: o.GetRequestsPerUnit(), Unit: pb.RateLimitResponse_RateLimit_Unit(o.GetUnit()),
		UnitMultiplier: o.GetUnitMultiplier(),
	}
	switch period := periodOf(l); {
	case seconds[l.GetUnit()] == 0:
		return nil, fmt.Errorf("limit.unit is %v: must be a unit from SECOND to YEAR", l.GetUnit())
	case period < 1 || period > century:
		return nil, fmt.Errorf("limit.unit_multiplier is %d: must be 1 or more, and at most 100 years",
			l.GetUnitMultiplier().GetValue())
	}
	return l, nil
}
