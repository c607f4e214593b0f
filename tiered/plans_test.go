package tiered_test

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var freeAndPro = tiered.Policy{
	Name: "per-user", Limit: tiered.PerMinute(100), Lease: neverLeased,
	Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000).WithBurst(2000), "staff": tiered.Unlimited(), "suspended": tiered.Blocked()},
}

// A request goes by the limit of its plan, and one without a plan, or with an unknown one, by
// Policy.Limit. Unknown plans are counted, and the first one makes a line that does not name it.
func TestPlanOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		plan    string
		want    int64 // admitted at once, of 3000
		unknown int64
	}{
		"no plan":        {"", 100, 0},
		"a plan":         {"pro", 2000, 0},
		"unlimited":      {"staff", 3000, 0},
		"blocked":        {"suspended", 0, 0},
		"unknown":        {"gold", 100, 3000},
		"another case":   {"Pro", 100, 3000},
		"space around":   {" pro", 100, 3000},
		"a secret":       {"sk_live_4711", 100, 3000},
		"the policy":     {"per-user", 100, 3000},
		"with a newline": {"pro\n", 100, 3000},
	} {
		bubble(t, name, func(t *testing.T) {
			var log logged
			l := must(tiered.New(remote.NewMemory(), freeAndPro, &tiered.Options{Logger: log.logger()}))
			admitted := int64(0)
			for range 3000 {
				if l.For("ann").WithPlan(c.plan).Allow(ctx).Allowed {
					admitted++
				}
			}
			if admitted != c.want {
				t.Errorf("%d admitted, want %d", admitted, c.want)
			}
			_ = l.Close(ctx) // the line is written by then
			s := l.Group().Stats().Policies["per-user"]
			if s.Faults.UnknownPlans != c.unknown || s.Faults.PerKey != 0 {
				t.Errorf("%d unknown plans, want %d; %d faults", s.Faults.UnknownPlans, c.unknown, s.Faults.PerKey)
			}
			const line = "a request has a plan that the policy does not have"
			if n := strings.Count(log.String(), line); n != int(min(c.unknown, 1)) {
				t.Errorf("%d lines: %s", n, log.String())
			}
			if c.unknown > 0 && (strings.Contains(log.String(), "4711") || !strings.Contains(log.String(),
				`plans="pro, staff, suspended"`)) {
				t.Error(log.String())
			}
		})
	}
}

// A user who changes plans has the new one from the next request on, and without a plan
// Policy.Limit again. What has been used counts in each plan.
func TestUserChangesPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), freeAndPro, nil)
		ask := func(plan string, n int64) tiered.Decision { return l.For("ann").N(n).WithPlan(plan).Allow(ctx) }
		want(t, ask("", 100), tiered.Granted)
		want(t, ask("", 1), tiered.Limited)
		want(t, ask("suspended", 1), tiered.ExceedsBurst)
		want(t, ask("staff", 1000), tiered.Granted)
		want(t, ask("", 1), tiered.Limited)
		time.Sleep(6 * time.Second) // 10 tokens
		want(t, ask("pro", 10), tiered.Granted)
		time.Sleep(6 * time.Second) // 100 tokens
		want(t, ask("pro", 100), tiered.Granted)
		time.Sleep(3 * time.Minute) // back to no plan: no more than its burst
		if d := ask("", 1); !d.Allowed || d.Burst != 100 || d.Remaining > 99 {
			t.Errorf("%+v", d)
		}
	})
}

// A reload changes what a plan is, adds plans and takes them away, for keys in use too.
func TestPlansReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), freeAndPro, nil)
		burst := func(user, plan string) int64 { return l.For(user).WithPlan(plan).Allow(ctx).Burst }
		reload := func(p map[string]tiered.Limit) {
			t.Helper()
			q := freeAndPro
			q.Plans = p
			ok(t, l.Group().SetPolicies([]tiered.Policy{q}))
			clear(p) // the caller's map is the caller's
		}
		for _, c := range []struct {
			plans     map[string]tiered.Limit
			pro, team int64
			unknown   int64 // since the start
		}{
			{maps.Clone(freeAndPro.Plans), 2000, 100, 1},
			{map[string]tiered.Limit{"pro": tiered.PerMinute(500), "team": tiered.PerMinute(7000)}, 500, 7000, 1},
			{map[string]tiered.Limit{"team": tiered.PerMinute(7000)}, 100, 7000, 2},
			{nil, 100, 100, 2}, // no plan is unknown to a policy that has none
			{map[string]tiered.Limit{"pro": tiered.PerMinute(3000)}, 3000, 100, 3},
		} {
			reload(c.plans)
			time.Sleep(11 * time.Second) // until then the larger limit may hold
			if pro, team := burst("ann", "pro"), burst("bob", "team"); pro != c.pro || team != c.team {
				t.Errorf("pro %d, team %d, want %d and %d", pro, team, c.pro, c.team)
			}
			if n := l.Group().Stats().Policies["per-user"].Faults.UnknownPlans; n != c.unknown {
				t.Errorf("%d unknown plans, want %d", n, c.unknown)
			}
		}
		p := l.Policy() // so is the one that Policy returns
		p.Plans["pro"] = tiered.PerMinute(1)
		if got := burst("ann", "pro"); got != 3000 {
			t.Errorf("a burst of %d", got)
		}
	})
}

// A plan may have the limits that a request may carry, and no other.
func TestPlansAreCarriedLimits(t *testing.T) {
	const year = 365 * 24 * time.Hour
	valid, invalid := 0, 0
	try := func(p tiered.Policy, l tiered.Limit) {
		carried := p.CheckLimit(l)
		p.Plans = map[string]tiered.Limit{"x": l}
		if err := p.Validate(); (err == nil) != (carried == nil) {
			t.Errorf("%v, %+v as a plan: %v; carried: %v", p.Algorithm, l, err, carried)
		} else if err == nil {
			valid++
		} else {
			invalid++
		}
	}
	for _, p := range []tiered.Policy{
		{Lease: tiered.Lease{Size: 1}, MaxDebt: 20},
		{Lease: tiered.Lease{Size: 3}, MaxDebt: 400_000},
		{Algorithm: tiered.FixedWindow, Lease: neverLeased},
		{Algorithm: tiered.SlidingLog},
		{Algorithm: tiered.SlidingWindow, Lease: tiered.Lease{Size: 1}},
	} {
		p.Name, p.Limit = "p", tiered.PerSecond(10)
		ok(t, p.Validate())
		if joined := p; p.Algorithm == tiered.TokenBucket || p.Algorithm == tiered.SlidingWindow {
			joined.Limit, joined.MaxDebt = p.Limit.And(tiered.PerMinute(300)), 0
			for _, first := range []tiered.Limit{{}, tiered.Unlimited(), tiered.PerSecond(1), tiered.PerMinute(2), tiered.PerSecond(3).In("UTC")} {
				for _, l := range []tiered.Limit{
					tiered.PerMinute(7), tiered.PerMinute(7).WithBurst(3), tiered.PerSecond(7), tiered.PerHour(7), tiered.Blocked(),
					{},
					{Tokens: 5, Per: time.Minute, Precision: time.Second},
					{Tokens: 5, Per: time.Minute, Precision: 2 * time.Second},
				} {
					try(joined, first)
					try(joined, first.And(l))
					try(joined, first.And(l, tiered.PerDay(4)))
					try(p, first.And(l))
				}
			}
		}
		for _, tokens := range []int64{-1, 0, 1, 10, 200_000, 1 << 41} {
			for _, per := range []time.Duration{0, 1, time.Microsecond, time.Second, time.Minute, 20 * year, 200 * year} {
				for _, burst := range []int64{0, -1, 5, 10, 300_000} {
					for _, precision := range []time.Duration{0, 1, time.Second} {
						try(p, tiered.Limit{Tokens: tokens, Per: per, Burst: burst, Precision: precision})
					}
				}
			}
		}
		try(p, tiered.Unlimited())
		try(p, tiered.Blocked())
	}
	if valid < 100 || invalid < 1000 {
		t.Errorf("%d limits are valid, %d are not: this shows little", valid, invalid)
	}
}

// A key whose limit has a larger burst than MaxDebt may owe that burst, wherever the limit comes
// from.
func TestLargerBurstIsTheDebtOfAKey(t *testing.T) {
	large := tiered.PerDay(100)
	policy := tiered.Policy{Name: "p", Limit: tiered.PerDay(10), MaxDebt: 20, Lease: neverLeased}
	perKey, plans := policy, policy
	perKey.PerKey = func(key string) tiered.Limit { return map[string]tiered.Limit{"large": large}[key] }
	plans.Plans = map[string]tiered.Limit{"pro": large}
	for name, c := range map[string]struct {
		policy tiered.Policy
		use    func(l *tiered.Limiter, key string) tiered.Use
		owes   int64
	}{
		"the policy's": {policy, func(l *tiered.Limiter, key string) tiered.Use { return l.For(key) }, 20},
		"by PerKey":    {perKey, func(l *tiered.Limiter, key string) tiered.Use { return l.For(key) }, 100},
		"by its plan":  {plans, func(l *tiered.Limiter, key string) tiered.Use { return l.For(key).WithPlan("pro") }, 100},
		"carried":      {policy, func(l *tiered.Limiter, key string) tiered.Use { return l.For(key).WithLimit(large) }, 100},
	} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), c.policy, nil)
			u := c.use(l, "large")
			d := u.Allow(ctx)
			ok(t, u.N(1000).Charge())
			time.Sleep(time.Second)
			want := 1000 - d.Remaining - c.owes
			if s := l.Group().Stats().Policies["p"]; s.Costs.Forgiven != want || s.Faults.PerKey != 0 {
				t.Errorf("%d forgiven, want %d; %d faults", s.Costs.Forgiven, want, s.Faults.PerKey)
			}
		})
	}
}

// One name of a plan serves the limits per minute and per month of a request. A policy without
// plans goes by its own limit, and nobody is warned. A contract beats the plan, whether the request
// carries it or PerKey knows it.
func TestPlanOfAMinuteAndAMonth(t *testing.T) {
	month := func(n int64) tiered.Limit { return tiered.PerMonth(n).In("Europe/Berlin").From(17) }
	contracts := map[string]tiered.Limit{"acme": month(700)}
	policies := []tiered.Policy{
		{Name: "minute", Limit: tiered.PerMinute(10), Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(50), "trial": tiered.PerMinute(20)}},
		{
			Name: "month", Limit: month(100), Algorithm: tiered.FixedWindow, Plans: map[string]tiered.Limit{"pro": month(500)},
			PerKey: func(key string) tiered.Limit { return contracts[key] },
		},
		{Name: "all", Limit: tiered.PerSecond(30).And(tiered.PerHour(1000))},
	}
	for _, c := range []struct {
		user, plan    string
		contract      tiered.Limit // of the minute
		minute, month int64
		unknown       int64 // of the month's policy
	}{
		{"ann", "", tiered.Limit{}, 10, 100, 0},
		{"ann", "pro", tiered.Limit{}, 50, 500, 0},
		{"ann", "trial", tiered.Limit{}, 20, 100, 1},
		{"acme", "", tiered.Limit{}, 10, 700, 0},
		{"acme", "pro", tiered.Limit{}, 50, 700, 0},
		{"acme", "trial", tiered.Limit{}, 20, 700, 0},
		{"ann", "pro", tiered.PerMinute(70), 70, 500, 0},
		{"ann", "gold", tiered.PerMinute(70), 70, 100, 1},
		{"ann", "pro", tiered.Limit{Tokens: -1, Per: time.Second}, 50, 500, 0}, // it is ignored
	} {
		for _, first := range []bool{false, true} {
			bubble(t, c.user+c.plan, func(t *testing.T) {
				var log logged
				g := must(tiered.NewGroup(remote.NewMemory(), &tiered.Options{Logger: log.logger()}))
				ok(t, g.SetPolicies(policies))
				of := func(name string) *tiered.Limiter { l, _ := g.Limiter(name); return l }
				minute, use := of("minute").For(c.user), tiered.Use{}
				if first {
					use = tiered.All(minute.WithLimit(c.contract), of("month").For(c.user), of("all").For("all")).WithPlan(c.plan)
				} else {
					minute = minute.WithPlan(c.plan).WithLimit(c.contract)
					use = tiered.All(minute, of("month").For(c.user).WithPlan(c.plan), of("all").For("all").WithPlan(c.plan))
				}
				var each [3]tiered.Decision
				use.AllowEach(ctx, each[:2])
				if each[0].Burst != c.minute || each[1].Burst != c.month {
					t.Errorf("%+v, contract first %v: %v", c, first, each)
				}
				ok(t, g.Close(ctx))
				all := g.Stats().Policies
				if n, m := all["month"].Faults.UnknownPlans, all["all"].Faults; n != c.unknown || m.UnknownPlans+m.PerKey != 0 {
					t.Errorf("%+v, contract first %v: %d unknown, and %+v", c, first, n, m)
				}
				if n := strings.Count(log.String(), "a plan that the policy does not have"); n > int(c.unknown)+1 {
					t.Errorf("%d lines: %s", n, log.String())
				}
			})
		}
	}
}
