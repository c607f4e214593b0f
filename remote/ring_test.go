package remote_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestRing(t *testing.T) {
	servers := redistest.StartShards(t, 2)
	open := func() *redis.Ring {
		client := redis.NewRing(redistest.RingOptions(servers, redis.RingOptions{}))
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	client := open()
	s, other := remote.NewRedis(client, nil), remote.NewRedis(open(), nil)
	all := keys(40)
	nodes := map[remote.Node]int{}
	for _, key := range all {
		name := s.Key("test", key)
		nodes[s.Node(name)]++ // before any call
		if s.Node(name) != other.Node(name) {
			t.Errorf("%q is on %s and %s", key, s.Node(name), other.Node(name))
		}
	}
	takeAll(t, s, all)
	for i, server := range servers {
		stored, err := server.Client().DBSize(t.Context()).Result()
		if err != nil || stored == 0 || int(stored) != nodes[remote.Node(server.Addr)] {
			t.Errorf("server %d has %d buckets, expected %v, %v", i, stored, nodes, err)
		}
		for j, s := range []*remote.Redis{s, other} {
			me := remote.Process{ID: fmt.Sprint(j), TTL: time.Minute}
			census, err := s.Presence(t.Context(), patience, remote.Node(server.Addr), me)
			if err != nil || census.Processes != int64(j+1) {
				t.Errorf("server %d, process %d: %+v, %v", i, j, census, err)
			}
		}
	}
	known := s.Nodes()
	slices.Sort(known)
	if want := slices.Sorted(maps.Keys(nodes)); !slices.Equal(known, want) {
		t.Errorf("%v are known, want %v", known, want)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if r := run(t, s, takeOne(s, "x")); r.Err == nil || s.Node(s.Key("test", "x")) != "" || len(s.Nodes()) != 0 {
		t.Errorf("a closed Ring: %+v on %q", r, s.Node(s.Key("test", "x")))
	}
}
