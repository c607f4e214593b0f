package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

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

	reads, err := group.NewLimiter(tiered.Policy{Name: "reads", Limit: tiered.PerSecond(1000)})
	if err != nil {
		panic(err)
	}
	logins, err := group.NewLimiter(tiered.Policy{
		Name: "logins", Limit: tiered.PerMinute(5), FailMode: tiered.FailClosed,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(reads.Allow(ctx, "ann").Allowed, logins.AllowN(ctx, "ann", 6).Reason)
	// Output: true exceeds burst
}

// A process that gets a signal finishes what is under way and returns its leases. The signal's
// context has ended by then, so Close gets a fresh one.
func ExampleGroup_Close() {
	store, err := remote.Open("redis://127.0.0.1:6379", nil)
	if err != nil {
		panic(err)
	}
	defer store.Close()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		panic(err)
	}
	limiter, err := group.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
	if err != nil {
		panic(err)
	}
	server := &http.Server{
		Addr: "127.0.0.1:8080", ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !limiter.Allow(r.Context(), r.Header.Get("X-User")).Allowed {
				http.Error(w, "Rate limit exceeded.", http.StatusTooManyRequests)
			}
		}),
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		log.Print(server.ListenAndServe())
		stop() // the port is taken
	}()
	<-ctx.Done()

	requests, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	err = server.Shutdown(requests)
	leases, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = errors.Join(err, group.Close(leases)) // says which tokens were not given back
	log.Print("closed: ", err)
}

func ExampleLimiter_ReserveN() {
	store := remote.NewMemory()
	defer store.Close()
	limiter, err := tiered.New(store, tiered.Policy{Name: "tokens", Limit: tiered.PerHour(1000)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	r := limiter.ReserveN(ctx, "ann", 300) // what the request may cost
	if !r.Allowed {
		panic(r.Err())
	}
	r.Settle(120) // what it did cost: 180 go back
	fmt.Println(r.Reason)
	// Output: granted
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
	// would wait for ever: says so at once
	fmt.Println(limiter.WaitN(ctx, "queue", 2000))
	// Output:
	// <nil>
	// tiered: refused by policy "jobs": exceeds burst (cost 2000: must be at most 1000)
}

func ExampleUse_WithPlan() {
	perUser, err := tiered.New(remote.NewMemory(), tiered.Policy{
		Name:  "per-user",
		Limit: tiered.PerMinute(100), // without a plan, or with an unknown one
		Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000).WithBurst(2000), "staff": tiered.Unlimited()},
	}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer perUser.Close(ctx)

	fmt.Println(perUser.For("ann").WithPlan("pro").Allow(ctx).Burst)
	fmt.Println(perUser.For("bob").WithPlan("").Allow(ctx).Burst)
	// Output:
	// 2000
	// 100
}

func ExampleAll() {
	store := remote.NewMemory()
	defer store.Close()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer group.Close(ctx)
	users, err := group.NewLimiter(tiered.Policy{Name: "user", Limit: tiered.PerHour(1)})
	if err != nil {
		panic(err)
	}
	tenants, err := group.NewLimiter(tiered.Policy{Name: "tenant", Limit: tiered.PerHour(100)})
	if err != nil {
		panic(err)
	}

	uses := tiered.All(users.For("ann"), tenants.For("acme"))
	fmt.Println(uses.Allow(ctx).Allowed)
	d := uses.Allow(ctx)
	fmt.Println(d.Reason, "by", d.Policy, d.Key) // and the tenant's token is given back
	// Output:
	// true
	// limited by user ann
}

// A request for an export costs 50 tokens, by the limit of the plan that it carries.
func ExampleUse_N() {
	store := remote.NewMemory()
	defer store.Close()
	users, err := tiered.New(store, tiered.Policy{Name: "user", Limit: tiered.PerHour(60)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer users.Close(ctx)

	plan := tiered.PerHour(1000)
	d := users.For("ann").N(50).WithLimit(plan).Allow(ctx)
	fmt.Println(d.Reason, d.Cost, d.Remaining)
	// Output: granted 50 950
}

func ExampleUse_Reserve() {
	store := remote.NewMemory()
	defer store.Close()
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer group.Close(ctx)
	requests, err := group.NewLimiter(tiered.Policy{Name: "requests", Limit: tiered.PerMinute(60)})
	if err != nil {
		panic(err)
	}
	tokens, err := group.NewLimiter(tiered.Policy{Name: "tokens", Limit: tiered.PerMinute(10_000)})
	if err != nil {
		panic(err)
	}

	r := tiered.All(requests.For("ann"), tokens.For("ann").N(4000)).Reserve(ctx) // an estimate
	if !r.Allowed {
		panic(r.Err())
	}
	r.Settle(1, 350) // what the model did use: 3650 tokens go back
	fmt.Println(r.Policy, r.Remaining)
	// Output: tokens 6000
}

func ExampleLimiter_SetPolicy() {
	store := remote.NewMemory()
	defer store.Close()
	plans := map[string]tiered.Limit{"gold": tiered.PerHour(3), "thief": tiered.Blocked()}
	limiter, err := tiered.New(store, tiered.Policy{
		Name:   "api",
		Limit:  tiered.PerHour(1), // who has no plan
		PerKey: func(key string) tiered.Limit { return plans[key] },
	}, &tiered.Options{Budget: time.Second})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)
	fmt.Println(limiter.Allow(ctx, "gold").Burst, limiter.Allow(ctx, "ann").Burst, limiter.Allow(ctx, "thief").Allowed)

	p := limiter.Policy()
	p.Limit = tiered.PerHour(2)
	if err := limiter.SetPolicy(p); err != nil {
		panic(err)
	}
	d := limiter.Allow(ctx, "ann")
	fmt.Println(d.Burst, d.Allowed) // her one token is used: a raised limit is no gift
	// Output:
	// 3 1 false
	// 2 false
}
