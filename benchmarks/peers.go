package benchmarks

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/go-redis/redis_rate/v10"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/vearne/ratelimit/tokenbucket"
	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Names of peers that ratios refer to.
const (
	Bare      = "x-time-rate"            // one limiter and no keys at all: with it all in-process figures are compared
	BareLRU   = "x-time-rate+golang-lru" // what a service writes that needs Bare per key
	RedisRate = "redis_rate"
	Vearne    = "vearne-batch-100"
)

// inProcess are the peers that do not share limits between processes.
var inProcess = []Contestant{
	{Name: Bare, Make: bare, Loads: []string{Hot.Name, Denied.Name, Down.Name}},
	{Name: BareLRU, Make: bareLRU, Loads: []string{Hot.Name, Denied.Name, Warm.Name}},
}

// overRedis are the peers that share their limit over Redis. A limiter of vearne is for one key.
var overRedis = []Contestant{
	{Name: RedisRate, Make: redisRate, Redis: true, Commands: 1, Loads: []string{Hot.Name, Denied.Name, Cold.Name}},
	{
		Name: "httprate-redis", Make: httprateRedis, Redis: true, Commands: 5,
		Loads: []string{Hot.Name, Denied.Name, Cold.Name},
	},
	{
		Name: Vearne, Make: vearne, Redis: true, Commands: 0.01, Loads: []string{Hot.Name, Denied.Name},
		Refuses: 0.25, // who waits for a batch that others have spent when it comes
	},
}

// verdict returns the Answer of a peer that says yes, no or an error.
func verdict(admitted bool, err error) Answer {
	switch {
	case err != nil:
		return Failed
	case admitted:
		return Admitted
	default:
		return 0
	}
}

func newBare(l tiered.Limit) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond(l)), int(l.Tokens))
}

func bare(_ testing.TB, _ *Server, l tiered.Limit) Decide {
	limiter := newBare(l)
	return func(context.Context, string) Answer { return verdict(limiter.Allow(), nil) }
}

// bareLRU has room for twice the keys, like ours.
func bareLRU(tb testing.TB, _ *Server, l tiered.Limit) Decide {
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
		return verdict(limiter.Allow(), nil)
	}
}

func redisRate(tb testing.TB, s *Server, l tiered.Limit) Decide {
	limiter := redis_rate.NewLimiter(s.peerClient(tb))
	limit := redis_rate.Limit{Rate: int(l.Tokens), Burst: int(cmp.Or(l.Burst, l.Tokens)), Period: l.Per}
	return func(ctx context.Context, key string) Answer {
		r, err := limiter.Allow(ctx, key, limit)
		return verdict(err == nil && r.Allowed > 0, err)
	}
}

func httprateRedis(tb testing.TB, s *Server, l tiered.Limit) Decide {
	var alone atomic.Bool // it has fallen back on a counter of its own
	counter := httprateredis.NewCounter(&httprateredis.Config{
		Client: s.peerClient(tb), WindowLength: l.Per,
		OnError: func(error) { alone.Store(true) },
	})
	limiter := httprate.NewRateLimiter(int(l.Tokens), l.Per,
		httprate.WithLimitCounter(counter), httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	request, err := http.NewRequest(http.MethodGet, "/", http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	return func(_ context.Context, key string) Answer {
		admitted := !limiter.OnLimit(noResponse{}, request, key)
		if alone.Load() {
			return Failed
		}
		return verdict(admitted, nil)
	}
}

// noResponse is a response that nobody writes. Its headers are switched off.
type noResponse struct{ http.ResponseWriter }

func (noResponse) Header() http.Header { return http.Header{} }

func vearne(tb testing.TB, s *Server, l tiered.Limit) Decide {
	limiter, err := tokenbucket.NewTokenBucketRateLimiter(context.Background(), s.peerClient(tb), "key",
		l.Per, int(l.Tokens), int(l.Tokens), 100)
	if err != nil {
		tb.Fatal(err)
	}
	return func(ctx context.Context, _ string) Answer {
		return verdict(limiter.Take(ctx))
	}
}
