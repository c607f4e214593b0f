package rls

import (
	"context"
	"sync/atomic"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/statistics"
)

// Calls are counts of calls by their outcome, as Envoy counts them: each is in one field.
type Calls struct {
	OK        uint64
	OverLimit uint64
	BadForm   uint64                // over the limit too, because the call has a form that cannot be counted
	Failed    map[codes.Code]uint64 // Envoy's failure_mode_deny decides over the request

	// Unmatched are descriptors that met no rule, by domain. Those of domains that are not
	// configured are at "".
	Unmatched map[string]uint64
}

const failures = int(codes.Unauthenticated) + 1

// calls are the counters of Calls.
type calls struct {
	ok, over, form atomic.Uint64
	failed         [failures]atomic.Uint64
}

func (c *calls) fail(code codes.Code) {
	if int(code) < failures {
		c.failed[code].Add(1)
	}
}

func (c *calls) answered(code pb.RateLimitResponse_Code, checks []check) {
	if code == pb.RateLimitResponse_OK {
		c.ok.Add(1)
		return
	}
	for i := range checks {
		if checks[i].refused {
			c.form.Add(1)
			return
		}
	}
	c.over.Add(1)
}

// Calls returns the counts since the Service was made. Those of a domain begin anew if the domain
// was away.
func (s *Service) Calls() Calls {
	c := Calls{
		OK: s.calls.ok.Load(), OverLimit: s.calls.over.Load(), BadForm: s.calls.form.Load(),
		Failed: map[codes.Code]uint64{}, Unmatched: map[string]uint64{},
	}
	for code := range s.calls.failed {
		if n := s.calls.failed[code].Load(); n > 0 {
			c.Failed[codes.Code(code)] = n
		}
	}
	if st := s.state.Load(); st != nil {
		for name, n := range st.unmatched {
			c.Unmatched[name] = n.Load()
		}
	}
	return c
}

// StatsHandler is for the gRPC server of the Service: [Service.Calls] then has the calls too that
// gRPC refuses before they reach the Service, and the log tells of them.
func (s *Service) StatsHandler() stats.Handler { return refusals{s} }

type refusals struct{ s *Service }

type otherMethod struct{} // the key of the statistics.Method of a call, unless it is ShouldRateLimit

func (refusals) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	switch call.FullMethodName {
	case pb.RateLimitService_ShouldRateLimit_FullMethodName:
		return ctx // nearly all: it costs nothing
	case health.Health_Check_FullMethodName:
		return context.WithValue(ctx, otherMethod{}, statistics.Check)
	}
	return context.WithValue(ctx, otherMethod{}, statistics.Method(-1))
}

func (refusals) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (refusals) HandleConn(context.Context, stats.ConnStats)                       {}

func (r refusals) HandleRPC(ctx context.Context, event stats.RPCStats) {
	end, ok := event.(*stats.End)
	if !ok {
		return
	}
	if to := r.s.options.Statistics; to != nil {
		method, other := ctx.Value(otherMethod{}).(statistics.Method)
		if !other {
			method = statistics.ShouldRateLimit
		}
		to.Call(method, end.EndTime.Sub(end.BeginTime))
	}
	if end.Error == nil {
		return
	}
	switch is := status.Convert(end.Error); is.Code() {
	case codes.Internal, codes.ResourceExhausted, codes.Unauthenticated: // no answer of a Service
		r.s.calls.fail(is.Code())
		r.s.warn(refusedByGRPC, nil, "a call is refused before it is read, so failure_mode_deny decides over it", "error", is.Message())
	}
}
