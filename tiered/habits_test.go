package tiered_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// Lines that Go engineers type from habit, from x/time/rate, redis_rate, httprate, ulule/limiter,
// go-limiter and tollbooth, and that work as typed. For each other line "Lines that nearly compile"
// of docs/migration.md says what to write, and why.
func TestHabits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, key := t.Context(), "ann"

		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
		_ = remote.NewRedis(rdb, nil)
		_ = rdb.Close()
		store := remote.NewMemory()

		limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerSecond(10)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = limiter.Close(context.Background()) }()

		for text, limit := range map[string]tiered.Limit{
			"1/100ms":             tiered.Every(100 * time.Millisecond),
			"10/min":              tiered.Per(10, time.Minute),
			"10 / min":            tiered.PerMinute(10),
			"15/5min":             tiered.Per(15, 5*time.Minute),
			"unlimited":           tiered.Unlimited(),
			"1/2s":                tiered.Every(2 * time.Second),
			"100/min burst 200":   tiered.PerMinute(100).WithBurst(200),
			"100 / min burst 200": tiered.PerMinute(100).WithBurst(200),
		} {
			if parsed, err := tiered.ParseLimit(text); err != nil || parsed != limit {
				t.Errorf("%q is %v, %v, want %v", text, parsed, err, limit)
			}
		}

		if d := limiter.Allow(ctx, key); !d.Allowed || d.Burst != 10 || d.RetryAfter != 0 {
			t.Error(d)
		}
		if limit, ok := limiter.LimitOf(limiter.AllowN(ctx, key, 3)); !ok || limit != tiered.PerSecond(10) {
			t.Error(limit)
		}
		if n, d := limiter.AllowAtMost(ctx, key, 10); n != 6 || !d.Allowed {
			t.Error(n, d)
		}

		r := limiter.ReserveN(ctx, key, 3)
		if r.Allowed {
			t.Error(r.Decision)
		}
		if err := limiter.WaitN(ctx, key, 3); err != nil {
			t.Error(err)
		}

		if err := limiter.SetLimit(tiered.PerSecond(20)); err != nil {
			t.Error(err)
		}
		if d := limiter.Peek(ctx, key); d.Remaining < 0 {
			t.Error(d)
		}
		_ = limiter.PeekN(ctx, key, 3)
		if err := limiter.Reset(ctx, key); err != nil {
			t.Error(err)
		}

		_ = tiered.Policy{Limit: tiered.PerSecond(10).And(tiered.PerHour(1000))}
		if d := tiered.All(limiter.For("bob"), limiter.For("cid").N(3)).Allow(ctx); !d.Allowed || d.Cost != 3 {
			t.Error(d)
		}

		if n := limiter.Stats().Tokens.Limited; n == 0 {
			t.Error("nothing was refused")
		}

		limit, err := httplimit.ByIP(limiter)
		if err != nil {
			t.Error(err)
		}
		_ = limit(http.NotFoundHandler())
		_ = httplimit.KeyFunc(func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil })
	})
}
