package rls

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// ofDescriptors are fields that envoyproxy/ratelimit takes within rate_limit too, and does not read
// there.
var ofDescriptors = []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"}

// rule reads a limit. own are the settings that envoyproxy/ratelimit does not have; nil is none.
func (p *parser) rule(path []string, n, own *yaml.Node) *rule {
	r, before := &rule{domain: path[0], path: strings.Join(path[1:], ".")}, len(p.problems)
	p.config.rules = append(p.config.rules, r)
	fields := p.fields(n, append([]string{"requests_per_unit", "unit", "unlimited", "name", "replaces"}, ofDescriptors...)...)
	if fields == nil {
		return r
	}
	for _, name := range ofDescriptors {
		if at := fields[name]; at != nil {
			p.warn(at, "%s is within rate_limit, so it is ignored: must stand beside it", name)
		}
	}
	var ownFields map[string]*yaml.Node
	if own != nil {
		ownFields = p.fields(own, "algorithm", "burst", "max_debt", "also", "count_refused", "fail_mode", "standing", "unit_multiplier")
	}
	r.fields = len(fields) + len(ownFields)
	word := p.text(fields["unit"])
	r.unlimited = p.truth(fields["unlimited"])
	r.answer = p.answer(fields)
	r.answer.Name = p.text(fields["name"])
	unit := r.answer.GetUnit()
	p.multiply(r.answer, ownFields["unit_multiplier"])
	p.list(fields["replaces"], func(n *yaml.Node) {
		name := p.text(p.fields(n, "name")["name"])
		switch name {
		case "":
			p.bad(n, "name is empty: must be the name of another limit")
		case r.answer.GetName():
			p.bad(n, "name is %.64q, the limit's own: must be that of another", name)
		}
		r.replaces, r.fields = append(r.replaces, name), r.fields+1
	})
	switch {
	case r.unlimited && word != "":
		p.bad(fields["unit"], "unit is %.64q and unlimited is true: must have only one of them", word)
	case !r.unlimited && seconds[unit] == 0:
		p.bad(n, "unit is %.64q: must be second, minute, hour, day, week, month or year", word)
	case !r.unlimited:
		r.policy = policyOf(r.answer)
		kind := kindOf(r.answer)
		if ownFields != nil {
			kind += p.own(r, ownFields)
		}
		r.policy.Name = policyName(path, kind)
		if err := r.policy.Validate(); err != nil && len(p.problems) == before {
			p.bad(n, "%s", strings.ReplaceAll(err.Error(), "\n", ", and "))
		}
	}
	return r
}

// multiply reads how many units a period has, if it has several.
func (p *parser) multiply(l *pb.RateLimitResponse_RateLimit, n *yaml.Node) {
	if n == nil {
		return
	}
	l.UnitMultiplier = wrapperspb.UInt32(uint32(p.number(n, 32)))
	if period := periodOf(l); seconds[l.GetUnit()] != 0 && (period < 1 || period > century) {
		p.bad(n, "unit_multiplier is %d: must be 1 or more, and at most 100 years", l.GetUnitMultiplier().GetValue())
	}
}

// kindOf returns the period of a limit as a part of a policy's name, such as minute or 5-minute.
func kindOf(l *pb.RateLimitResponse_RateLimit) string {
	unit := strings.ToLower(l.GetUnit().String())
	if n := l.GetUnitMultiplier().GetValue(); n > 1 {
		return fmt.Sprintf("%d-%s", n, unit)
	}
	return unit
}

// answer reads how many requests a unit has.
func (p *parser) answer(fields map[string]*yaml.Node) *pb.RateLimitResponse_RateLimit {
	unit := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(p.text(fields["unit"]))]
	return &pb.RateLimitResponse_RateLimit{
		RequestsPerUnit: uint32(p.number(fields["requests_per_unit"], 32)),
		Unit:            pb.RateLimitResponse_RateLimit_Unit(unit),
	}
}

// algorithm reads the name of an algorithm.
func (p *parser) algorithm(n *yaml.Node) tiered.Algorithm {
	text := p.text(n)
	a, err := lua.Parse(text)
	if err != nil {
		p.bad(n, "Algorithm is %.80q: %v", text, err)
	}
	return tiered.Algorithm(a)
}

// own reads the settings that envoyproxy/ratelimit does not have. It returns a mark for the
// policy's name: a policy cannot change these while it runs, so with another of them a rule is a
// new policy.
func (p *parser) own(r *rule, fields map[string]*yaml.Node) (mark string) {
	policy := &r.policy
	if n := fields["algorithm"]; n != nil {
		policy.Algorithm = p.algorithm(n)
		mark = "-" + strings.ReplaceAll(policy.Algorithm.String(), " ", "-")
	}
	policy.Calendar = r.has(lua.Phased)
	ofBucket := func(name string) int64 {
		n := fields[name]
		if n != nil && r.has(lua.Window) {
			p.bad(n, "%s is set, but algorithm is %v: must be token bucket", name, policy.Algorithm)
		}
		return int64(p.number(n, 32))
	}
	policy.Limit.Burst, policy.MaxDebt = ofBucket("burst"), ofBucket("max_debt")
	p.list(fields["also"], func(n *yaml.Node) {
		fields := p.fields(n, "requests_per_unit", "unit", "unit_multiplier")
		if fields == nil {
			return
		}
		limit := p.answer(fields)
		p.multiply(limit, fields["unit_multiplier"])
		if seconds[limit.GetUnit()] == 0 || limit.GetRequestsPerUnit() == 0 {
			p.bad(n, "a limit under also: must have requests_per_unit of 1 or more, and a unit from second to year")
			return
		}
		r.also, r.fields = append(r.also, limit), r.fields+1
		policy.Limit = policy.Limit.And(limitOf(limit))
		mark += fmt.Sprintf("-%d-%s", limit.GetRequestsPerUnit(), kindOf(limit))
	})
	if n := fields["count_refused"]; n != nil {
		is := p.truth(n)
		r.refusedCount = &is
	}
	if n := fields["fail_mode"]; n != nil {
		if err := policy.FailMode.UnmarshalText([]byte(p.text(n))); err != nil {
			p.bad(n, "%s", strings.TrimPrefix(err.Error(), "tiered: "))
		}
	}
	if r.standing = p.part(fields["standing"]); r.standing != nil {
		policy.Standing = *r.standing
	}
	return mark
}

// part reads which part of a limit processes share, nil if the file does not say.
func (p *parser) part(n *yaml.Node) *float64 {
	if n == nil {
		return nil
	}
	part, err := Part(p.text(n))
	if err != nil {
		p.bad(n, "standing %v", err)
	}
	return &part
}

// Part returns the part of a limit that a word such as 1/8 means; off is 0.
func Part(text string) (float64, error) {
	part, ok := defaults.Parts[text]
	if !ok {
		return 0, fmt.Errorf("is %q: must be one of %s", text, strings.Join(slices.Sorted(maps.Keys(defaults.Parts)), ", "))
	}
	return part, nil
}
