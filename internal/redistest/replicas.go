package redistest

import (
	"context"
	"strings"
	"testing"
)

// StartReplicatedCluster runs a Cluster of n primaries like [StartCluster], and a replica of each: Replicas[i]
// follows Servers[i]. It returns when every replica follows and every node knows it.
func StartReplicatedCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	ctx := context.Background()
	c := StartCluster(t, n)
	for i := range n {
		s := Start(t, clusterArgs...)
		replica := s.Client()
		c.must(replica.Do(ctx, "cluster", "meet", "127.0.0.1", c.Servers[i].Port).Err())
		waitFor(t, "a replica does not know its primary", func() bool {
			return replica.Do(ctx, "cluster", "replicate", c.ids[i]).Err() == nil
		})
		c.Replicas = append(c.Replicas, s)
	}
	for _, s := range c.Replicas {
		replica := s.Client()
		waitFor(t, "a replica does not follow its primary", func() bool {
			info, err := replica.Info(ctx, "replication").Result()
			return err == nil && strings.Contains(info, "master_link_status:up")
		})
	}
	waitFor(t, "not all nodes know all replicas", func() bool {
		for _, client := range c.clients {
			ranges, err := slotRanges(ctx, client)
			if err != nil || len(ranges) != n {
				return false
			}
			for _, r := range ranges {
				if len(r.Nodes) != 2 {
					return false
				}
			}
		}
		return true
	})
	return c
}

// PrimaryOf asks a node of the Cluster for the owner of a slot, and returns its address.
func (c *Cluster) PrimaryOf(asked, slot int) string {
	ranges, err := slotRanges(context.Background(), c.clients[asked])
	if err != nil {
		return ""
	}
	for _, r := range ranges {
		if slot >= r.Start && slot <= r.End && len(r.Nodes) > 0 {
			return r.Nodes[0].Addr
		}
	}
	return ""
}
