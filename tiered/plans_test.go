package tiered

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

var freeAndPro = Policy{
	Name: "per-user", Limit: PerMinute(100), Lease: Lease{Size: NoLease},
	Plans: Plans{"pro": PerMinute(1000).WithBurst(2000), "staff": Unlimited(), "suspended": Blocked()},
}

// A request goes by the limit of its plan, and one without a plan, or with an unknown one, by Policy.Limit. Unknown plans
// are counted, and the first one makes a line that does not name it.
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log lockedBuffer
				l, err := New(remote.NewMemory(), freeAndPro, &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				admitted := int64(0)
				for range 3000 {
					if l.For("ann").WithPlan(c.plan).Allow(t.Context()).Allowed {
						admitted++
					}
				}
				if admitted != c.want {
					t.Errorf("%d admitted, want %d", admitted, c.want)
				}
				_ = l.Close(t.Context()) // the line is written by then
				s := l.group.Stats().Policies["per-user"]
				if s.UnknownPlans != c.unknown || s.PerKeyFaults != 0 {
					t.Errorf("%d unknown plans, want %d; %d faults", s.UnknownPlans, c.unknown, s.PerKeyFaults)
				}
				const line = "a request has a plan that the policy does not have"
				if n := strings.Count(log.String(), line); n != int(min(c.unknown, 1)) {
					t.Errorf("%d lines: %s", n, log.String())
				}
				if c.unknown > 0 && (strings.Contains(log.String(), "4711") || !strings.Contains(log.String(), `plans="pro, staff, suspended"`)) {
					t.Error(log.String())
				}
			})
		})
	}
}

// A user who changes plans has the new one from the next request on, and without a plan Policy.Limit again. What has been
// used counts in each plan.
func TestUserChangesPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), freeAndPro, nil)
		ask := func(plan string, n int64) Decision { return l.For("ann").N(n).WithPlan(plan).Allow(t.Context()) }
		want(t, ask("", 100), Granted)
		want(t, ask("", 1), Limited)
		want(t, ask("suspended", 1), ExceedsBurst)
		want(t, ask("staff", 1000), Granted)
		want(t, ask("", 1), Limited)
		time.Sleep(6 * time.Second) // 10 tokens
		want(t, ask("pro", 10), Granted)
		time.Sleep(6 * time.Second) // 100 tokens
		want(t, ask("pro", 100), Granted)
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
		burst := func(user, plan string) int64 { return l.For(user).WithPlan(plan).Allow(t.Context()).Burst }
		reload := func(p Plans) {
			t.Helper()
			q := freeAndPro
			q.Plans = p
			if err := l.group.SetPolicies([]Policy{q}); err != nil {
				t.Fatal(err)
			}
			clear(p) // the caller's map is the caller's
		}
		for _, c := range []struct {
			plans     Plans
			pro, team int64
			unknown   int64 // since the start
		}{
			{maps.Clone(freeAndPro.Plans), 2000, 100, 1},
			{Plans{"pro": PerMinute(500), "team": PerMinute(7000)}, 500, 7000, 1},
			{Plans{"team": PerMinute(7000)}, 100, 7000, 2},
			{nil, 100, 100, 4},
			{Plans{"pro": PerMinute(3000)}, 3000, 100, 5},
		} {
			reload(c.plans)
			time.Sleep(11 * time.Second) // until then the larger limit may hold
			if pro, team := burst("ann", "pro"), burst("bob", "team"); pro != c.pro || team != c.team {
				t.Errorf("pro %d, team %d, want %d and %d", pro, team, c.pro, c.team)
			}
			if n := l.group.Stats().Policies["per-user"].UnknownPlans; n != c.unknown {
				t.Errorf("%d unknown plans, want %d", n, c.unknown)
			}
		}
		p := l.Policy() // so is the one that Policy returns
		p.Plans["pro"] = PerMinute(1)
		if got := burst("ann", "pro"); got != 3000 {
			t.Errorf("a burst of %d", got)
		}
	})
}

// Each mistake makes one line, with field, value and rule.
func TestPlansThatCannotBe(t *testing.T) {
	many := Plans{}
	for i := range maxPlans + 1 {
		many[fmt.Sprint("p", i)] = PerMinute(1)
	}
	pro := Plans{"pro": PerMinute(1000)}
	for _, c := range []struct {
		p    Policy
		want string // "" is none
	}{
		{Policy{Limit: PerMinute(100), Plans: pro}, ""},
		{Policy{Limit: Blocked(), Plans: pro}, ""}, // requests without a plan are refused
		{Policy{Limit: PerMinute(100), Plans: Plans{"staff": Unlimited(), "suspended": Blocked()}}, ""},
		{Policy{Limit: PerMinute(100), Plans: pro, Lease: Lease{Size: 30}}, ""}, // reduced where it is too large
		{Policy{Limit: PerMinute(100), Plans: pro, MaxDebt: 1000}, ""},
		{Policy{Limit: PerMinute(100), Plans: Plans{"": PerMinute(1)}},
			`Policy.Plans is 1 plans: must have no plan "", because that is a request without a plan: Limit is its limit`},
		{Policy{Limit: PerMinute(100), Plans: Plans{" pro": PerMinute(1)}},
			`Policy.Plans[" pro"] is 1/min: its name must be 1 to 64 bytes, without space around`},
		{Policy{Limit: PerMinute(100), Plans: Plans{strings.Repeat("x", 65): PerMinute(1)}}, `its name must be 1 to 64 bytes`},
		{Policy{Limit: PerMinute(100), Plans: Plans{"pro": {}}}, `Policy.Plans["pro"] is zero: must be set`},
		{Policy{Limit: PerMinute(100), Plans: Plans{"pro": PerMinute(-5)}}, `Policy.Plans["pro"].Tokens is -5: must be 1 to 2^40`},
		{Policy{Limit: PerMinute(100), Plans: Plans{"pro": PerMinute(5).WithBurst(0)}}, `Policy.Plans["pro"].Burst is -1: must be`},
		{Policy{Plans: pro}, `Policy.Limit is zero: must be set`},
		{Policy{Limit: Unlimited(), Plans: pro},
			`Policy.Limit is Unlimited: must be a limit or Blocked with Plans, because requests with an unknown plan go by it`},
		{Policy{Limit: PerMinute(100), Plans: many}, `Policy.Plans is 1001 plans: must be at most 1000`},
		{Policy{Limit: PerMinute(100), Also: []Limit{PerDay(9000)}, Plans: Plans{"pro": PerMinute(200)}},
			`Policy.Plans is 1 plans: must be empty with Also`},
		{Policy{Limit: PerMinute(100), Standing: StandingOn, Plans: pro}, `Policy.Plans is 1 plans: must be empty with Standing`},
		{Policy{Limit: PerMinute(100), PerKey: func(string) Limit { return Limit{} }, Plans: pro},
			`Policy.Plans is 1 plans: must be empty with PerKey`},
		{Policy{Limit: PerMinute(100), Algorithm: FixedWindow, Plans: Plans{"pro": PerHour(9)}},
			`Policy.Plans["pro"].Per is 1h0m0s: must be that of Limit, 1m0s`},
		{Policy{Limit: PerMinute(100), Algorithm: SlidingLog, Plans: Plans{"pro": PerMinute(200_000)}},
			`Policy.Plans["pro"].Tokens is 200000: must be at most 100000`},
		{Policy{Limit: PerMinute(100), Algorithm: FixedWindow, Plans: Plans{"pro": PerMinute(9).WithBurst(20)}},
			`Policy.Plans["pro"].Burst is 20: must be 0`},
		{Policy{Limit: PerMinute(100), Plans: pro, MaxDebt: 500}, `Policy.MaxDebt is 500: must be 0 for one burst, or at least the burst, here 1000`},
	} {
		c.p.Name = "p"
		switch err := c.p.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.p.Plans, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), "tiered: ") != 1):
			t.Errorf("%v, want one line with %q", err, c.want)
		}
	}
}

// A plan may have the limits that a request may carry, and no other.
func TestPlansAreCarriedLimits(t *testing.T) {
	const year = 365 * 24 * time.Hour
	valid, invalid := 0, 0
	try := func(p Policy, l Limit) {
		carried := p.CheckCarriedLimit(l)
		p.Plans = Plans{"x": l}
		if err := p.Validate(); (err == nil) != (carried == nil) {
			t.Errorf("%v, %+v as a plan: %v; carried: %v", p.Algorithm, l, err, carried)
		} else if err == nil {
			valid++
		} else {
			invalid++
		}
	}
	for _, p := range []Policy{
		{Lease: Lease{Size: 1}, MaxDebt: 20},
		{Lease: Lease{Size: 3}, MaxDebt: 400_000},
		{Algorithm: FixedWindow, Lease: Lease{Size: NoLease}},
		{Algorithm: SlidingLog},
		{Algorithm: SlidingWindow, Lease: Lease{Size: 1}},
	} {
		p.Name, p.Limit = "p", PerSecond(10)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, tokens := range []int64{-1, 0, 1, 10, 200_000, 1 << 41} {
			for _, per := range []time.Duration{0, 1, time.Microsecond, time.Second, time.Minute, 20 * year, 200 * year} {
				for _, burst := range []int64{0, -1, 5, 10, 300_000} {
					for _, precision := range []time.Duration{0, 1, time.Second} {
						try(p, Limit{tokens, per, burst, precision})
					}
				}
			}
		}
		try(p, Unlimited())
		try(p, Blocked())
	}
	if valid < 100 || invalid < 1000 {
		t.Errorf("%d limits are valid, %d are not: this shows little", valid, invalid)
	}
}

// The cost that one plan can pay is no mistake.
func TestCostWithPlans(t *testing.T) {
	p := Policy{Name: "p", Limit: PerMinute(100), Plans: Plans{"pro": PerMinute(1000)}}
	if err := p.CheckCost(1000); err != nil {
		t.Error(err)
	}
	if err := p.CheckCost(1001); err == nil || !strings.Contains(err.Error(), `must be at most 1000, the burst of Policy.Plans["pro"]`) {
		t.Error(err)
	}
	p.Plans["staff"] = Unlimited()
	if err := p.CheckCost(1001); err != nil {
		t.Error(err)
	}
	if got := p.limitsText(); got != `100/min, "pro" 1k/min, "staff" unlimited` && got != `100/min, "pro" 1000/min, "staff" unlimited` {
		t.Error(got)
	}
}

// A policy without plans ignores the plan of a request, and counts it. The zero Use stays refused.
func TestPlanWithoutPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), Policy{Name: "p", Limit: PerSecond(10)}, nil)
		for _, plan := range []string{"", "pro"} {
			if d := l.For("ann").WithPlan(plan).Allow(t.Context()); !d.Allowed || d.Burst != 10 {
				t.Errorf("%+v", d)
			}
		}
		if n := l.group.Stats().Policies["p"].UnknownPlans; n != 1 || l.carries.Load() {
			t.Errorf("%d unknown plans; carries %v", n, l.carries.Load())
		}
		if d := (Use{}).WithPlan("pro").Allow(t.Context()); d.Allowed {
			t.Error("the zero Use is admitted")
		}
	})
}

// Reloads and requests at once do not race.
func TestPlansAtOnce(t *testing.T) {
	l := limiter(t, remote.NewMemory(), freeAndPro, nil)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 300 {
				if i == 0 {
					p := l.Policy()
					p.Plans["pro"] = PerMinute(int64(1000 + n))
					if err := l.SetPolicy(p); err != nil {
						t.Error(err)
					}
				}
				l.For("k").WithPlan([]string{"pro", "", "staff", "none"}[(i+n)%4]).Allow(t.Context())
			}
		})
	}
	all.Wait()
}

// To ask with a known plan costs no allocation.
func TestPlanAllocations(t *testing.T) {
	l := limiter(t, remote.NewMemory(), Policy{Name: "p", Limit: PerSecond(1), Plans: Plans{"pro": PerSecond(1_000_000)}}, nil)
	ctx := t.Context()
	for range 1000 {
		l.For("k").WithPlan("pro").Allow(ctx)
	}
	if n := testing.AllocsPerRun(2000, func() { l.For("k").WithPlan("pro").Allow(ctx) }); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
