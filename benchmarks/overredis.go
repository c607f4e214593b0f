package benchmarks

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/go-redis/redis_rate/v10"
	"github.com/vearne/ratelimit/tokenbucket"
)

// Names of peers that ratios refer to.
const (
	RedisRate = "redis_rate"
	Vearne    = "vearne-batch-100"
)

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

func redisRate(tb testing.TB, s *Server, l Limit) Decide {
	limiter := redis_rate.NewLimiter(s.peerClient(tb))
	limit := redis_rate.Limit{Rate: int(l.Tokens), Burst: int(l.Tokens), Period: l.Per}
	return func(ctx context.Context, key string) Answer {
		r, err := limiter.Allow(ctx, key, limit)
		if err != nil {
			return Failed
		}
		return verdict(r.Allowed > 0)
	}
}

func httprateRedis(tb testing.TB, s *Server, l Limit) Decide {
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
		a := verdict(!limiter.OnLimit(noResponse{}, request, key))
		if alone.Load() {
			a |= Failed
		}
		return a
	}
}

// noResponse is a response that nobody writes. Its headers are switched off.
type noResponse struct{}

func (noResponse) Header() http.Header         { return http.Header{} }
func (noResponse) Write(b []byte) (int, error) { return len(b), nil }
func (noResponse) WriteHeader(int)             {}

func vearne(tb testing.TB, s *Server, l Limit) Decide {
	limiter, err := tokenbucket.NewTokenBucketRateLimiter(context.Background(), s.peerClient(tb), "key",
		l.Per, int(l.Tokens), int(l.Tokens), 100)
	if err != nil {
		tb.Fatal(err)
	}
	return func(ctx context.Context, _ string) Answer {
		ok, err := limiter.Take(ctx)
		if err != nil {
			return Failed
		}
		return verdict(ok)
	}
}
