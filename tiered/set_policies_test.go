package tiered_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// names returns the names of a Group's policies.
func names(g *tiered.Group) (all []string) {
	for _, p := range g.Policies() {
		all = append(all, p.Name)
	}
	return all
}

// Policies are added, changed and removed at once.
func TestSetPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		g := run(t, store, "", tiered.Policy{Name: "user", Limit: tiered.PerHour(10)}, tiered.Policy{
			Name: "ip", Limit: tiered.PerSecond(1000),
		}).Group
		user, _ := g.Limiter("user")
		ip, _ := g.Limiter("ip")
		user.AllowN(ctx, "a", 10)
		ip.Allow(ctx, "a")
		time.Sleep(10 * time.Millisecond)
		ip.Allow(ctx, "a")

		if err := g.SetPolicies([]tiered.Policy{{Name: "user", Limit: tiered.PerHour(20)}, {
			Name: "mail", Limit: tiered.PerHour(3),
		}}); err != nil {
			t.Fatal(err)
		}
		if got := names(g); !slices.Equal(got, []string{"user", "mail"}) {
			t.Errorf("policies %v", got)
		}
		if now, _ := g.Limiter("user"); now != user || user.Policy().Limit != tiered.PerHour(20) {
			t.Errorf("user has %v", user.Policy().Limit)
		}
		if d := user.Allow(ctx, "a"); d.Allowed {
			t.Errorf("a larger limit creates tokens: %v", d)
		}
		if _, ok := g.Limiter("ip"); ok {
			t.Error("ip is still there")
		}
		if _, ok := g.Stats().Policies["ip"]; ok {
			t.Error("ip is still in Stats")
		}
		if d := ip.Allow(ctx, "a"); !d.Allowed {
			t.Errorf("who still has ip: %v", d)
		}
		time.Sleep(time.Minute) // nobody uses it any more
		held := int64(0)
		tiered.Engine(g).Cache.All(func(b *engine.Bucket) { held += b.Stats().Held })
		if held != 0 {
			t.Errorf("%d tokens of a removed policy are held", held)
		}
		store.Fail(context.DeadlineExceeded)
		if d := ip.Allow(ctx, "b"); d.Reason != tiered.Unavailable {
			t.Errorf("ip in an outage: %v", d)
		}
		store.Fail(nil)
		time.Sleep(10 * time.Second)
		if err := g.SetPolicies([]tiered.Policy{{
			Name: "ip", Limit: tiered.PerSecond(10), Algorithm: tiered.SlidingWindow,
		}}); err != nil {
			t.Fatal(err)
		}
		again, _ := g.Limiter("ip")
		if d := again.Allow(ctx, "a"); !d.Allowed || d.Burst != 10 {
			t.Errorf("ip again: %v", d)
		}
		time.Sleep(10 * time.Second)
		if n := g.Stats().Policies["ip"].Processes.Sharing; n != 1 {
			t.Errorf("%d processes have ip", n)
		}
	})
}

// If anything is wrong, nothing changes.
func TestSetPoliciesAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := run(t, remote.NewMemory(), "", tiered.Policy{Name: "user", Limit: tiered.PerHour(10)},
			tiered.Policy{Name: "ip", Limit: tiered.PerHour(10)}).Group
		err := g.SetPolicies([]tiered.Policy{
			{Name: "user", Limit: tiered.PerHour(20)},
			{Name: "ip", Limit: tiered.PerHour(10).WithBurst(-1), Algorithm: tiered.SlidingLog, Calendar: true},
			{Name: "new", Limit: tiered.PerHour(10)},
			{Name: "new", Limit: tiered.PerHour(10)},
			{Name: "bad"},
			{},
		})
		for _, want := range []string{
			`policy "ip": tiered: `, "Policy.Limit.Burst is -1",
			"Policy.Algorithm is sliding log: must stay token bucket", "Policy.Calendar is true: must stay false",
			`policy "new": tiered: Policy.Name is "new": must differ from the names of the other policies`,
			`policy "bad": tiered: Policy.Limit is zero`, `policies[5]: tiered: Policy.Name is ""`,
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if got := names(g); !slices.Equal(got, []string{"user", "ip"}) {
			t.Errorf("policies %v", got)
		}
		if l, _ := g.Limiter("user"); l.Policy().Limit != tiered.PerHour(10) {
			t.Errorf("user has %v", l.Policy().Limit)
		}
	})
}

// A new configuration walks the keys once, and not once for each policy: 200 policies with 20 000
// keys would take seconds.
func TestSetPoliciesWalksTheKeysOnce(t *testing.T) {
	const policies, keys = 200, 20_000
	all := make([]tiered.Policy, policies)
	for i := range all {
		all[i] = tiered.Policy{Name: fmt.Sprint("p", i), Limit: tiered.PerHour(10)}
	}
	g := run(t, remote.NewMemory(), "", all...).Group
	hasKeys, _ := g.Limiter("p0")
	for i := range keys {
		hasKeys.Allow(ctx, fmt.Sprint(i))
	}
	l, _ := g.Limiter("p1")
	limit := int64(10)
	least := func(set func() error) time.Duration { // of three
		shortest := time.Hour
		for range 3 {
			limit++
			begin := time.Now()
			ok(t, set())
			shortest = min(shortest, time.Since(begin))
		}
		return shortest
	}
	one := least(func() error { return l.SetLimit(tiered.PerHour(limit)) })
	many := least(func() error {
		for i := 1; i < policies; i++ { // each without keys, so that only the walks count
			all[i].Limit = tiered.PerHour(limit)
		}
		return g.SetPolicies(all)
	})
	if many > policies/2*one { // a busy machine is far from that
		t.Errorf("changing %d policies takes %v, and one %v", policies, many, one)
	}
}

// reloads gives a Group on a new store one configuration after the other, each for a while, and
// returns the Limiters that a policy named api had: what code may still use.
func reloads(t *testing.T, s remote.Store, each time.Duration, configurations ...[]tiered.Policy) (all []*tiered.Limiter) {
	t.Helper()
	g := must(tiered.NewGroup(s, nil))
	t.Cleanup(func() { _ = g.Close(ctx) })
	for _, c := range configurations {
		ok(t, g.SetPolicies(c))
		if l, ok := g.Limiter("api"); ok {
			all = append(all, l)
		}
		time.Sleep(each)
	}
	return all
}

// A policy that is removed and comes back has one limit, whichever of its Limiters is used, and
// whether it is the same policy again or another one. Two Limiters with buckets of their own would
// lease under one id, and each call would undo the grant of the other, so that the limit is gone.
func TestPolicyThatComesBackHasOneLimit(t *testing.T) {
	plain := tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000), FailMode: tiered.FailClosed}
	several, others := plain, plain
	several.Limit = several.Limit.And(tiered.PerMinute(50_000))
	others.Limit = others.Limit.And(tiered.PerHour(3_000_000)) // cannot take up the Limiter, and counts in the same bucket
	for _, c := range []struct {
		name  string
		twice [2]tiered.Policy
	}{{"the same", [2]tiered.Policy{plain, plain}}, {"with other limits", [2]tiered.Policy{several, others}}} {
		bubble(t, c.name, func(t *testing.T) {
			all := reloads(t, remote.NewMemory(), 3*time.Second,
				[]tiered.Policy{c.twice[0]}, nil, []tiered.Policy{c.twice[1]})
			time.Sleep(10 * time.Second)
			admitted, start := 0, time.Now()
			for time.Since(start) < 20*time.Second {
				for _, l := range all {
					if l.Allow(ctx, "user").Allowed {
						admitted++
					}
				}
				time.Sleep(300 * time.Microsecond)
			}
			if most := 1000 + 20*1000; admitted > most || admitted < most*9/10 {
				t.Errorf("%d tokens admitted in 20 s, and the bound is %d", admitted, most)
			}
		})
	}
}

// A policy that comes back twice, the first time as another one, has one limit: a bucket of Redis
// has one Limiter, also if nobody uses that of the policy between, and no standing share is used
// beside a Limiter that does not split the limit.
func TestPolicyThatComesBackTwiceHasOneLimit(t *testing.T) {
	t.Parallel()
	off := tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000), FailMode: tiered.FailClosed}
	with := func(change func(p *tiered.Policy)) tiered.Policy {
		p := off
		change(&p)
		return p
	}
	also := func(standing float64, limits ...tiered.Limit) tiered.Policy {
		return with(func(p *tiered.Policy) { p.Limit, p.Standing = p.Limit.And(limits...), standing })
	}
	perHour, perDay := tiered.PerHour(1_000_000), tiered.PerDay(9_000_000)
	variants := map[string]tiered.Policy{
		"off":                      off,
		"on":                       with(func(p *tiered.Policy) { p.Standing = 1.0 / 8 }),
		"half":                     with(func(p *tiered.Policy) { p.Standing = 1.0 / 2 }),
		"several limits, off":      also(0, perHour),
		"several limits, on":       also(1.0/8, perHour),
		"other several limits, on": also(1.0/8, perDay),
	}
	between := []tiered.Policy{
		with(func(p *tiered.Policy) { p.Algorithm = tiered.SlidingLog }), with(func(p *tiered.Policy) { p.Algorithm = tiered.FixedWindow }),
		off, variants["several limits, off"],
	}
	for first, a := range variants {
		for last, c := range variants {
			if len(a.Limit.Each()) != len(c.Limit.Each()) { // they count in two buckets
				continue
			}
			for i, b := range between {
				if testing.Short() && i%2 == 1 {
					continue
				}
				bubble(t, fmt.Sprint(first, ", ", i, ", ", last), func(t *testing.T) {
					g := must(tiered.NewGroup(remote.NewMemory(), nil))
					defer func() { _ = g.Close(ctx) }()
					used := make([]*tiered.Limiter, 2)
					for i, p := range []tiered.Policy{a, b, c} {
						ok(t, g.SetPolicies(nil)) // SetPolicies refuses such a change in one step
						ok(t, g.SetPolicies([]tiered.Policy{p}))
						if i != 1 {
							used[i/2], _ = g.Limiter("api")
						}
					}
					runtime.GC() // nobody uses the Limiter between
					time.Sleep(10 * time.Minute)
					admitted, start := 0, time.Now()
					for time.Since(start) < 3*time.Second {
						for _, l := range used {
							if l.Allow(ctx, "user").Allowed {
								admitted++
							}
						}
						time.Sleep(time.Millisecond)
					}
					if most := 1000 + 3*1000; admitted > most || admitted < most*8/10 {
						t.Errorf("%d tokens admitted in 3 s, and the bound is %d", admitted, most)
					}
				})
			}
		}
	}
}

// A removed policy uses no standing share, because it is announced no more: nobody would know of
// its share, and it does not learn that another process has the policy without shares.
func TestRemovedPolicyUsesNoStandingShare(t *testing.T) {
	with := tiered.Policy{
		Name: "api", Limit: tiered.PerMinute(800), Standing: 1.0 / 8, FailMode: tiered.FailClosed,
	}
	without := with
	without.Standing = 0
	a, b := []tiered.Policy{with}, []tiered.Policy{without}
	for _, c := range []struct {
		name           string
		configurations [][]tiered.Policy
		other          bool // another process has the policy without shares
	}{
		{"comes and goes", [][]tiered.Policy{a, nil, a, nil, a, nil, a, nil}, false},
		{"comes back", [][]tiered.Policy{a, nil, a}, false},
		{"comes back without shares", [][]tiered.Policy{a, nil, b}, false},
		{"comes back with shares", [][]tiered.Policy{b, nil, a}, false},
		{"beside another process", [][]tiered.Policy{a, nil}, true},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := remote.NewMemory()
			all := reloads(t, s, 5*time.Minute, c.configurations...)
			if c.other {
				all = append(reloads(t, s, 0, b), all...)
			}
			time.Sleep(time.Hour)
			admitted := 0
			for _, l := range all {
				for l.Allow(ctx, "user").Allowed {
					admitted++
				}
			}
			if admitted > 800 || admitted < 700 {
				t.Errorf("%d tokens admitted at once, and the burst is 800", admitted)
			}
		})
	}
}

// However many policies have come and gone, a process announces those that it has. Otherwise it
// would count as a process of every policy, and as one that splits no limit.
func TestReloadsDoNotSilenceAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := remote.NewMemory()
		api := tiered.Policy{Name: "api", Limit: tiered.PerMinute(800), Standing: 1.0 / 8}
		neighbor := reloads(t, s, 0, []tiered.Policy{api})[0].Group()
		var configurations [][]tiered.Policy
		for i := range 300 { // each replaces one tenant by another
			tenant := tiered.Policy{Name: fmt.Sprint("tenant-", i), Limit: tiered.PerMinute(10)}
			configurations = append(configurations, []tiered.Policy{api, tenant})
		}
		reloads(t, s, time.Second, configurations...)
		time.Sleep(time.Minute)
		if p := neighbor.Stats().Policies["api"]; p.Standing.Outside > 0 || p.Processes.Sharing != 2 {
			t.Errorf("%d processes seem to split no limit, and %d to have the policy", p.Standing.Outside, p.Processes.Sharing)
		}
		if _, err := neighbor.NewLimiter(tiered.Policy{Name: "own", Limit: tiered.PerSecond(1)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := neighbor.Stats().Policies["own"].Processes.Sharing; n != 1 {
			t.Errorf("one process has the policy, and %d are counted", n)
		}
	})
}

// A policy that comes back while its Limiter is in use goes on counting.
func TestPolicyThatComesBackGoesOnCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := []tiered.Policy{{Name: "api", Limit: tiered.PerSecond(100)}}
		all := reloads(t, remote.NewMemory(), 0, p)
		l, g := all[0], all[0].Group()
		l.AllowN(ctx, "user", 7)
		for _, c := range [][]tiered.Policy{nil, p} {
			ok(t, g.SetPolicies(c))
		}
		if again, _ := g.Limiter("api"); again != l {
			t.Error("the policy has another Limiter")
		}
		l.AllowN(ctx, "user", 5)
		if n := g.Stats().Policies["api"].Leases.Spent; n != 12 {
			t.Errorf("%d tokens are counted, and 12 were spent", n)
		}
	})
}
