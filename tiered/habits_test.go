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

// Lines that Go engineers type from habit, from x/time/rate, redis_rate, httprate, ulule/limiter
// and go-limiter. Those that work as typed are code. For each other line a comment says what to
// write, and why.
func TestHabits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, key := t.Context(), "ann"

		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
		_ = remote.NewRedis(rdb, nil)
		_ = rdb.Close()
		// store := remote.NewRedis(rdb) the nil says that there are options store, err :=
		// remote.NewRedis(rdb) it asks nobody, so New reports a nil client; Group.Ping asks
		store := remote.NewMemory()

		limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerSecond(10)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = limiter.Close(context.Background()) }()
		// tiered.NewLimiter(store, tiered.PerSecond(10)) a policy has a name: processes share a
		// limit by it tiered.New(store, policy), tiered.NewGroup(store) as above: the nil says that
		// there are options

		for text, limit := range map[string]tiered.Limit{
			"1/100ms":           tiered.Every(100 * time.Millisecond),
			"10/min":            tiered.Per(10, time.Minute),
			"unlimited":         tiered.Unlimited(), // tiered.Inf: a rate may be infinite, a limit is a rate and a burst
			"1/2s":              tiered.Every(2 * time.Second),
			"100/min burst 200": tiered.PerMinute(100).WithBurst(200),
		} {
			if parsed, err := tiered.ParseLimit(text); err != nil || parsed != limit {
				t.Errorf("%q is %v, %v, want %v", text, parsed, err, limit)
			}
		}
		// tiered.PerMinute(100).Burst(200) Burst is the field of a Limit tiered.PerSecond(0.5)
		// tokens are whole; Every(2 * time.Second) and Per(1, 2*time.Second) say it exactly

		if d := limiter.Allow(ctx, key); !d.Allowed || d.Burst != 10 || d.RetryAfter != 0 {
			t.Error(d)
		}
		// if limiter.Allow(key) { ctx bounds the wait for Redis; the Decision says more than a bool
		// res, err := limiter.Allow(ctx, key) an error would be left to the caller, where the fail
		// mode decides d.Limit as the number that was configured limiter.LimitOf(d) is the limit,
		// d.Burst the most at once
		if limit, ok := limiter.LimitOf(limiter.AllowN(ctx, key, 3)); !ok || limit != tiered.PerSecond(10) {
			t.Error(limit)
		}
		if n, d := limiter.AllowAtMost(ctx, key, 10); n != 6 || !d.Allowed {
			t.Error(n, d)
		}

		r := limiter.ReserveN(ctx, key, 3)
		// r.OK() r.Allowed, as of each Decision r.Delay() nothing is reserved in the future:
		// r.RetryAfter says when to come back, and WaitN waits
		if r.Allowed {
			t.Error(r.Decision)
		}
		if err := limiter.WaitN(ctx, key, 3); err != nil {
			t.Error(err)
		}

		if err := limiter.SetLimit(tiered.PerSecond(20)); err != nil {
			t.Error(err)
		}
		// limiter.SetBurst(n)  SetLimit(limit.WithBurst(n)): rate and burst change in one step
		if d := limiter.Peek(ctx, key); d.Remaining < 0 {
			t.Error(d)
		}
		// limiter.Tokens(key) limiter.Peek(ctx, key).Remaining: it asks Redis, which needs a
		// context
		_ = limiter.PeekN(ctx, key, 3)
		if err := limiter.Reset(ctx, key); err != nil {
			t.Error(err)
		}

		_ = tiered.Policy{Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(1000)}}
		// Policy{Limits: …} one limit is the usual case; with two fields an empty list cannot mean
		// "unlimited"
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
		_ = limit(http.NotFoundHandler()) // httplimit.ByIP(limiter)(h): New reports mistakes, as all constructors do
		// httplimit.LimitByIP(limiter) one name for one thing: ByIP
		// httplimit.New(limiter).Handler(next) a rule also says who is counted, and what a request
		// without a key gets httplimit.Options{Key: func(r *http.Request) string {…}} a Rule has
		// the Key: several rules may apply
		_ = httplimit.KeyFunc(func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil })
		// limiter.Close() returning leases asks Redis: a context bounds that import
		// "github.com/tiered-limiter/tiered-limiter" the root holds no package: tiered, remote and
		// httplimit do
	})
}
