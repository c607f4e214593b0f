package tiered_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The Stats of a Limiter are those of its policy in the Group's Stats. Those of a policy that was removed stay.
func TestStatsOfOnePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		group, err := tiered.NewGroup(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = group.Close(context.Background()) }()
		policies := []tiered.Policy{
			{Name: "fast", Limit: tiered.PerSecond(1000)},
			{Name: "slow", Limit: tiered.PerMinute(5)},
			{Name: "standing", Limit: tiered.PerMinute(1000), Standing: tiered.StandingOn},
			{Name: "tried", Limit: tiered.PerMinute(1), Shadow: true},
		}
		if err := group.SetPolicies(policies); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		use := func() {
			for range 50 {
				for _, p := range policies {
					l, _ := group.Limiter(p.Name)
					l.Allow(t.Context(), "ann")
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		use()
		store.Fail(errors.New("connection refused"))
		use()
		store.Fail(nil)
		time.Sleep(10 * time.Second)
		use()
		all := group.Stats().Policies
		for _, p := range policies {
			l, _ := group.Limiter(p.Name)
			if s := l.Stats(); !reflect.DeepEqual(s, all[p.Name]) || s.Requests.Allowed == 0 {
				t.Errorf("%s: %+v, want %+v", p.Name, s, all[p.Name])
			}
		}
		slow, _ := group.Limiter("slow")
		before := slow.Stats()
		if before.Tokens.Limited == 0 || len(before.Top) != 1 || before.Top[0].Key != "ann" {
			t.Errorf("%+v", before)
		}
		if err := group.SetPolicies(policies[:1]); err != nil {
			t.Fatal(err)
		}
		if s := slow.Stats(); s.Tokens.Limited != before.Tokens.Limited || s.Requests != before.Requests {
			t.Errorf("removed: %+v, want %+v", s, before)
		}
	})
}
