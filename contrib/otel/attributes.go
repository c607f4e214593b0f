package otellimit

import (
	"net"
	"strconv"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tiered-limiter/tiered-limiter/tiered/metrics"
)

// Attributes of events. There are no semantic conventions for rate limiting but those of ASP.NET
// Core. "ratelimit" is in the place of their "aspnetcore.rate_limiting". Attributes of metrics have
// the names that labels have in Prometheus, so that one dashboard fits both.
const (
	policyKey attribute.Key = "ratelimit.policy"
	tierKey   attribute.Key = "ratelimit.tier"
	reasonKey attribute.Key = "ratelimit.reason"
)

// errorKey is of the semantic conventions: why something failed. What did not fail has none.
const errorKey attribute.Key = "error.type"

// attributesOf returns the labels of a series, and what the semantic conventions have for them.
func attributesOf(s metrics.Sample) (all []attribute.KeyValue) {
	for i, name := range s.Metric.Labels {
		value := s.Labels[i]
		all = append(all, attribute.String(name, value))
		switch {
		case name == "node":
			all = append(all, server(value)...)
		case name == "cause", s.Metric.Name == "tiered_redis_calls_total" && name == "outcome" && value != "answered":
			all = append(all, errorKey.String(value))
		}
	}
	return all
}

// server returns the attributes of a Redis node, whose name is an address. By the semantic
// conventions the port is an attribute of its own. A name without a port is the address.
func server(name string) []attribute.KeyValue {
	host, digits, err := net.SplitHostPort(name)
	port, wrong := strconv.ParseUint(digits, 10, 16)
	if err != nil || wrong != nil || strconv.FormatUint(port, 10) != digits {
		return []attribute.KeyValue{attribute.String("server.address", name)}
	}
	return []attribute.KeyValue{attribute.String("server.address", host), attribute.Int("server.port", int(port))}
}
