package benchmarks

import (
	"context"
	"testing"

	lru "github.com/hashicorp/golang-lru/v2"
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
