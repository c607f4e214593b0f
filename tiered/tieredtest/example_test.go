package tieredtest_test

import (
	"context"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

// A service with two policies goes through an outage: one limits on, the other refuses.
func ExampleStore() {
	store := tieredtest.NewStore()
	group, err := tiered.NewGroup(store, nil) // as the service does it
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer group.Close(ctx)
	api, err := group.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerHour(10), FailMode: tiered.FailLocal})
	if err != nil {
		panic(err)
	}
	logins, err := group.NewLimiter(tiered.Policy{Name: "logins", Limit: tiered.PerHour(10), FailMode: tiered.FailClosed})
	if err != nil {
		panic(err)
	}

	store.Fail()
	fmt.Println(api.Allow(ctx, "ann").Reason, logins.Allow(ctx, "ann").Reason)
	store.Heal()
	// Output: fallback unavailable
}
