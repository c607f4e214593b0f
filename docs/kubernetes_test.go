package docs_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// From docs/deploying.md. runPod shuts down as docs/getting-started.md does.

func groupOfPod(store remote.Store) (*tiered.Group, error) {
	processes, err := strconv.Atoi(os.Getenv("LIMITER_PROCESSES"))
	if err != nil {
		return nil, err
	}
	group, err := tiered.NewGroup(store, &tiered.Options{Processes: processes})
	return group, err
}

func health(mux *http.ServeMux, group *tiered.Group) {
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {}) // 200: the process serves
	mux.Handle("GET /readyz", httplimit.Ready(group))                         // 503 until Redis has answered a check once
}

func runPod(server *http.Server, group *tiered.Group, ready chan<- struct{}) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	close(ready)
	<-ctx.Done()
	requests, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	err = server.Shutdown(requests) // finish what is under way
	leases, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = errors.Join(err, group.Close(leases)) // give leased tokens back
	return err
}

// A pod becomes ready when Redis has answered, and stays so in an outage. SIGTERM gives the leases
// back.
func TestPod(t *testing.T) {
	t.Setenv("LIMITER_PROCESSES", "3")
	store := remote.NewMemory()
	store.Fail(errors.New("down"))
	group := fatal.Get(groupOfPod(store))(t)
	mux := http.NewServeMux()
	health(mux, group)
	status := func(path string) int {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	if live, ready := status("/livez"), status("/readyz"); live != http.StatusOK || ready != http.StatusServiceUnavailable {
		t.Errorf("in an outage: live %d, ready %d", live, ready)
	}
	store.Fail(nil)
	if ready := status("/readyz"); ready != http.StatusOK {
		t.Errorf("Redis answers: ready %d", ready)
	}
	store.Fail(errors.New("down again"))
	if ready := status("/readyz"); ready != http.StatusOK {
		t.Errorf("in a later outage: ready %d", ready)
	}
	store.Fail(nil)

	limiter, err := group.NewLimiter(tiered.Policy{Name: "p", Limit: tiered.PerSecond(1000), Lease: tiered.Lease{Size: 50}})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); group.Stats().Policies["p"].Leases.Held == 0 && time.Now().Before(deadline); {
		limiter.Allow(t.Context(), "ann")
	}
	ready, ended := make(chan struct{}), make(chan error)
	go func() { ended <- runPod(&http.Server{}, group, ready) }()
	<-ready
	fatal.If(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if p := group.Stats().Policies["p"]; p.Leases.Held != 0 || p.Leases.Returned == 0 {
		t.Errorf("%d tokens are held, %d were returned", p.Leases.Held, p.Leases.Returned)
	}
}

// A share of the page's table: what pods admit that start in an outage.
func TestPodsOfAnOutage(t *testing.T) {
	for _, c := range []struct{ processes, pods, rates int64 }{{3, 20, 667}, {3, 3, 100}, {20, 20, 100}, {20, 3, 15}} {
		synctest.Test(t, func(t *testing.T) {
			store := remote.NewMemory()
			store.Fail(errors.New("down"))
			admitted := int64(0)
			limiters := make([]*tiered.Limiter, c.pods)
			for i := range limiters {
				var err error
				policy := tiered.Policy{Name: "p", Limit: tiered.PerSecond(1200)}
				if limiters[i], err = tiered.New(store, policy, &tiered.Options{Processes: int(c.processes)}); err != nil {
					t.Fatal(err)
				}
				defer limiters[i].Close(context.Background())
			}
			for second := range 12 {
				for range 100 { // in each second all that a share gives, in parts of a burst
					time.Sleep(10 * time.Millisecond)
					for _, l := range limiters {
						for l.Allow(t.Context(), "ann").Allowed {
							if second >= 2 { // the bursts are spent
								admitted++
							}
						}
					}
				}
			}
			if percent := (admitted + 60) / 120; percent < c.rates-2 || percent > c.rates+2 { // of 10 s of the rate
				t.Errorf("%d pods that divide by %d admit %d %% of the rate, want %d", c.pods, c.processes, percent, c.rates)
			}
		})
	}
}
