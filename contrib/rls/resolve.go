package rls

import (
	"crypto/sha256"
	"strconv"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// resolve finds the limit that a descriptor meets. in is nil if the request's domain is unknown.
func (s *Service) resolve(c *check, st *state, in *domain, r *pb.RateLimitRequest, d *ratelimit.RateLimitDescriptor) {
	c.hits = max(int64(r.GetHitsAddend()), 1)
	if d.GetHitsAddend() != nil {
		c.hits = int64(min(d.GetHitsAddend().GetValue(), 1<<40))
	}
	if n := len(d.GetEntries()); n < 1 { // Envoy leaves out entries whose header is not there (skip_if_absent)
		st.countUnmatched(r.GetDomain())
		return
	} else if n > s.options.MaxDescriptors {
		s.warn(tooManyEntries, r, "a descriptor with more entries than MaxDescriptors is over the limit",
			"entries", n, "MaxDescriptors", s.options.MaxDescriptors)
		c.refused = true
		return
	}
	var room [8]string
	values := room[:0]
	if o := d.GetLimit(); o != nil && in != nil {
		limit, err := carried(o)
		var limiter *tiered.Limiter
		if err == nil {
			if limiter, values = st.tied(in, d.GetEntries(), limit, values); limiter == nil {
				limiter, err = s.override(st, r.GetDomain(), limit)
				for _, e := range d.GetEntries() {
					values = append(values, e.GetKey(), e.GetValue())
				}
			}
		}
		if err != nil {
			s.warn(badLimit, r, "a descriptor that carries a limit is over it, because the limit is wrong", "error", err)
			c.refused = true
			return
		}
		c.limiter, c.limit = limiter, limitOf(limit)
		c.rule = &rule{policy: policyOf(limit), answer: limit}
	} else {
		var at *node
		if at, values = in.find(d.GetEntries(), values); at == nil || at.rule == nil {
			if at == nil || at.children != nil { // or a value is free of limits
				s.unmatched(st, in, r.GetDomain(), d.GetEntries())
			}
			return
		}
		if c.rule = at.rule; c.rule.unlimited {
			return
		}
		l := st.limiters[c.rule]
		c.limiter, c.counts = l.Limiter, &l.counts
	}
	c.key = s.keyOf(values)
	if c.hits == 0 && !c.rule.looked.Load() {
		c.rule.looked.Store(true)
	}
	if c.back = d.GetIsNegativeHits() && c.hits > 0; c.back && c.rule.has(lua.Window) {
		s.warn(notGivenBack, r, "hits of a window cannot be given back, so they stay taken (is_negative_hits)")
		c.back, c.hits = false, 0
	}
}

// join makes one key of values. The length before each keeps two lists apart.
func join(values []string) string {
	n := 0
	for _, v := range values {
		n += len(v) + 8
	}
	key := make([]byte, 0, n)
	for _, v := range values {
		key = strconv.AppendInt(key, int64(len(v)), 10)
		key = append(append(key, ':'), v...)
	}
	return string(key)
}

// keyOf makes the key of values. If they are too long for a key, it is made of their digest, which
// stands for them alone.
func (s *Service) keyOf(values []string) string {
	key := s.Key(join(values))
	if len(key) <= defaults.MaxKeyLength {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + string(sum[:]) // the key of values begins with a digit
}
