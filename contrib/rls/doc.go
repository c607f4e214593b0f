// Package rls is a rate limit service for Envoy: envoy.service.ratelimit.v3.RateLimitService, with
// the configuration of envoyproxy/ratelimit, over the leases of package tiered. cmd/tieredd serves
// it.
//
// docs/service.md tells a user of envoyproxy/ratelimit how to change over, and what differs.
package rls
