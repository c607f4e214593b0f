package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/manynodes"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standing has standing shares.
var standing = tiered.Policy{
	Name: "api", Limit: tiered.PerSecond(100).WithBurst(200), Standing: 1.0 / 8, FailMode: tiered.FailClosed,
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

// use asks a process for tokens of users that nobody has asked for before, and returns how many its
// shares admitted.
func (m member) use(t *testing.T, round string) (shares int64) {
	t.Helper()
	before := m.Stats().Policies["api"].Standing.Spent
	for i := range 20 {
		m.api.Allow(ctx, fmt.Sprint(round, i))
	}
	return m.Stats().Policies["api"].Standing.Spent - before
}

// Standing shares are used within 70 s, and go on being used, whatever a process knows of the nodes
// at first, and whichever nodes come and go. Nothing of a node that left stays.
func TestStandingSharesOverSeveralNodes(t *testing.T) {
	const first = 70 * time.Second // a new table lends nothing for 65 s
	names := manynodes.Names(4)
	for _, c := range []struct {
		name  string
		ring  bool
		begin func(t *testing.T, n *manynodes.Nodes, all []member) // before the shares are looked at
	}{
		{name: "requests before the map of slots is there", begin: func(t *testing.T, _ *manynodes.Nodes, all []member) {
			for _, m := range all {
				m.use(t, "first")
			}
			time.Sleep(first)
		}},
		{name: "no request", begin: func(*testing.T, *manynodes.Nodes, []member) { time.Sleep(first) }},
		{name: "a Cluster that is not there yet", begin: func(t *testing.T, n *manynodes.Nodes, all []member) {
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
		{name: "a Ring without a shard that is up", ring: true, begin: func(t *testing.T, n *manynodes.Nodes, all []member) {
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
		{name: "a node leaves, and the policy comes back", begin: func(t *testing.T, n *manynodes.Nodes, all []member) {
			time.Sleep(first)
			n.Share(names[:3]...)
			for _, m := range all {
				ok(t, m.SetPolicies(nil))
				ok(t, m.SetPolicies([]tiered.Policy{standing}))
			}
			time.Sleep(30 * time.Second)
		}},
		{name: "the node of the table leaves, and another joins", begin: func(t *testing.T, n *manynodes.Nodes, _ []member) {
			time.Sleep(first)
			n.Share(names[1], names[2], "another")
			time.Sleep(10 * time.Second)
		}},
		{name: "the node that counted an outsider leaves", begin: func(t *testing.T, n *manynodes.Nodes, all []member) {
			outside := standing
			outside.Standing = 0
			other := join(t, n.Cluster(), outside)
			other.use(t, "outside")
			time.Sleep(first)
			if p := all[0].Stats().Policies["api"]; p.Standing.Outside != 1 {
				t.Errorf("%d processes are outside, want 1", p.Standing.Outside)
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_ = other.Close(ended)
			n.Share("another", "one more")
			time.Sleep(30 * time.Second)
		}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			n := manynodes.New(names...)
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

// While no shard of a Ring is up, and while the keys have come to a node that has not counted the
// processes yet, these divide the limit as before: each knows how many there were.
func TestSharesOfAnOutageWithoutACount(t *testing.T) {
	for name, fail := range map[string]func(n *manynodes.Nodes){
		"no node":      func(n *manynodes.Nodes) { n.Share() },
		"another node": func(n *manynodes.Nodes) { n.Fail(io.EOF); n.Share("another") },
	} {
		t.Run(name, func(t *testing.T) { outageWithoutACount(t, fail) })
	}
}

func outageWithoutACount(t *testing.T, fail func(n *manynodes.Nodes)) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 4
		policy := tiered.Policy{Name: "api", Limit: tiered.PerSecond(10).WithBurst(40), FailMode: tiered.FailLocal}
		n := manynodes.New(manynodes.Names(2)...)
		var all []member
		for range processes {
			all = append(all, join(t, n.Ring(), policy))
		}
		for range 10 {
			for _, m := range all {
				m.api.Allow(ctx, "somebody")
				m.api.Allow(ctx, "some other")
			}
			time.Sleep(time.Second)
		}
		fail(n)
		admitted, start := 0, time.Now()
		for time.Since(start) < 30*time.Second {
			for _, m := range all {
				if m.api.Allow(ctx, "user").Allowed {
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

// For a while after a process without standing shares has left, Redis keeps the whole limit of that
// process. Shares beside it would be more than the limit, so they are used again only after that: a
// surge of a full key admits one burst.
func TestSharesWaitForTheLimitOfWhoLeft(t *testing.T) {
	for wait := time.Second; wait < 30*time.Second; wait += 2 * time.Second {
		synctest.Test(t, func(t *testing.T) {
			store := remote.NewMemory()
			open := func(s float64) *tiered.Limiter {
				l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(80).WithBurst(400), Standing: s}, nil))
				return l
			}
			l := open(1.0 / 8)
			defer func() { _ = l.Close(ctx) }()
			time.Sleep(90 * time.Second)
			old := open(0)
			for range 10_000 {
				old.Allow(ctx, "k")
				time.Sleep(time.Millisecond)
			}
			ok(t, old.Close(ctx))
			time.Sleep(wait)
			admitted := 0
			for range 3000 { // far more than there is
				if l.Allow(ctx, "k").Allowed {
					admitted++
				}
				time.Sleep(time.Microsecond)
			}
			if admitted > 401 {
				t.Errorf("%v after the other left a surge admitted %d of 400", wait, admitted)
			}
		})
	}
}

// The Standing hook gets every change of a process' part, and of whether the shares of a policy are
// used.
func TestStandingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string
		s := &afflicted{distant: &distant{Memory: remote.NewMemory()}}
		var log logged
		g, err := tiered.NewGroup(s, &tiered.Options{
			Logger: log.logger(),
			Trace: &tiered.Trace{Standing: func(e tiered.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Policy != "" {
					lines = append(lines, fmt.Sprintf("%s %v %d", e.Policy, e.What == "shares used", e.Outside))
					return
				}
				lines = append(lines, fmt.Sprintf("%.2f of %d, quarantine %v", e.Fraction, e.Members, e.Quarantine))
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = g.Close(ctx) }()
		if _, err := g.NewLimiter(standingPolicy("api")); err != nil {
			t.Fatal(err)
		}
		after := func(what string, d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(lines, want) {
				t.Errorf("%s: %q, want %q", what, lines, want)
			}
			lines = nil
		}
		after("a new table", 10*time.Second, "0.00 of 1, quarantine true")
		after("it lends", settleShares, "api true 0", "1.00 of 1, quarantine false")
		other := run(t, s, "", standingPolicy("api"))
		after("another process", 20*time.Second, "0.50 of 2, quarantine false")
		other.end()
		after("it is gone", 20*time.Second, "1.00 of 1, quarantine false")
		off := standingPolicy("api")
		off.Standing = 0
		old := run(t, s, "", off)
		after("an old process", 10*time.Second, "api false 1")
		old.end()
		after("it is gone", 30*time.Second, "api false 0", "api true 0")
		s.cut(errors.New("gone"))
		after("an outage", 50*time.Second)
		after("the end of the right", 15*time.Second, "0.00 of 1, quarantine false")
		s.heal()
		after("after the outage", 10*time.Second, "1.00 of 1, quarantine false")
	})
}

// A process that joins others gets what the rounding of their parts left, and its part a moment
// later. That is not too many processes: the warning, which is told once, is kept for when there
// are.
func TestNewcomerIsNotTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		policy := standing // its shares of 200/8 tokens are for 25 processes
		warned := func(all []*program) (n int) {
			for _, p := range all {
				for line := range strings.Lines(p.log.String()) {
					if strings.Contains(line, "too many processes") {
						n++
					}
				}
			}
			return n
		}
		var all []*program
		add := func(n int) {
			for range n {
				all = append(all, run(t, store, "", policy))
			}
		}
		add(6)
		time.Sleep(80 * time.Second) // the shares of a new table begin after 65 s
		add(1)
		time.Sleep(30 * time.Second)
		if s := all[6].Stats().Standing; warned(all) != 0 || s.Members != 7 {
			t.Errorf("%d of %d processes say that there are too many", warned(all), s.Members)
		}
		add(19)
		time.Sleep(60 * time.Second)
		if n := warned(all); n != 26 {
			t.Errorf("%d of 26 processes say that there are too many, want all", n)
		}
	})
}

// A fleet that grows beyond what shares can serve has the whole limits in Redis, and one that
// shrinks to half of that has shares again. No key has more than its limit on the way. A process
// more for a moment, as in a rolling deploy, changes nothing.
func TestFleetThatOutgrowsItsShares(t *testing.T) {
	notUnderRace(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		policy := standing
		policy.Standing = 1. / 2                          // a hundred tokens
		policy.Limit = tiered.PerSecond(20).WithBurst(40) // nineteen processes
		store := remote.NewMemory()
		var all []member
		grow := func(n int) {
			for len(all) < n {
				all = append(all, join(t, store, policy))
			}
		}
		leave := func(n int) {
			for ; len(all) > n; all = all[1:] {
				ok(t, all[0].Close(ctx))
			}
		}
		// asks has each process asked for a token of one key 3 times a second, and returns what was
		// admitted of it.
		asks := func(d time.Duration) (admitted float64) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				for _, m := range all {
					if m.api.Allow(ctx, "busy").Allowed {
						admitted++
					}
					time.Sleep(time.Second / 3 / time.Duration(len(all)))
				}
			}
			return admitted
		}
		const limit, burst = 20, 40
		total := 0.0
		begun := time.Now()
		during := func(what string, d time.Duration, least float64) {
			t.Helper()
			got := asks(d)
			total += got
			if part := got / (limit * d.Seconds()); part < least || total > limit*time.Since(begun).Seconds()+burst {
				t.Errorf("%s: %.3f of the limit, want at least %v; %v in %v", what, part, least, total, time.Since(begun))
			}
		}
		uses := func(what string, want bool) {
			t.Helper()
			for i, m := range all {
				if got := m.use(t, fmt.Sprint(what, i)) > 0; got != want {
					t.Errorf("%s: process %d uses its shares: %v", what, i, got)
				}
			}
		}
		grow(19)
		asks(2 * time.Minute)
		begun, total = time.Now(), -burst // as much may lie in leases and shares
		uses("19", true)
		grow(21)
		asks(10 * time.Second)
		leave(19)
		asks(30 * time.Second)
		uses("a rolling deploy", true)
		grow(30)
		during("30 at first", 3*time.Minute, 0.5)
		during("30", time.Minute, 0.97)
		uses("30", false)
		leave(12)
		during("12 of 19", time.Minute, 0.97)
		uses("12", false)
		leave(9)
		during("9 at first", 2*time.Minute, 0.5)
		uses("9", true)
		during("9", time.Minute, 0.97)
	})
}
