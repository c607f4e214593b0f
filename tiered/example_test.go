package tiered_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func Example() {
	store := remote.NewMemory() // or remote.Open("redis://127.0.0.1:6379", nil)
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerHour(2)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	for range 3 {
		d := limiter.Allow(ctx, "ann")
		fmt.Println(d.Allowed, d.Reason, d.Remaining)
	}
	// Output:
	// true granted 1
	// true granted 0
	// false limited 0
}

func ExampleGroup() {
	store := remote.NewMemory()
	defer store.Close()
	group, err := tiered.NewGroup(store, &tiered.Options{Processes: 4})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer group.Close(ctx)

	reads, err := group.Limiter(tiered.Policy{Name: "reads", Limit: tiered.PerSecond(1000)})
	if err != nil {
		panic(err)
	}
	logins, err := group.Limiter(tiered.Policy{
		Name: "logins", Limit: tiered.PerMinute(5), FailMode: tiered.FailClosed,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(reads.Allow(ctx, "ann").Allowed, logins.AllowN(ctx, "ann", 6).Reason)
	// Output: true exceeds burst
}

func ExampleLimiter_Reserve() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "tokens", Limit: tiered.PerHour(1000)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	r := limiter.Reserve(ctx, "ann", 300) // what the request may cost
	if !r.Allowed {
		panic(r.Err())
	}
	r.Settle(120) // what it did cost: 180 go back
	fmt.Println(r.Reason)
	// Output: granted
}

func ExampleLimiter_Do() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "orders", Limit: tiered.PerHour(1)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	order := func(context.Context) error { return nil }
	fmt.Println(limiter.Do(ctx, "ann", order))
	err = limiter.Do(ctx, "ann", order)
	fmt.Println(errors.Is(err, tiered.ErrLimited))
	// Output:
	// <nil>
	// true
}

func ExampleLimiter_Wait() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "jobs", Limit: tiered.PerSecond(1000)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	fmt.Println(limiter.Wait(ctx, "queue"))
	fmt.Println(errors.Is(limiter.WaitN(ctx, "queue", 2000), tiered.ErrExceedsBurst)) // would wait for ever: says so at once
	// Output:
	// <nil>
	// true
}
