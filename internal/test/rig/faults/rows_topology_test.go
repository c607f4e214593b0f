package faults_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// topologyRows are failovers and moving slots.
var topologyRows = []row{
	{
		name: "Sentinel: primary killed", quick: true, breakers: may, passes: true,
		start: withSentinel,
		begin: func(s *faultRun) { s.sentinel.Primary.Kill() },
		end:   promoted,
		more:  lastWrites,
	},
	{
		// Both are primaries for a moment, and what the old one grants then is forgotten.
		name: "Sentinel: planned failover", breakers: may, passes: true,
		start: withSentinel,
		begin: func(s *faultRun) {
			sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.sentinel.Sentinel.Addr})
			defer sentinel.Close()
			if err := sentinel.Failover(context.Background(), s.sentinel.Name).Err(); err != nil {
				s.Fatal(err)
			}
		},
		end:  promoted,
		more: func(*faultRun, tiered.FailMode) float64 { return 2*perSecond + burst },
	},
	{
		name: "Cluster: primary killed", passes: true, gone: true,
		start: withCluster, subjects: inCluster(opens, may),
		begin: func(s *faultRun) { s.cluster.Servers[0].Kill() },
		end:   func(s *faultRun) { s.succeeded(1) },
		more:  lastWrites,
	},
	{
		// The replica waits until it has everything. Nobody forgets anything.
		name: "Cluster: planned failover", passes: true,
		start: withCluster, subjects: inCluster(may, may),
		begin: func(s *faultRun) {
			replica := s.cluster.Replicas[0].Client()
			if err := replica.ClusterFailover(context.Background()).Err(); err != nil {
				s.Fatal(err)
			}
		},
		end: func(s *faultRun) { s.succeeded(1) },
	},
	{
		name: "Cluster: slots migrated", length: time.Second,
		start: withCluster, subjects: inCluster(stays, stays),
		begin: migrate,
	},
}

// lastWrites: a failover loses what was not replicated yet, up to a bucket.
func lastWrites(*faultRun, tiered.FailMode) float64 { return burst }

func withSentinel(s *faultRun) {
	s.sentinel = redistest.StartSentinel(s)
	s.server, s.admin = s.sentinel.Primary, s.sentinel.Primary.Client()
	s.client = &fleet.Client{Addrs: []string{s.sentinel.Sentinel.Addr}, Primary: s.sentinel.Name}
	s.watch = s.watching(&redis.UniversalOptions{Addrs: s.client.Addrs, MasterName: s.client.Primary})
}

// promoted returns when the replica has become the primary.
func promoted(s *faultRun) {
	replica := s.sentinel.Replica.Client()
	redistest.WaitFor(s, "the replica is not promoted", func() bool {
		info, err := replica.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "role:master")
	})
}

func withCluster(s *faultRun) {
	s.cluster = redistest.StartReplicatedCluster(s, 3)
	s.server, s.admin = s.cluster.Servers[1], s.cluster.Servers[1].Client()
	s.client = &fleet.Client{Addrs: s.cluster.Addrs()}
	s.watch = s.watching(&redis.UniversalOptions{Addrs: s.client.Addrs})
}

// inCluster is a load for each fail mode on the node to which the fault happens, and one elsewhere.
func inCluster(there, elsewhere opening) func(*faultRun) []subject {
	return func(s *faultRun) (all []subject) {
		for node, breakers := range []opening{there, elsewhere} {
			for _, j := range s.standard() {
				j.breakers, j.node = breakers, s.cluster.Servers[node].Addr
				if node > 0 {
					j.Name += " elsewhere"
					j.Name = strings.ReplaceAll(j.Name, " ", "-")
				}
				j.Offer /= 2 // there are twice as many
				j.Limit = tiered.PerSecond(perSecond / 2).WithBurst(burst)
				j.Key = s.keyOn(j.Name, node)
				all = append(all, j)
			}
		}
		return all
	}
}

// keyOn finds a key whose bucket a node of the cluster has.
func (s *faultRun) keyOn(policy string, node int) string {
	names := remote.NewRedis(s.admin, nil)
	for i := range 1000 {
		key := strconv.Itoa(i)
		if s.cluster.Owner(s.slotOf(names.Key(policy, key))) == node {
			return key
		}
	}
	s.Fatal("no key of a thousand is on the node")
	return ""
}

func (s *faultRun) slotOf(name string) int {
	slot, err := s.admin.ClusterKeySlot(context.Background(), name).Result()
	if err != nil {
		s.Fatal(err)
	}
	return int(slot)
}

// succeeded returns when a node of the cluster knows that the replica of the first one has its
// slots, and serves.
func (s *faultRun) succeeded(asked int) {
	redistest.WaitFor(s, "the replica does not take the slots over", func() bool {
		info, err := s.cluster.Client(asked).ClusterInfo(context.Background()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok") &&
			s.cluster.PrimaryOf(asked, 0) == s.cluster.Replicas[0].Addr
	})
}

// migrate moves the slots of the first node's buckets to the second one, under load.
func migrate(s *faultRun) {
	ctx := context.Background()
	names := remote.NewRedis(s.admin, nil)
	to := s.cluster.Servers[1]
	for _, j := range s.judged {
		if j.node != s.cluster.Servers[0].Addr {
			continue
		}
		name := names.Key(j.Name, j.Key)
		slot := s.slotOf(name)
		s.cluster.Migrate(slot, 0, 1)
		from := s.cluster.Client(0)
		for {
			keys, err := from.ClusterGetKeysInSlot(ctx, slot, 100).Result()
			if err != nil {
				s.Fatal(err)
			}
			if len(keys) == 0 {
				break
			}
			for _, key := range keys {
				if err := from.Migrate(ctx, "127.0.0.1", fmt.Sprint(to.Port), key, 0, time.Second).Err(); err != nil {
					s.Fatal(err)
				}
			}
		}
		s.cluster.Assign(slot, 1)
	}
}
