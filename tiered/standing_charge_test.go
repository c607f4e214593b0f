package tiered_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Costs that are known after the request, as of language models, are charged to a key with standing shares as to one
// without: the key uses its burst, MaxDebt and rate·t at most. Beyond that, each of N shares may admit one request before
// anybody knows what it costs.
func TestChargesBesideStandingShares(t *testing.T) {
	charge := func(l *tiered.Limiter, cost int64) bool {
		if !l.Allow(ctx, "team").Allowed {
			return false
		}
		ok(t, l.Charge("team", cost-1))
		return true
	}
	settle := func(l *tiered.Limiter, cost int64) bool {
		r := l.Reserve(ctx, "team")
		r.Settle(cost)
		return r.Allowed
	}
	for name, ask := range map[string]func(*tiered.Limiter, int64) bool{"Charge": charge, "Settle": settle} {
		for _, c := range []struct {
			processes int
			cost      int64
		}{{1, 11}, {1, 101}, {1, 1001}, {4, 11}, {4, 101}, {4, 1001}, {12, 101}, {12, 1001}} {
			t.Run(fmt.Sprint(name, " of ", c.cost, " by ", c.processes), func(t *testing.T) {
				const length = time.Minute
				used := func(standing tiered.Standing) (used, forgiven int64) {
					synctest.Test(t, func(t *testing.T) {
						s := remote.NewMemory()
						var all []*tiered.Limiter
						for range c.processes {
							l := limiter(t, s, tiered.Policy{
								Limit: tiered.PerSecond(100).WithBurst(200), MaxDebt: 2000, Standing: standing,
							}, nil)
							all = append(all, l)
						}
						time.Sleep(90 * time.Second) // the table of shares is no longer new, and they are full
						began := time.Now()
						for i := 0; time.Since(began) < length; i++ {
							if ask(all[i%len(all)], c.cost) {
								used += c.cost
							}
							time.Sleep(50 * time.Millisecond)
						}
						for _, l := range all {
							forgiven += l.Stats().Costs.Forgiven
						}
					})
					return used, forgiven
				}
				bound := 200 + 2000 + 100*int64(length/time.Second)
				without, _ := used(tiered.StandingOff)
				with, forgiven := used(tiered.StandingOn)
				beyond := c.cost * int64(c.processes)
				if c.processes == 1 {
					beyond = 0
				}
				// A cost of more than a lease is forgiven in part with and without shares.
				if most := max(bound, without) + beyond; with > most || with-forgiven > bound+beyond {
					t.Errorf("%d tokens used, and %d forgiven: the bound is %d and %d; without shares %d are used", with, forgiven,
						bound, beyond, without)
				}
			})
		}
	}
}

// Reset and Refund fill what this process' share lacks too.
func TestCreditsFillTheStandingShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerHour(800), Standing: tiered.StandingOn}, nil)
		time.Sleep(3 * time.Hour)
		for range 100 {
			l.Allow(ctx, "reset")
		}
		ok(t, l.Reset(ctx, "reset"))
		if d := l.Peek(ctx, "reset"); d.Remaining < d.Burst {
			t.Errorf("after Reset %d of %d remain", d.Remaining, d.Burst)
		}
		if err := l.Charge("refund", 150); err != nil { // 50 more than the share has
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ok(t, l.Refund(ctx, "refund", 150))
		if d := l.Peek(ctx, "refund"); d.Remaining < d.Burst {
			t.Errorf("after Charge and Refund of 150 %d of %d remain", d.Remaining, d.Burst)
		}
	})
}

// A cost that is known afterwards is taken from the lease first. A lease that went on admitting beside a debt that Redis
// forgives would be worth many times its tokens.
func TestChargesBesideALease(t *testing.T) {
	for _, processes := range []int{1, 3} {
		for _, cost := range []int64{2, 21, 201} {
			bubble(t, fmt.Sprint(cost, " by ", processes), func(t *testing.T) {
				ctx, s := context.Background(), remote.NewMemory()
				var all []*tiered.Limiter
				for range processes {
					l := limiter(t, s, tiered.Policy{Limit: tiered.PerSecond(100).WithBurst(400)}, nil)
					all = append(all, l)
				}
				began, used := time.Now(), int64(0)
				for i := range 5000 {
					l := all[i%len(all)]
					if l.Allow(ctx, "team").Allowed {
						ok(t, l.Charge("team", cost-1))
						used += cost
					}
					time.Sleep(2 * time.Millisecond)
				}
				bound := 400 + 400 + int64(100*time.Since(began).Seconds()) + int64(processes)*cost
				if least := int64(100 * time.Since(began).Seconds()); used > bound || used < least*9/10 {
					t.Errorf("%d tokens used: the bound is %d, and %d were refilled", used, bound, least)
				}
			})
		}
	}
}

// A share that could not bear the costs of late is left alone, and AllowAtMost and requests over several keys know it.
func TestSharesThatCannotBearTheCostsOfLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerHour(800), Standing: tiered.StandingOn}, nil)
		time.Sleep(3 * time.Hour)
		ok(t, l.Charge("other", 1600))
		before := l.Stats().Standing.Spent
		if n, d := l.AllowAtMost(ctx, "user", 10_000); n != 700 || !d.Allowed {
			t.Errorf("AllowAtMost took %d: %v", n, d.Reason)
		}
		if d := tiered.All(l.For("user"), l.For("third")).Allow(ctx); d.Allowed {
			t.Errorf("Redis has nothing left of a key, and a request over it is %v", d.Reason)
		}
		if n := l.Stats().Standing.Spent - before; n != 0 {
			t.Errorf("%d tokens of shares", n)
		}
	})
}
