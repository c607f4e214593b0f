package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/debugpage"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// From docs/getting-started.md, one function per step.

func lend() (*redis.Client, *remote.Redis) {
	client := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		ContextTimeoutEnabled: true, // else the limiter uses a copy, and your traces and metrics miss its calls
		DialerRetries:         1,    // errors name what is wrong with an address, instead of a timeout
	})
	store := remote.NewRedis(client, &remote.RedisOptions{
		Prefix: "shop:",
		Logger: slog.Default(), // what go-redis itself logs, at DEBUG; else it goes to stderr
	})
	return client, store
}

func makeGroup(store remote.Store) (*tiered.Group, error) {
	group, err := tiered.NewGroup(store, &tiered.Options{
		Processes: 3, // the least number of replicas that you run
		Logger:    slog.Default(),
	})
	return group, err
}

func choosePolicy(group *tiered.Group) (*tiered.Limiter, error) {
	perUser, err := group.NewLimiter(tiered.Policy{
		Name:     "per-user",
		Limit:    tiered.PerSecond(100).WithBurst(200),
		FailMode: tiered.FailLocal,
	})
	return perUser, err
}

func ask(perUser *tiered.Limiter, userID string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d := perUser.Allow(r.Context(), userID)
		if !d.Allowed {
			httplimit.WriteRefusal(w, d) // 429 with Retry-After, or 503 if Redis is away and the policy fails closed
			return
		}
	}
}

func beReady(ctx context.Context, group *tiered.Group) {
	if err := group.Ping(ctx); err != nil {
		slog.Warn("the limiter's Redis is not ready", "error", err)
	}
}

func shutDown(ctx context.Context, server *http.Server, group *tiered.Group, client *redis.Client) (err error) {
	<-ctx.Done() // SIGTERM came
	requests, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	err = server.Shutdown(requests) // first: no more requests
	leases, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = errors.Join(err,
		group.Close(leases), // then: leased tokens go back to Redis
		client.Close(),      // last: it is yours; store.Close() of remote.Open
	)
	return err
}

func see(group *tiered.Group, perUser *tiered.Limiter, operators *http.ServeMux) error {
	p := perUser.Stats()
	fmt.Println("admitted:", p.Requests.Allowed, "refused:", p.Requests.Refused, "by Redis:", p.Requests.GrantedByRedis)

	page, err := debugpage.New(group, nil)
	if err != nil {
		return err
	}
	operators.Handle("/debug/limiter", page) // on a port that only operators reach
	return nil
}

// The steps of the page, one after the other, on a real Redis: the names and fields in Redis are
// those that the page says.
func TestGettingStarted(t *testing.T) {
	server := redistest.StartOpen(t)
	example, store := lend()
	if err := example.Close(); err != nil || remote.Check(store) != nil {
		t.Fatal(err, remote.Check(store))
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, DialerRetries: 1})
	group, err := makeGroup(remote.NewRedis(client, &remote.RedisOptions{Prefix: "shop:"}))
	if err != nil {
		t.Fatal(err)
	}
	perUser, err := choosePolicy(group)
	if err != nil {
		t.Fatal(err)
	}
	if limit, err := tiered.ParseLimit("100/s burst 200"); err != nil || limit != perUser.Policy().Limit {
		t.Errorf("%v, %v", limit, err)
	}
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	beReady(t.Context(), group)
	slog.SetDefault(before)
	if log.Len() > 0 {
		t.Errorf("not ready: %s", &log)
	}

	handler := ask(perUser, "ann")
	refused, deadline := httptest.NewRecorder(), time.Now().Add(20*time.Second)
	for refused.Code != http.StatusTooManyRequests && time.Now().Before(deadline) {
		refused = httptest.NewRecorder()
		handler(refused, httptest.NewRequest(http.MethodGet, "/", nil))
	}
	if refused.Code != http.StatusTooManyRequests || refused.Header().Get("Retry-After") == "" {
		t.Errorf("%d, %v", refused.Code, refused.Header())
	}

	fields := server.Client().HGetAll(t.Context(), "shop:{per-user/ann}tb2").Val()
	if fields["l"] == "" || server.Client().PTTL(t.Context(), "shop:{per-user/ann}tb2").Val() <= 0 {
		t.Errorf("Redis has %v", fields)
	}
	operators := http.NewServeMux()
	if err := see(group, perUser, operators); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	operators.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/debug/limiter", nil))
	if page := answer.Body.String(); answer.Code != http.StatusOK || !strings.Contains(page, "per-user") {
		t.Errorf("%d: %s", answer.Code, page)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := shutDown(ended, &http.Server{}, group, client); err != nil {
		t.Error(err)
	}
	if out := server.Client().HGet(t.Context(), "shop:{per-user/ann}tb2", "o").Val(); out != "" && out != "0" {
		t.Errorf("%s tokens are still leased", out)
	}
}
