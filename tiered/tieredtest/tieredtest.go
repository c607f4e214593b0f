// Package tieredtest makes limiters for the tests of a service. They need no Redis, and no test
// sleeps. [New] makes one Limiter, and [NewStore] what takes the place of Redis under a whole
// service with all its policies.
//
// A test runs in a bubble of testing/synctest. There time passes only when all goroutines wait, so
// a minute takes no time.
//
//	func TestTenPerMinute(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			l := tieredtest.New(t, tiered.Policy{Name: "login", Limit: tiered.PerMinute(10)})
//			l.Exhaust("ann")
//			…
//			l.Advance(6 * time.Second)
//		})
//	}
package tieredtest

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Limiter is a Limiter over a store in memory, which counts as Redis does. All methods may be
// called concurrently, but Advance.
type Limiter struct {
	*tiered.Limiter

	t      testing.TB
	store  *Store
	policy tiered.Policy
}

// New returns a Limiter that decides by p. It closes itself when the test ends. It fails the test
// if p is not valid, or if the test is not in a bubble of testing/synctest.
func New(t testing.TB, p tiered.Policy) *Limiter {
	t.Helper()
	if !inBubble() {
		t.Fatal("tieredtest.New: the test is in no bubble: must be called within testing/synctest.Test")
	}
	return start(t, NewStore(), p)
}

// inBubble reports whether the caller is in a bubble of testing/synctest.
func inBubble() (in bool) {
	defer func() { in = recover() == nil }()
	synctest.Wait() // panics outside of one
	return
}

// Replica returns another Limiter with the same policy and the same store, as in another process of
// the service: they share the limit. Within three seconds all know how many they are, which counts
// for FailLocal.
func (l *Limiter) Replica() *Limiter {
	l.t.Helper()
	return start(l.t, l.store, l.policy)
}

func start(t testing.TB, store *Store, p tiered.Policy) *Limiter {
	t.Helper()
	limiter, err := tiered.New(store, p, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		store.Heal() // so that it need not wait for Redis
		if err := limiter.Close(context.Background()); err != nil {
			t.Errorf("tieredtest: Close: %v", err)
		}
	})
	return &Limiter{limiter, t, store, p}
}

// Advance lets d pass, for all that is in the bubble: see [Store.Advance].
func (l *Limiter) Advance(d time.Duration) { l.store.Advance(d) }

// Fail makes Redis fail, for all replicas: from now on the policy's FailMode decides over what is
// not leased, and not known to be over its limit.
func (l *Limiter) Fail() { l.store.Fail() }

// Heal ends Fail. Redis decides again within a second of requests, or within three seconds without
// any: let four pass.
func (l *Limiter) Heal() { l.store.Heal() }

// mostTakes is far more often than Exhaust takes tokens: each time it takes what the key has left.
const mostTakes = 10_000

// Exhaust takes all tokens that the key has now, in Redis and in this Limiter. The next request for
// it is refused, with the RetryAfter of the limit. It fails the test if that cannot be: where
// everything is admitted, as after AllowAll, in Shadow mode, with FailOpen in an outage and for an
// Unlimited key, and where everything is refused for another reason.
func (l *Limiter) Exhaust(key string) {
	l.t.Helper()
	var d tiered.Decision
	for range mostTakes {
		var n int64
		left := l.Peek(context.Background(), key).Remaining
		n, d = l.AllowAtMost(context.Background(), key, max(left, 1))
		switch {
		case n > 0 && (d.Reason == tiered.Granted || d.Reason == tiered.Fallback):
			continue
		case d.Reason == tiered.Limited || d.Reason == tiered.FallbackSpent:
			return
		}
		l.t.Fatalf("tieredtest: Exhaust: this key cannot be exhausted now, because the answer is: %v", d)
	}
	l.t.Fatalf("tieredtest: Exhaust: this key cannot be exhausted, because it is still admitted: %v", d)
}

// AllowAll lets this Limiter admit everything from now on: what the limit would refuse is admitted
// with Reason Shadowed.
func (l *Limiter) AllowAll() {
	p := l.policy
	p.Shadow = true
	l.set(p)
}

// DenyAll lets this Limiter refuse everything from now on, with Reason ExceedsBurst and without a
// RetryAfter. Use [Limiter.Exhaust] for a refusal by the limit. With several limits it fails
// the test, because such a policy cannot be blocked.
func (l *Limiter) DenyAll() {
	p := l.policy
	p.PerKey = func(string) tiered.Limit { return tiered.Blocked() }
	l.set(p)
}

// Restore ends AllowAll and DenyAll.
func (l *Limiter) Restore() { l.set(l.policy) }

func (l *Limiter) set(p tiered.Policy) {
	l.t.Helper()
	if err := l.SetPolicy(p); err != nil {
		l.t.Fatal(err)
	}
}
