package tiered_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// reloads gives a Group on a new store one configuration after the other, each for a while, and returns the Limiters
// that a policy named api had: what code may still use.
func reloads(t *testing.T, s remote.Store, each time.Duration, configurations ...[]tiered.Policy) (all []*tiered.Limiter) {
	t.Helper()
	g := must(tiered.NewGroup(s, nil))
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	for _, c := range configurations {
		ok(t, g.SetPolicies(c))
		if l, ok := g.Limiter("api"); ok {
			all = append(all, l)
		}
		time.Sleep(each)
	}
	return all
}

// A policy that is removed and comes back has one limit, whichever of its Limiters is used, and whether it is the same
// policy again or another one. Two Limiters with buckets of their own would lease under one id, and each call would undo
// the grant of the other, so that the limit is gone.
func TestPolicyThatComesBackHasOneLimit(t *testing.T) {
	plain := tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000), FailMode: tiered.FailClosed}
	several, others := plain, plain
	several.Also = []tiered.Limit{tiered.PerMinute(50_000)}
	others.Also = []tiered.Limit{tiered.PerHour(3_000_000)} // cannot take up the Limiter, and counts in the same bucket
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
					if l.Allow(t.Context(), "user").Allowed {
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

// A removed policy uses no standing share, because it is announced no more: nobody would know of its share, and it does
// not learn that another process has the policy without shares.
func TestRemovedPolicyUsesNoStandingShare(t *testing.T) {
	with := tiered.Policy{
		Name: "api", Limit: tiered.PerMinute(800), Standing: tiered.StandingOn, FailMode: tiered.FailClosed,
	}
	without := with
	without.Standing = tiered.StandingOff
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
				for l.Allow(t.Context(), "user").Allowed {
					admitted++
				}
			}
			if admitted > 800 || admitted < 700 {
				t.Errorf("%d tokens admitted at once, and the burst is 800", admitted)
			}
		})
	}
}

// However many policies have come and gone, a process announces those that it has. Otherwise it would count as a process
// of every policy, and as one that splits no limit.
func TestReloadsDoNotSilenceAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := remote.NewMemory()
		api := tiered.Policy{Name: "api", Limit: tiered.PerMinute(800), Standing: tiered.StandingOn}
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

// What nobody can use any more is forgotten: a removed policy takes no memory once its keys are gone.
func TestRemovedPoliciesAreForgotten(t *testing.T) {
	g := must(tiered.NewGroup(remote.NewMemory(), nil))
	defer func() { _ = g.Close(context.Background()) }()
	set := func(version int) {
		var all []tiered.Policy
		for i := range 100 {
			all = append(all, tiered.Policy{Name: fmt.Sprintf("v%d-rule-%d", version, i), Limit: tiered.PerSecond(10)})
		}
		ok(t, g.SetPolicies(all))
		for _, p := range all {
			l, _ := g.Limiter(p.Name)
			l.Allow(t.Context(), "user")
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for v := range 3 {
		set(v)
	}
	before := heap()
	const times = 100
	for v := range times {
		set(3 + v)
		runtime.GC() // a heap that other tests have filled is collected rarely, and only then is a Limiter forgotten
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("after %d reloads of 100 policies the heap has %d kB more: %d bytes for each removed policy", times,
			grown>>10, grown/times/100)
	}
	runtime.KeepAlive(g)
}

// A policy that comes back while its Limiter is in use goes on counting.
func TestPolicyThatComesBackGoesOnCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := []tiered.Policy{{Name: "api", Limit: tiered.PerSecond(100)}}
		all := reloads(t, remote.NewMemory(), 0, p)
		l, g := all[0], all[0].Group()
		l.AllowN(t.Context(), "user", 7)
		for _, c := range [][]tiered.Policy{nil, p} {
			ok(t, g.SetPolicies(c))
		}
		if again, _ := g.Limiter("api"); again != l {
			t.Error("the policy has another Limiter")
		}
		l.AllowN(t.Context(), "user", 5)
		if n := g.Stats().Policies["api"].Leases.Spent; n != 12 {
			t.Errorf("%d tokens are counted, and 12 were spent", n)
		}
	})
}
