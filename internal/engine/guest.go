package engine

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Guest is another kind of limit on a Group, with figures S. Package tiered takes it in: only this
// module can make one.
type Guest[S any] struct {
	// Closing is called once, by the first Close of the Group, before anything else ends. It must
	// return when ctx has ended.
	Closing func(ctx context.Context)

	// FailMode returns the name of the policy and how it decides while Redis does not answer.
	FailMode func() (policy string, mode local.FailMode)

	// Stats returns the name of the policy and its figures.
	Stats func() (policy string, s S)
}
