package benchmarks

import "testing"

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
