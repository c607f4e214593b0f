package benchmarks

import (
	"context"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"
)

// Bare is the limiter with which all in-process figures are compared: one x/time/rate limiter, and no keys at all.
const Bare = "x-time-rate"

// BareLRU is what a service writes that needs Bare per key.
const BareLRU = "x-time-rate+golang-lru"

// inProcess are the peers that do not share limits between processes.
var inProcess = []Contestant{
	{Name: Bare, Make: bare, Loads: []string{Hot.Name, Denied.Name, Down.Name}},
	{Name: BareLRU, Make: bareLRU, Loads: []string{Hot.Name, Denied.Name, Warm.Name}},
	{Name: "failsafe-go-bursty", Make: failsafe, Loads: []string{Hot.Name, Denied.Name}},
	{Name: "sethvargo-memorystore", Make: sethvargo, Loads: []string{Hot.Name, Denied.Name, Warm.Name}},
}

// verdict returns the Answer of a peer that says yes or no.
func verdict(admitted bool) Answer {
	if admitted {
		return Admitted
	}
	return 0
}

func newBare(l Limit) *rate.Limiter { return rate.NewLimiter(rate.Limit(l.perSecond()), int(l.Tokens)) }

func bare(_ testing.TB, _ *Server, l Limit) Decide {
	limiter := newBare(l)
	return func(context.Context, string) Answer { return verdict(limiter.Allow()) }
}

// bareLRU has room for twice the keys, like ours.
func bareLRU(tb testing.TB, _ *Server, l Limit) Decide {
	cache, err := lru.New[string, *rate.Limiter](maxKeys)
	if err != nil {
		tb.Fatal(err)
	}
	return func(_ context.Context, key string) Answer {
		limiter, ok := cache.Get(key)
		if !ok {
			limiter = newBare(l)
			if before, had, _ := cache.PeekOrAdd(key, limiter); had {
				limiter = before
			}
		}
		return verdict(limiter.Allow())
	}
}

func failsafe(_ testing.TB, _ *Server, l Limit) Decide {
	limiter := ratelimiter.NewBursty[any](uint(l.Tokens), l.Per)
	return func(context.Context, string) Answer { return verdict(limiter.TryAcquirePermit()) }
}

func sethvargo(tb testing.TB, _ *Server, l Limit) Decide {
	store, err := memorystore.New(&memorystore.Config{
		Tokens: uint64(l.Tokens), Interval: l.Per, SweepInterval: time.Hour, InitialAlloc: maxKeys,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close(context.Background()) })
	return func(ctx context.Context, key string) Answer {
		_, _, _, ok, err := store.Take(ctx, key)
		if err != nil {
			return Failed
		}
		return verdict(ok)
	}
}
