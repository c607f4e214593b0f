// Package inside has what package tiered gives to the packages beside it, as policyfile and the adapters. It is no part of the
// API, because no user needs it. Package tiered sets the functions. What is any here is of its types.
package inside

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// MaxKeyLength is the longest key, in bytes.
const MaxKeyLength = engine.MaxKeyLength

var (
	// CountReload counts a reload of a *Group in its Stats: nil says that it has the new configuration, any other error why
	// it does not.
	CountReload func(group any, err error)

	// AllowSeparately decides each use that All joined to a *Use by itself, and writes to each, a []Decision, as AllowEach
	// does. It is for a batch of independent requests, because that needs one pipeline per node.
	AllowSeparately func(ctx context.Context, use, each any)

	// CheckCost returns why no request of a valid Policy that costs n is ever admitted, or nil. A policy with PerKey may give
	// some keys a larger limit, and is not asked: then only n itself is checked. Blocked admits nothing on purpose, at any
	// cost.
	CheckCost func(policy any, n int64) error

	// CheckLimit returns why PerKey of a valid Policy may not return a Limit for a key, or nil.
	CheckLimit func(policy, limit any) error

	// CheckCarriesLimits returns why no request of a valid Policy may carry a limit, or nil.
	CheckCarriesLimits func(policy any) error
)
