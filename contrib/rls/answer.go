package rls

import (
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// answer makes the answer from what was decided.
func (s *Service) answer(r *pb.RateLimitRequest, checks []check) *pb.RateLimitResponse {
	out := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK, Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, len(checks)),
	}
	refused, quotas, usedUp := false, 0, 0           // quotas are descriptors in quota mode
	var least *pb.RateLimitResponse_DescriptorStatus // the headers are of it
	for i := range checks {
		c := &checks[i]
		is := c.status(s.now())
		out.Statuses[i] = is
		over := is.GetCode() == pb.RateLimitResponse_OVER_LIMIT
		if s.quota(c) {
			if quotas++; over {
				usedUp++
			}
		}
		switch {
		case over && !s.quota(c):
			if refused = true; !c.refused || least == nil {
				least = is
			}
		case c.limiter != nil && !refused && (least == nil || is.GetLimitRemaining() < least.GetLimitRemaining()):
			least = is
		}
	}
	if refused = refused || quotas > 0 && quotas == usedUp; refused && !s.options.Shadow {
		out.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	} else if refused {
		s.options.Statistics.ShadowedCall()
	}
	s.calls.answered(out.OverallCode, checks)
	if s.options.Metadata {
		out.DynamicMetadata = metadataOf(r, checks, out.Statuses)
	}
	if h := s.options.Headers; h != nil && least != nil {
		out.ResponseHeadersToAdd = []*core.HeaderValue{
			{Key: h.Limit, Value: strconv.FormatUint(uint64(least.GetCurrentLimit().GetRequestsPerUnit()), 10)},
			{Key: h.Remaining, Value: strconv.FormatUint(uint64(least.GetLimitRemaining()), 10)},
			{Key: h.Reset, Value: strconv.FormatInt(least.GetDurationUntilReset().GetSeconds(), 10)},
		}
	}
	return out
}

// status is what became of a descriptor.
func (c *check) status(now time.Time) *pb.RateLimitResponse_DescriptorStatus {
	is := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	if c.limiter == nil {
		switch {
		case c.refused:
			is.Code = pb.RateLimitResponse_OVER_LIMIT
		case c.rule != nil && c.rule.unlimited:
			is.LimitRemaining = clamp(1<<32 - 1)
		}
		return is
	}
	d := &c.decision
	limit := c.rule.answer
	if n := int(d.LimitNumber); n > 1 && n-2 < len(c.rule.also) {
		limit = c.rule.also[n-2]
	}
	is.CurrentLimit, is.LimitRemaining = limit, clamp(d.Remaining)
	until := d.ResetAfter
	if !d.Allowed {
		is.Code = pb.RateLimitResponse_OVER_LIMIT
		if d.RetryAfter > 0 { // 0 if no retry helps
			until = d.RetryAfter
		}
	}
	seconds := int64(until / time.Second) // Envoy makes Retry-After of it, so it is never too short
	if until%time.Second > 0 {
		seconds++
	}
	if c.rule.policy.Calendar {
		period := periodOf(limit)
		end := period - now.Unix()%period
		// Unless hits are left that other replicas hold: those come back within a second or so. A
		// second less than the end is only another clock.
		if d.Allowed || d.RetryAfter <= 0 || seconds >= end-1 {
			seconds = end
		}
	}
	is.DurationUntilReset = &durationpb.Duration{Seconds: seconds}
	return is
}
