package tiered_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// After shares are turned off, the first window that is whole says what it has, and admits a request
// that costs most of it.
func TestWindowIsWholeAfterSharesAreTurnedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := windowPolicy(400, 1./2)
		p.Limit = tiered.PerHour(400)
		all := fleetOf(t, remote.NewMemory(), 2, p)
		time.Sleep(30 * time.Minute)
		p.Standing = 0
		for i := range all {
			ok(t, limiterOf(t, all[i], "api").SetPolicy(p))
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 5*time.Minute)))
		l := limiterOf(t, all[0], "api")
		if n := drain(t, all, "user"); n != 400 {
			t.Errorf("%d of 400 tokens", n)
		}
		if d := l.Allow(ctx, "another"); !d.Allowed || d.Remaining != 399 {
			t.Errorf("%v", d)
		}
		if d := l.AllowN(ctx, "third", 300); !d.Allowed {
			t.Errorf("300 of 400: %v", d)
		}
	})
}

// A policy that comes to use its shares does not cost the keys of another what their windows have.
func TestSharesOfAnotherPolicyLeaveAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tiered.Policy{Name: "api", Algorithm: tiered.FixedWindow, Limit: tiered.PerHour(400), Calendar: true, Standing: 1. / 2}
		other := standingPolicy("other")
		other.Standing = 0
		all := fleetOf(t, remote.NewMemory(), 2, p, other)
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		time.Sleep(time.Minute)
		if n := drain(t, all, "before"); n < 392 {
			t.Errorf("%d of 400 tokens", n)
		}
		other.Standing = 1. / 2
		for i := range all {
			ok(t, limiterOf(t, all[i], "other").SetPolicy(other))
		}
		time.Sleep(2 * time.Minute)
		if n := drain(t, all, "after"); n < 392 {
			t.Errorf("after another policy began to use its shares, %d of 400 tokens", n)
		}
	})
}

// A Reset of one key does not give another one, whose share is in the same place, its tokens again.
func TestResetLeavesOtherKeysOfAPlace(t *testing.T) {
	bucket := half(standingPolicy("api"))
	bucket.Limit = tiered.PerHour(400)
	for _, p := range []tiered.Policy{windowPolicy(400, 1./2), bucket} {
		bubble(t, p.Algorithm.String(), func(t *testing.T) {
			all := fleetOf(t, remote.NewMemory(), 1, p)
			time.Sleep(2 * time.Hour) // a bucket's share is full
			nextMinute()
			time.Sleep(time.Second)
			l := limiterOf(t, all[0], "api")
			alone := l.Allow(ctx, "user").Remaining
			for i := range 8000 {
				key := fmt.Sprint("user ", i)
				if l.Allow(ctx, key).Remaining >= alone {
					continue // it meets no other
				}
				n := 1 + drain(t, all, key)
				for j := range i {
					ok(t, l.Reset(ctx, fmt.Sprint("user ", j)))
				}
				if n += drain(t, all, key); n > 405 {
					t.Errorf("%d of 400 tokens", n)
				}
				return
			}
			t.Error("no two keys met")
		})
	}
}
