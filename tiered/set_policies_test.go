package tiered_test

import (
	"context"
	"fmt"
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
			Name:  "ip",
			Limit: tiered.PerSecond(1000),
		}).Group
		user, _ := g.Limiter("user")
		ip, _ := g.Limiter("ip")
		user.AllowN(ctx, "a", 10)
		ip.Allow(ctx, "a")
		time.Sleep(10 * time.Millisecond)
		ip.Allow(ctx, "a")

		if err := g.SetPolicies([]tiered.Policy{{Name: "user", Limit: tiered.PerHour(20)}, {
			Name:  "mail",
			Limit: tiered.PerHour(3),
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
			Name: "ip", Limit: tiered.PerSecond(10),
			Algorithm: tiered.SlidingWindow,
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
			`policy "ip": tiered: `,
			"Policy.Limit.Burst is -1",
			"Policy.Algorithm is sliding log: must stay token bucket",
			"Policy.Calendar is true: must stay false",
			`policy "new": tiered: Policy.Name is "new": must differ from the names of the other policies`,
			`policy "bad": tiered: Policy.Limit is zero`,
			`policies[5]: tiered: Policy.Name is ""`,
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

// A new configuration walks the keys once, and not once for each policy: 200 policies with 20 000 keys would take
// seconds.
func TestSetPoliciesWalksTheKeysOnce(t *testing.T) {
	const policies, keys = 200, 20_000
	all := make([]tiered.Policy, policies)
	for i := range all {
		all[i] = tiered.Policy{Name: fmt.Sprint("p", i), Limit: tiered.PerHour(10)}
	}
	g := run(t, remote.NewMemory(), "", all...).Group
	hasKeys, _ := g.Limiter("p0")
	for i := range keys {
		hasKeys.Allow(t.Context(), fmt.Sprint(i))
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
	if many > 20*one {
		t.Errorf("changing %d policies takes %v, and one %v", policies, many, one)
	}
}
