package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestCancelAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerHour(10_000)}, nil))
		leased(t, l)
		var all []tiered.Reservation
		for range 6 {
			all = append(all, l.ReserveN(ctx, "k", 2), l.ReserveN(ctx, "cold", 1))
		}
		closeIn(t, l, time.Second)
		after := l.ReserveN(ctx, "k", 1)
		if after.Reason != tiered.Fallback {
			t.Fatalf("%+v", after.Decision)
		}
		start := time.Now()
		for i, r := range append(all, after) {
			r.Settle([]int64{0, 1, 5}[i%3])
		}
		time.Sleep(time.Minute)
		if calls := store.since(start); len(calls) > 0 {
			t.Errorf("%+v after Close", calls)
		}
		books(t, l.Group())
	})
}

// A Close whose context ends gives up what it could not return. So another Close, or one that waits
// at the same time, ends too, whatever its own context is, and says what is lost.
func TestCloseAgain(t *testing.T) {
	for name, outage := range map[string]time.Duration{"after the outage": 0, "in the outage": time.Hour} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
			l := must(tiered.New(store, tiered.Policy{Name: "p", Limit: tiered.PerSecond(1000)}, nil))
			for range 300 {
				l.Allow(t.Context(), "k")
				time.Sleep(ms)
			}
			if l.Group().Stats().Policies["p"].Leases.Held == 0 {
				t.Fatal("nothing is leased")
			}
			store.Fail(errors.New("refused"))
			beside := make(chan error)
			go func() { beside <- l.Close(context.Background()) }()
			ctx, cancel := context.WithTimeout(t.Context(), 500*ms) // a lease lives for a second
			defer cancel()
			if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first Close returned %v", err)
			}
			if outage == 0 {
				store.Fail(nil)
			}
			begin := time.Now()
			for _, err := range []error{<-beside, l.Close(context.Background())} {
				if !errors.Is(err, engine.ErrTooLate) || !strings.Contains(err.Error(), `tokens of policy "p"`) {
					t.Errorf("the other Close returned %v", err)
				}
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("they took %v more", took)
			}
		})
	}
}

func TestCloseReturnsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerHour(1000), FailMode: tiered.FailClosed},
			nil))
		warm(t, l, "k", 100)
		held := l.Stats().Leases.Held
		if held == 0 {
			t.Fatal("nothing is leased: this shows nothing")
		}
		closeIn(t, l, time.Second)
		want(t, l.Allow(ctx, "k"), tiered.Unavailable)
		if err := l.Reset(ctx, "k"); !errors.Is(err, tiered.ErrUnavailable) {
			t.Errorf("Reset after Close: %v", err)
		}
		want(t, l.Peek(ctx, "k"), tiered.Unavailable)
		if _, err := l.Group().NewLimiter(tiered.Policy{Name: "late", Limit: tiered.PerSecond(1)}); err == nil {
			t.Error("a closed Group took another policy")
		}
		other := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(1000)}, nil)
		if d := other.Peek(ctx, "k"); d.Remaining < 898 || d.Remaining > 901 {
			t.Errorf("%d left after Close, want 900: %d were held", d.Remaining, held)
		}
		closeIn(t, l, time.Second) // again
	})
}

// silent is a store without a slot for a presence, so that reports show nothing. Who leaves gets no
// answer, but the store heeds the context as a real client does.
type silent struct{ *distant }

func (silent) Presence(ctx context.Context, _ time.Duration, _ remote.Node, p remote.Process) (remote.Census, error) {
	if p.TTL > 0 {
		return remote.Census{}, remote.ErrNoPresence
	}
	<-ctx.Done()
	return remote.Census{}, ctx.Err()
}

// A hurried Close while a probe is due does not count as a failure of Redis.
func TestHurriedCloseIsNoFailedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := silent{newDistant(10 * ms)}
		var mu sync.Mutex
		var failed []error
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed},
			&tiered.Options{Trace: &tiered.Trace{State: func(e tiered.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.From == "probing" && e.What == "open" {
					failed = append(failed, e.Err)
				}
			}}}))
		store.loseRequests.Store(true)
		guard := tiered.Dispatch(l.Group()).Node(store.Node(""))
		for i := 0; guard.State() == failover.Closed; i++ {
			l.Allow(t.Context(), fmt.Sprint(i))
		}
		for !guard.ProbeDue(tiered.Engine(l.Group()).Now()) {
			time.Sleep(ms)
		}
		synctest.Wait()
		mu.Lock()
		failed = nil
		mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
		defer cancel()
		tiered.Dispatch(l.Group()).Leave(ctx)
		synctest.Wait()
		mu.Lock()
		if len(failed) != 1 || failed[0] != context.Canceled { //nolint:errorlint // the very same
			t.Errorf("the probe ended with %v", failed)
		}
		mu.Unlock()
		if !guard.ProbeDue(tiered.Engine(l.Group()).Now()) {
			t.Error("the next probe has to wait")
		}
		store.loseRequests.Store(false)
		closeIn(t, l, 3*second) // the calls that nobody answered go on for 2 s at most
	})
}

// While Close waits for Redis to come back, requests go by the fail mode, and their keys ask for
// nothing: a probe would lease tokens that nobody returns. They may only tell of what was admitted.
func TestRequestsDuringCloseDoNotProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTape()
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10_000), Lease: tiered.Lease{Period: 5 * second}}, nil)
		warm(t, l, "k", 300)
		silence(t, store.distant, l)
		if l.Stats().Leases.Held == 0 {
			t.Fatal("nothing is leased: Close does not wait")
		}
		closed := make(chan struct{})
		go func() {
			_ = l.Close(ctx)
			close(closed)
		}()
		synctest.Wait()
		for range 50 {
			if r := l.ReserveN(ctx, "late", 1); r.Reason != tiered.Fallback {
				t.Errorf("%+v", r.Decision)
			}
			time.Sleep(100 * ms)
		}
		select {
		case <-closed:
			t.Error("Close did not wait: this shows nothing")
		default:
		}
		store.loseRequests.Store(false)
		<-closed
		for _, c := range store.since(time.Time{}) {
			if c.Bucket == store.Key("api", "late") && (c.Want > 0 || c.Debt == 0) {
				t.Errorf("%+v", c.Call)
			}
		}
	})
}

// What was queued went on being sent long after a Close that could not wait for it.
func TestCloseThatCannotWaitEndsTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(10 * ms)
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerHour(1000)}, nil))
		for range 4 {
			var all sync.WaitGroup
			for i := range 2000 {
				all.Go(func() { l.Allow(ctx, strconv.Itoa(i)) })
				if i%20 == 19 {
					time.Sleep(5 * ms)
				}
			}
			all.Wait()
		}
		soon, cancel := context.WithTimeout(ctx, 10*ms)
		defer cancel()
		_ = l.Close(soon)
		time.Sleep(3 * tiered.DefaultTimeout)
		n := store.calls.Load()
		time.Sleep(time.Second)
		if late := store.calls.Load() - n; late > 0 {
			t.Errorf("%d calls later than three Timeouts after Close", late)
		}
	})
}

// A lease of a key that was poisoned since has nowhere to go back to, and Close does not wait for
// its end.
func TestLeaseOfAPoisonedKeyDoesNotHoldUpClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := poisoned(newDistant(ms), "nothing yet")
		l := must(tiered.New(store, tiered.Policy{
			Name: "api", Limit: tiered.PerSecond(1000), Lease: tiered.Lease{Period: 5 * time.Second},
		}, nil))
		for range 500 {
			l.Allow(ctx, "bad")
			time.Sleep(2 * ms)
		}
		if held := l.Stats().Leases.Held; held < 20 {
			t.Errorf("only %d held: this shows nothing", held)
		}
		store.only = "bad"
		start := time.Now()
		closeIn(t, l, time.Minute)
		if d := time.Since(start); d > 100*ms {
			t.Errorf("Close took %v", d)
		}
		if s := l.Stats(); s.Leases.Held != 0 || s.Leases.Granted != s.Leases.Spent+s.Leases.Returned+s.Leases.Burnt {
			t.Errorf("tokens are missing from the books: %+v", s)
		}
	})
}
