package tiered_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/nodes"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standing has standing shares.
var standing = tiered.Policy{
	Name: "api", Limit: tiered.PerSecond(100).WithBurst(200), Standing: tiered.StandingOn, FailMode: tiered.FailClosed,
}

// member is a process of a fleet.
type member struct {
	*tiered.Group
	api *tiered.Limiter
}

// join starts a process with a policy.
func join(t *testing.T, s remote.Store, p tiered.Policy) member {
	t.Helper()
	l := limiter(t, s, p, nil)
	return member{l.Group(), l}
}

// use asks a process for tokens of users that nobody has asked for before, and returns how many its shares admitted.
func (m member) use(t *testing.T, round string) (shares int64) {
	t.Helper()
	before := m.Stats().Policies["api"].Standing.Spent
	for i := range 20 {
		m.api.Allow(t.Context(), fmt.Sprint(round, i))
	}
	return m.Stats().Policies["api"].Standing.Spent - before
}

// Standing shares are used within 70 s, and go on being used, whatever a process knows of the nodes at first, and
// whichever nodes come and go. Nothing of a node that left stays.
func TestStandingSharesOverSeveralNodes(t *testing.T) {
	const first = 70 * time.Second // a new table lends nothing for 65 s
	names := nodes.Names(4)
	for _, c := range []struct {
		name  string
		ring  bool
		begin func(t *testing.T, n *nodes.Nodes, all []member) // before the shares are looked at
	}{
		{name: "requests before the map of slots is there", begin: func(t *testing.T, _ *nodes.Nodes, all []member) {
			for _, m := range all {
				m.use(t, "first")
			}
			time.Sleep(first)
		}},
		{name: "no request", begin: func(*testing.T, *nodes.Nodes, []member) { time.Sleep(first) }},
		{name: "a Cluster that is not there yet", begin: func(t *testing.T, n *nodes.Nodes, all []member) {
			n.Share()
			for range 50 {
				for _, m := range all {
					m.use(t, "vain")
				}
				time.Sleep(100 * time.Millisecond)
			}
			n.Share(names...)
			time.Sleep(first)
		}},
		{name: "a Ring without a shard that is up", ring: true, begin: func(t *testing.T, n *nodes.Nodes, all []member) {
			n.Share()
			for range 50 {
				for _, m := range all {
					m.use(t, "vain")
				}
				time.Sleep(100 * time.Millisecond)
			}
			n.Share(names...)
			time.Sleep(first)
		}},
		{name: "a node leaves, and the policy comes back", begin: func(t *testing.T, n *nodes.Nodes, all []member) {
			time.Sleep(first)
			n.Share(names[:3]...)
			for _, m := range all {
				ok(t, m.SetPolicies(nil))
				ok(t, m.SetPolicies([]tiered.Policy{standing}))
			}
			time.Sleep(10 * time.Second)
		}},
		{name: "the node of the table leaves, and another joins", begin: func(t *testing.T, n *nodes.Nodes, _ []member) {
			time.Sleep(first)
			n.Share(names[1], names[2], "another")
			time.Sleep(10 * time.Second)
		}},
		{name: "the node that counted an outsider leaves", begin: func(t *testing.T, n *nodes.Nodes, all []member) {
			outside := standing
			outside.Standing = tiered.StandingOff
			other := join(t, n.Cluster(), outside)
			other.use(t, "outside")
			time.Sleep(first)
			if p := all[0].Stats().Policies["api"]; p.Standing.Outside != 1 {
				t.Errorf("%d processes are outside, want 1", p.Standing.Outside)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			_ = other.Close(ended)
			n.Share("another", "one more")
			time.Sleep(30 * time.Second)
		}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			n := nodes.New(names...)
			var all []member
			for range 3 {
				store := n.Cluster()
				if c.ring {
					store = n.Ring()
				}
				all = append(all, join(t, store, standing))
			}
			c.begin(t, n, all)
			for i, m := range all {
				if got := m.use(t, fmt.Sprint("users of ", i)); got < 20 {
					t.Errorf("process %d: %d of 20 requests by its shares: %+v", i, got, m.Stats().Standing)
				}
				for name, s := range m.Stats().Nodes {
					left := name != "" && !slices.Contains(n.Ring().Nodes(), remote.Node(name))
					if left || s.Outages.Breaker != "closed" {
						t.Errorf("process %d: node %q is in the figures, breaker %s", i, name, s.Outages.Breaker)
					}
				}
			}
		})
	}
}

// While no shard of a Ring is up, and while the keys have come to a node that has not counted the processes yet, these
// divide the limit as before: each knows how many there were.
func TestSharesOfAnOutageWithoutACount(t *testing.T) {
	for name, fail := range map[string]func(n *nodes.Nodes){
		"no node":      func(n *nodes.Nodes) { n.Share() },
		"another node": func(n *nodes.Nodes) { n.Fail(io.EOF); n.Share("another") },
	} {
		t.Run(name, func(t *testing.T) { outageWithoutACount(t, fail) })
	}
}

func outageWithoutACount(t *testing.T, fail func(n *nodes.Nodes)) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 4
		policy := tiered.Policy{Name: "api", Limit: tiered.PerSecond(10).WithBurst(40), FailMode: tiered.FailLocal}
		n := nodes.New(nodes.Names(2)...)
		var all []member
		for range processes {
			all = append(all, join(t, n.Ring(), policy))
		}
		for range 10 {
			for _, m := range all {
				m.api.Allow(t.Context(), "somebody")
				m.api.Allow(t.Context(), "some other")
			}
			time.Sleep(time.Second)
		}
		fail(n)
		admitted, start := 0, time.Now()
		for time.Since(start) < 30*time.Second {
			for _, m := range all {
				if m.api.Allow(t.Context(), "user").Allowed {
					admitted++
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		if most := 40 + 30*10 + processes; admitted > most {
			t.Errorf("%d admitted, and the limit is %d", admitted, most)
		}
	})
}
