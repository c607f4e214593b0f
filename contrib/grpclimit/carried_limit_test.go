package grpclimit_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/grpclimit"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A rule whose calls carry limits needs a policy that can have them. New says which field is in the way.
func TestPolicyThatCarriesNoLimit(t *testing.T) {
	l, err := tiered.New(remote.NewMemory(),
		tiered.Policy{Name: "api", Limit: tiered.PerSecond(100), Standing: tiered.StandingOn}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	_, err = grpclimit.New([]grpclimit.Rule{{
		Limiter: l, Key: grpclimit.PeerIP(), Missing: grpclimit.Refuse,
		Limit: func(context.Context, grpclimit.Call) tiered.Limit { return tiered.PerSecond(5) },
	}}, nil)
	if err == nil || !strings.Contains(err.Error(), "rules[0].Limit") ||
		!strings.Contains(err.Error(), "Policy.Standing is on: must be off") {
		t.Error(err)
	}
}
