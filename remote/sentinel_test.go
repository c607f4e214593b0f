package remote_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestSentinel(t *testing.T) {
	t.Parallel()
	c := redistest.StartSentinel(t)
	s := openStore(t, c.URL())
	takeAll(t, s, keys(10))
	if n := s.Node(s.Key("test", "x")); n == "" || n != s.Node(s.Key("test", "y")) {
		t.Errorf("node %q", n)
	}
	if n, err := c.Primary.Client().DBSize(t.Context()).Result(); err != nil || n != 10 {
		t.Errorf("the primary has %d buckets, %v", n, err)
	}
	census, err := s.Presence(t.Context(), patience, s.Node(""), remote.Process{ID: "me", TTL: time.Minute})
	if err != nil || census.Processes != 1 {
		t.Errorf("%+v, %v", census, err)
	}

	c.Primary.Kill()
	begun := time.Now()
	for results := make([]remote.Result, 1); ; time.Sleep(20 * time.Millisecond) { // a real election
		s.Run(t.Context(), 50*time.Millisecond, []lua.Call{takeOne(s, "after")}, results)
		if results[0].Err == nil {
			break
		}
		if time.Since(begun) > time.Minute { // one that stood still for 2 s does nothing for half a minute
			t.Fatal(results[0].Err)
		}
	}
	t.Logf("calls failed for %v", time.Since(begun))
	if n := charged(t, s, "after"); n != 1 {
		t.Errorf("charged %d", n)
	}
	if role, err := c.Replica.Client().Do(t.Context(), "role").Slice(); err != nil || role[0] != "master" {
		t.Errorf("the replica is %v, %v", role, err)
	}
}
