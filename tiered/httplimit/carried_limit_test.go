package httplimit_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A rule whose requests carry limits needs a policy that can have them. New says which field is in the way.
func TestPolicyThatCarriesNoLimit(t *testing.T) {
	for _, c := range []struct {
		policy tiered.Policy
		want   string
	}{
		{
			tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(1000)}},
			"Policy.Also has 1 limits: must be empty",
		},
		{
			tiered.Policy{Name: "api", Limit: tiered.PerSecond(100), Standing: tiered.StandingOn},
			"Policy.Standing is on: must be off",
		},
		{tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)}, ""},
	} {
		l, err := tiered.New(remote.NewMemory(), c.policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = httplimit.New([]httplimit.Rule{{
			Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse,
			Limit: func(*http.Request) tiered.Limit { return tiered.PerSecond(5) },
		}}, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "rules[0].Limit")) {
			t.Errorf("%+v: %v", c.policy, err)
		}
		_ = l.Close(context.Background())
	}
}
