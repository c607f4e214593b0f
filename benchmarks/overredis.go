package benchmarks

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/go-redis/redis_rate/v10"
	"github.com/throttled/throttled/v2"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"github.com/vearne/ratelimit/tokenbucket"
	"github.com/zeromicro/go-zero/core/limit"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
)

// Names of peers that ratios refer to.
const (
	RedisRate = "redis_rate"
	Vearne    = "vearne-batch-100"
)

// overRedis are the peers that share their limit over Redis. The limiters of go-zero and vearne are objects for one
// key each, and go-zero's has no rate below one per second.
var overRedis = []Contestant{
	{Name: RedisRate, Make: redisRate, Redis: true, Commands: 1, Loads: []string{Hot.Name, Denied.Name, Cold.Name}},
	{Name: "ulule", Make: ulule, Redis: true, Commands: 1, Loads: []string{Hot.Name, Denied.Name, Cold.Name}},
	{
		Name: "throttled", Make: throttledGCRA, Redis: true, Commands: 3,
		Loads: []string{Hot.Name, Denied.Name, Cold.Name},
		Alone: true, // it gives up after ten lost races for the key
	},
	{Name: "go-zero", Make: goZero, Redis: true, Commands: 1, Falters: true, Loads: []string{Hot.Name}},
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

func ulule(tb testing.TB, s *Server, l Limit) Decide {
	store, err := ululeredis.NewStore(s.peerClient(tb))
	if err != nil {
		tb.Fatal(err)
	}
	window := limiter.New(store, limiter.Rate{Period: l.Per, Limit: l.Tokens})
	return func(ctx context.Context, key string) Answer {
		c, err := window.Get(ctx, key)
		if err != nil {
			return Failed
		}
		return verdict(!c.Reached)
	}
}

func throttledGCRA(tb testing.TB, s *Server, l Limit) Decide {
	store, err := goredisstore.NewCtx(s.peerClient(tb), "throttled:")
	if err != nil {
		tb.Fatal(err)
	}
	gcra, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerDuration(int(l.Tokens), l.Per), MaxBurst: int(l.Tokens) - 1,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return func(ctx context.Context, key string) Answer {
		limited, _, err := gcra.RateLimitCtx(ctx, key, 1)
		if err != nil {
			return Failed
		}
		return verdict(!limited)
	}
}

// goZero does not report that it has fallen back on a limiter in the process. Contestant.Commands detects it.
func goZero(tb testing.TB, s *Server, l Limit) Decide {
	store, err := zeroredis.NewRedis(zeroredis.RedisConf{
		Host: s.Addr, Type: zeroredis.NodeType, NonBlock: true, DisableIdentity: true, Protocol: 3,
		MaintNotifications: "disabled", PingTimeout: time.Second,
	}, zeroredis.WithHook(dialHook{&s.Meter}))
	if err != nil {
		tb.Fatal(err)
	}
	limiter := limit.NewTokenLimiter(int(l.perSecond()), int(l.Tokens), store, "key")
	return func(ctx context.Context, _ string) Answer { return verdict(limiter.AllowCtx(ctx)) }
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
