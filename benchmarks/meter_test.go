package benchmarks

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Calls that the meter does not see are an error.
func TestMeterThatSeesNothing(t *testing.T) {
	s := StartServer(t)
	ask := func(c *redis.Client, key string) {
		store := remote.NewRedis(c, nil)
		policy := tiered.Policy{Name: "api", Limit: plenty, Lease: tiered.Lease{Size: tiered.NoLease}}
		l := fatal.Get(tiered.New(store, policy, &patient))(t)
		l.Allow(t.Context(), key)
		fatal.If(t, l.Close(t.Context()))
	}
	ask(s.dial(t, &redis.Options{ContextTimeoutEnabled: true}), "seen")
	if n, err := s.sent(); err != nil || n < 1 {
		t.Errorf("%d commands, %v", n, err)
	}
	blind := s.Server.Client() // as a client whose hooks see nothing
	for range 30 {
		ask(blind, "unseen")
	}
	if n, err := s.sent(); err == nil {
		t.Errorf("%d commands, and the meter sees none of a client's", n)
	}
}

// The meter and the server count alike, where no script calls anything.
func TestMeterAgreesWithRedis(t *testing.T) {
	s := StartServer(t)
	c := s.peerClient(t)
	ctx := t.Context()
	increments := func() {
		pipe := c.Pipeline()
		for range 100 {
			pipe.Incr(ctx, "n")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.Incr(ctx, "n").Err(); err != nil {
			t.Fatal(err)
		}
	}
	increments() // and what a client says when it connects
	if err := s.operator.ConfigResetStat(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	first := s.Meter.commands.Load()
	increments()
	if got, want := s.Meter.commands.Load()-first, s.Calls(s.operator, "incr"); got != want || want != 101 {
		t.Errorf("the meter counts %d, Redis %d, and they were 101", got, want)
	}
}
