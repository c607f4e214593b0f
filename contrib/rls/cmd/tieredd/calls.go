package main

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
)

// fullConnections says that a connection has as many calls open as it may have: its further calls
// wait at the client, and Envoy gives up those that wait for longer than its timeout.
type fullConnections struct {
	most int64
	log  *slog.Logger
	said atomic.Int64 // Unix nanoseconds
}

type openCalls struct{} // the key of a connection's *atomic.Int64

// TagConn implements stats.Handler, as the other methods do.
func (*fullConnections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, openCalls{}, new(atomic.Int64))
}

// TagRPC changes nothing.
func (*fullConnections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleConn changes nothing.
func (*fullConnections) HandleConn(context.Context, stats.ConnStats) {}

// HandleRPC counts the calls of a connection.
func (f *fullConnections) HandleRPC(ctx context.Context, event stats.RPCStats) {
	switch event.(type) {
	case *stats.Begin:
		if ctx.Value(openCalls{}).(*atomic.Int64).Add(1) < f.most {
			return
		}
		now, last := time.Now().UnixNano(), f.said.Load()
		if (last == 0 || now-last >= int64(time.Minute)) && f.said.CompareAndSwap(last, now) {
			f.log.Warn("a connection has as many calls open as TIERED_MAX_STREAMS: its others wait at the client", "TIERED_MAX_STREAMS", f.most)
		}
	case *stats.End:
		ctx.Value(openCalls{}).(*atomic.Int64).Add(-1)
	}
}

// callCounts has the calls of the gRPC service and of /json by their outcome, so that a graph of
// them agrees with Envoy's.
type callCounts struct{ service *rls.Service }

var (
	callsDesc = prometheus.NewDesc("tieredd_calls_total",
		"Calls by what Envoy hears: ok, over limit, or error, about which failure_mode_deny decides.", []string{"outcome", "reason"}, nil)
	unmatchedDesc = prometheus.NewDesc("tieredd_unmatched_descriptors_total",
		"Descriptors that met no rule. Those of domains that are not configured have the domain \"\".", []string{"domain"}, nil)
)

func (callCounts) Describe(to chan<- *prometheus.Desc) { to <- callsDesc; to <- unmatchedDesc }

func (c callCounts) Collect(to chan<- prometheus.Metric) {
	is := c.service.Calls()
	count := func(n uint64, outcome, reason string) {
		to <- prometheus.MustNewConstMetric(callsDesc, prometheus.CounterValue, float64(n), outcome, reason)
	}
	count(is.OK, "ok", "")
	count(is.OverLimit, "over limit", "limit")
	count(is.BadForm, "over limit", "form")
	for _, code := range []codes.Code{ // the usual ones are there from the start, so that a first error is an increase
		codes.InvalidArgument, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.ResourceExhausted,
		codes.Unauthenticated,
	} {
		count(is.Failed[code], "error", code.String())
		delete(is.Failed, code)
	}
	for code, n := range is.Failed {
		count(n, "error", code.String())
	}
	for domain, n := range is.Unmatched {
		to <- prometheus.MustNewConstMetric(unmatchedDesc, prometheus.CounterValue, float64(n), strings.ToValidUTF8(domain, "_"))
	}
}
