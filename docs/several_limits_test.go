package docs_test

import (
	"context"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// From docs/several-limits.md.

func userAddressAndTenant(
	ctx context.Context, group *tiered.Group, perAddress, perTenant *tiered.Limiter, user, ip, tenant string, cost int64,
) (tiered.Decision, error) {
	perUser, err := group.NewLimiter(tiered.Policy{Name: "user", Limit: tiered.PerSecond(100)})
	if err != nil {
		return tiered.Decision{}, err
	}
	d := tiered.All(perUser.For(user), perAddress.For(ip), perTenant.For(tenant).N(cost)).Allow(ctx)
	if !d.Allowed {
		log.Print(d) // by which policy, why, what is left: never the key
	}
	return d, nil
}

func settleLater(ctx context.Context, requests, tokens *tiered.Limiter, user string, estimate, used int64) {
	r := tiered.All(requests.For(user), tokens.For(user).N(estimate)).Reserve(ctx)
	if !r.Allowed {
		return
	}
	r.Settle(1, used) // r.Settle(1) leaves the tokens at the estimate
}

func stateOfEach(
	ctx context.Context, requests, tokens *tiered.Limiter, user string, estimate int64,
) (tiered.Decision, [2]tiered.Decision) {
	var each [2]tiered.Decision
	d := tiered.All(requests.For(user), tokens.For(user).N(estimate)).AllowEach(ctx, each[:])
	return d, each
}

func severalLimitsOnAKey() tiered.Policy {
	policy := tiered.Policy{
		Name:  "api",
		Limit: tiered.PerSecond(10).And(tiered.PerHour(1000)),
	}
	return policy
}

func limitsByKey(plans map[string]tiered.Limit, planOf map[string]string) tiered.Policy {
	policy := tiered.Policy{
		Name:   "api",
		Limit:  tiered.PerSecond(10),                                        // for users without a plan
		PerKey: func(key string) tiered.Limit { return plans[planOf[key]] }, // the zero Limit means Policy.Limit
	}
	return policy
}

func limitOfTheRequest(ctx context.Context, perUser *tiered.Limiter, user string, contract tiered.Policy) tiered.Decision {
	d := perUser.For(user).WithLimit(contract.Limit).Allow(ctx)
	return d
}

func plansByUser(ctx context.Context, group *tiered.Group, user, plan string) (tiered.Decision, error) {
	perUser, err := group.NewLimiter(tiered.Policy{
		Name:  "per-user",
		Limit: tiered.PerMinute(100), // without a plan, or with an unknown one
		Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000).WithBurst(2000), "staff": tiered.Unlimited()},
	})
	if err != nil {
		return tiered.Decision{}, err
	}
	d := perUser.For(user).WithPlan(plan).Allow(ctx)
	return d, nil
}

// The code of the page does what the page says of it.
func TestSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := fatal.Get(tiered.NewGroup(remote.NewMemory(), nil))(t)
		defer group.Close(context.Background())
		limiter := func(p tiered.Policy) *tiered.Limiter {
			l := fatal.Get(group.NewLimiter(p))(t)
			return l
		}
		address := limiter(tiered.Policy{Name: "address", Limit: tiered.PerSecond(50)})
		tenant := limiter(tiered.Policy{Name: "tenant", Limit: tiered.PerSecond(5)})
		if d, each := stateOfEach(t.Context(), address, tenant, "bob", 2); !d.Allowed || each[0].Remaining < 40 || each[1].Remaining != 3 {
			t.Errorf("%+v, %+v", d, each)
		}
		d, err := userAddressAndTenant(t.Context(), group, address, tenant, "ann", "192.0.2.1", "acme", 6)
		if err != nil || d.Policy != "tenant" || d.Reason != tiered.ExceedsBurst {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(100 * time.Millisecond)
		if left := address.Peek(t.Context(), "192.0.2.1").Remaining; left != 50 {
			t.Errorf("a refusal by the tenant cost the address %d", 50-left)
		}

		tokens := limiter(tiered.Policy{Name: "tokens", Limit: tiered.PerHour(1000)})
		settleLater(t.Context(), address, tokens, "bob", 500, 20)
		time.Sleep(100 * time.Millisecond)
		if left := tokens.Peek(t.Context(), "bob").Remaining; left != 980 {
			t.Errorf("%d tokens are left, want 980", left)
		}

		several := limiter(severalLimitsOnAKey())
		several.AllowN(t.Context(), "ann", 10)
		if d := several.Allow(t.Context(), "ann"); d.Allowed || d.LimitNumber != 1 {
			t.Errorf("%+v", d)
		}

		gold := tiered.PerSecond(1000)
		p := limitsByKey(map[string]tiered.Limit{"gold": gold}, map[string]string{"ann": "gold"})
		p.Name = "plans"
		plans := limiter(p)
		if a, b := plans.Allow(t.Context(), "ann"), plans.Allow(t.Context(), "bob"); a.Burst != 1000 || b.Burst != 10 {
			t.Errorf("bursts of %d and %d", a.Burst, b.Burst)
		}
		if d := limitOfTheRequest(t.Context(), tenant, "acme", tiered.Policy{Limit: gold}); d.Burst != 1000 {
			t.Errorf("%+v", d)
		}
		if d, err := plansByUser(t.Context(), group, "ann", "pro"); err != nil || d.Burst != 2000 {
			t.Errorf("%+v, %v", d, err)
		}
		if d := tiered.All().Allow(t.Context()); d.Allowed || d.Reason != tiered.Unknown {
			t.Errorf("%+v", d)
		}
	})
}
