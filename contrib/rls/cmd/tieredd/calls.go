package main

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
)

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
