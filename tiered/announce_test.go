package tiered_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// program is a process of some service, with what it logs and reports.
type program struct {
	*tiered.Group
	t     *testing.T
	log   logged
	heard words
}

// run starts a process of a service with some policies.
func run(t *testing.T, s remote.Store, service string, policies ...tiered.Policy) *program {
	t.Helper()
	p := &program{t: t}
	g := must(tiered.NewGroup(s, &tiered.Options{
		Service: service, Logger: p.log.logger(), Random: func() float64 { return 0.5 },
		Trace: &tiered.Trace{Fault: func(e tiered.Event) { p.heard.add("%s %s %s", e.What, e.Node, e.Policy) }},
	}))
	p.Group = g
	for _, policy := range policies {
		if _, err := g.NewLimiter(policy); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(p.end)
	return p
}

// end closes the process. It may be called twice.
func (p *program) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		p.t.Errorf("Close: %v", err)
	}
}

// lines counts the lines of the log with a text. All that was reported by then has been heard.
func (p *program) lines(text string) int {
	synctest.Wait()
	return strings.Count(strings.Join(p.log.lines(), "\n"), text)
}

// is compares what the process says of the policy api.
func (p *program) is(processes, otherServices, otherLimits int64) {
	p.t.Helper()
	s := p.Stats().Policies["api"]
	if got, want := [3]int64{s.Processes.Sharing, s.Processes.OtherServices, s.Processes.OtherLimits},
		[3]int64{processes, otherServices, otherLimits}; got != want {
		p.t.Errorf("%v processes, others and others here, want %v", got, want)
	}
}

const (
	warnsOfOthers = "level=WARN msg=\"another service has a policy of this name with other limits"
	tellsOfOthers = "level=INFO msg=\"processes of this service have other limits"
)

// A service with 1000 per minute once fell from 997 tokens to 1, because another one had 3 per
// minute under the same policy name, and nothing said so.
func TestTwoServicesWithOnePolicyName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		shop := run(t, memory, "shop", tiered.Policy{Name: "api", Limit: tiered.PerMinute(1000)})
		time.Sleep(5 * time.Second)
		shop.is(1, 0, 0)
		billing := run(t, memory, "billing", tiered.Policy{Name: "api", Limit: tiered.PerMinute(3)})
		time.Sleep(time.Minute)
		for _, p := range []*program{shop, billing} {
			p.is(2, 1, 0)
			if n := p.lines(warnsOfOthers); n != 1 || p.lines(tellsOfOthers) > 0 {
				t.Errorf("warned %d times:\n%s", n, strings.Join(p.log.lines(), "\n"))
			}
			if !slices.Equal(p.heard, words{"other limits memory api"}) {
				t.Errorf("events %q", p.heard)
			}
		}
		const about = ` node=memory policy=api service=shop limits=1000/min processes=1`
		if shop.lines(about) != 1 {
			t.Errorf("no%s in\n%s", about, strings.Join(shop.log.lines(), "\n"))
		}
		billing.end()
		time.Sleep(5 * time.Second)
		if s := shop.Stats().Policies["api"]; s.Processes.OtherServices != 0 {
			t.Errorf("%+v after the other service has left", s)
		}
		run(t, memory, "billing", tiered.Policy{Name: "api", Limit: tiered.PerMinute(3)})
		time.Sleep(5 * time.Second)
		if n := shop.lines(warnsOfOthers); n != 1 {
			t.Errorf("warned %d times", n)
		}
	})
}

// Services that share a limit on purpose have the same one, however it is written.
func TestTwoServicesWithOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		shop := run(t, memory, "shop", tiered.Policy{
			Name: "api", Limit: tiered.PerMinute(1000).WithBurst(1000).And(tiered.PerHour(5000)), FailMode: tiered.FailOpen,
		}, tiered.Policy{Name: "else", Limit: tiered.PerSecond(7)})
		billing := run(t, memory, "billing", tiered.Policy{
			Name: "api", Limit: tiered.PerHour(5000).And(tiered.PerMinute(1000)), Lease: tiered.Lease{Size: 5},
		}, tiered.Policy{Name: "other", Limit: tiered.PerSecond(8)})
		time.Sleep(time.Minute)
		for _, p := range []*program{shop, billing} {
			p.is(2, 0, 0)
			if p.lines("WARN")+p.lines("INFO")+len(p.heard) > 0 {
				t.Errorf("%s\n%v", strings.Join(p.log.lines(), "\n"), p.heard)
			}
		}
	})
}

// A process that announces nothing, such as one of another version, counts for every policy, and so
// does one with more policies than an announcement has room for.
func TestProcessThatAnnouncesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		p := run(t, memory, "shop", tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
		many := make([]tiered.Policy, lua.MostPolicies+1)
		for i := range many {
			many[i] = tiered.Policy{Name: fmt.Sprint("policy", i), Limit: tiered.PerSecond(1)}
		}
		full := run(t, memory, "full", many[:lua.MostPolicies]...)
		time.Sleep(4 * time.Second)
		p.is(1, 0, 0)
		visitor := remote.Process{ID: "visitor", TTL: time.Hour}
		if _, err := memory.Presence(ctx, 0, memory.Node(""), visitor); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		p.is(2, 0, 0)
		if n := full.Stats().Policies["policy7"].Processes.Sharing; n != 2 {
			t.Errorf("%d processes, want 2", n)
		}
		if _, err := full.NewLimiter(many[lua.MostPolicies]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		p.is(3, 0, 0)
		if n := full.Stats().Policies["policy7"].Processes.Sharing; n != 3 { // all
			t.Errorf("%d processes, want 3", n)
		}
	})
}

// tardy is a store whose first report of presence is executed late, though nobody waits any more: a
// request that is on the wire cannot be taken back.
type tardy struct {
	*remote.Memory
	late atomic.Int64 // ns; of the next report
}

func (s *tardy) Presence(
	_ context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	time.Sleep(time.Duration(s.late.Swap(0)))
	return s.Memory.Presence(context.Background(), timeout, n, p)
}

// A process that is closed is gone at once: before its first decision, and while it reports that it
// is there. One that dies is gone after PresenceTTL.
func TestClosedProcessIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tardy{Memory: remote.NewMemory()}
		store.late.Store(int64(30 * ms))
		p := run(t, store, "shop", tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
		time.Sleep(10 * ms)
		p.end()
		time.Sleep(time.Second)
		if n := present(t, store.Memory); n != 0 {
			t.Errorf("%d present after a Close that overtook a report", n)
		}
	})
	for _, after := range []time.Duration{0, ms, 15 * ms, 25 * ms, 45 * ms, dispatch.PresencePeriod + 10*ms} {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(40 * ms)
			p := run(t, store, "shop", tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
			time.Sleep(after)
			p.end()
			time.Sleep(100 * ms)
			if n := present(t, store.Memory); n != 0 {
				t.Errorf("%d present after a Close %v after the start", n, after)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		p := run(t, memory, "shop", tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)})
		dead := startProcess(t, memory) // its policy is api too
		time.Sleep(10 * time.Second)
		p.is(2, 0, 0)
		dead.wire.loseRequests.Store(true)
		time.Sleep(dispatch.PresenceTTL)
		p.is(2, 0, 0)
		announced, _ := tiered.Announced(p.Group)
		me := remote.Process{ID: "me", TTL: dispatch.PresenceTTL, Announced: announced}
		c, err := memory.Presence(ctx, 0, memory.Node(""), me)
		if err != nil || len(c.Policies) != 1 || c.Policies[0].Processes != 2 { // with me
			t.Errorf("%+v, %v", c, err)
		}
		me.TTL = 0
		if _, err := memory.Presence(ctx, 0, memory.Node(""), me); err != nil {
			t.Fatal(err)
		}
		time.Sleep(dispatch.PresenceTTL + dispatch.PresencePeriod)
		p.is(1, 0, 0) // N has fallen 23 s after the death
	})
}

func TestServiceName(t *testing.T) {
	o, err := (&tiered.Options{}).Fill()
	if err != nil || o.Service != filepath.Base(os.Args[0]) || o.Service == "" {
		t.Errorf("%q, %v", o.Service, err)
	}
	for _, name := range []string{"shop", "Büro 7", strings.Repeat("x", 64)} {
		if o, err := (&tiered.Options{Service: name}).Fill(); err != nil || o.Service != name {
			t.Errorf("%q, %v", o.Service, err)
		}
	}
	for _, name := range []string{"a\n", "\x00", "\xff", strings.Repeat("x", 65), "a\u200b"} {
		_, err := (&tiered.Options{Service: name}).Fill()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Options.Service is %.80q: must be", name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestLimitsText(t *testing.T) {
	perKey := func(string) tiered.Limit { return tiered.Limit{} }
	for want, p := range map[string]tiered.Policy{
		"100/s":                                 {Limit: tiered.PerSecond(100).WithBurst(100)},
		"100/s burst 200":                       {Limit: tiered.PerSecond(100).WithBurst(200)},
		"10/s, 100/min":                         {Limit: tiered.PerMinute(100).And(tiered.PerSecond(10))},
		"unlimited or by key":                   {Limit: tiered.Unlimited(), PerKey: perKey},
		"blocked":                               {Limit: tiered.Blocked()},
		"100/h by sliding log":                  {Limit: tiered.PerHour(100), Algorithm: tiered.SlidingLog},
		"9/day by fixed window":                 {Limit: tiered.PerDay(9), Algorithm: tiered.FixedWindow},
		"9/day by fixed window of the calendar": {Limit: tiered.PerDay(9), Algorithm: tiered.FixedWindow, Calendar: true},
		"100/month in Etc/GMT+1 by fixed window, \"pro\" 9/month in Etc/GMT+1, zone data 75a76387 of Etc/GMT+1": {
			Limit: tiered.PerMonth(100).In("Etc/GMT+1"), Algorithm: tiered.FixedWindow,
			Plans: map[string]tiered.Limit{"pro": tiered.PerMonth(9).In("Etc/GMT+1")},
		},
		"100/min by sliding window": {
			Limit: tiered.Limit{Tokens: 100, Per: time.Minute, Precision: time.Second}, Algorithm: tiered.SlidingWindow,
		},
		"100/min precision 2s by sliding window": {
			Limit: tiered.Limit{Tokens: 100, Per: time.Minute, Precision: 2 * time.Second}, Algorithm: tiered.SlidingWindow,
		},
	} {
		p.Name = "api"
		ok(t, p.Validate())
		if got := p.LimitsText(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// process is one of a fleet.
type process struct {
	*tiered.Limiter
	wire *distant
}

func startProcess(t *testing.T, m *remote.Memory) process {
	t.Helper()
	p := process{wire: &distant{Memory: m}}
	l := must(tiered.New(p.wire, tiered.Policy{Name: "api", Limit: tiered.PerSecond(100)}, nil))
	p.Limiter = l
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return p
}

// present counts the processes that a store knows, with a visitor that leaves again.
func present(t *testing.T, m *remote.Memory) int64 {
	t.Helper()
	c := must(m.Presence(ctx, 0, m.Node(""), remote.Process{ID: "visitor", TTL: dispatch.PresenceTTL}))
	if _, err := m.Presence(ctx, 0, m.Node(""), remote.Process{ID: "visitor", TTL: 0}); err != nil {
		t.Fatal(err)
	}
	return c.Processes - 1
}

// replaced is a store whose presence set another one takes over, as after a failover that lost it.
type replaced struct {
	*remote.Memory
	by *atomic.Pointer[remote.Memory]
}

func (r replaced) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	return r.by.Load().Presence(ctx, timeout, n, p)
}

// A node that has lost its processes hears of all of them within a period. Until then nobody
// divides by fewer.
func TestFleetStaysWhenPresenceIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by atomic.Pointer[remote.Memory]
		memory := remote.NewMemory()
		by.Store(memory)
		var fleet []process
		for range 8 {
			l := limiter(t, replaced{memory, &by}, tiered.Policy{Limit: tiered.PerSecond(100)}, nil)
			fleet = append(fleet, process{Limiter: l})
			time.Sleep(370 * ms)
		}
		time.Sleep(6 * time.Second)
		for range 5 {
			by.Store(remote.NewMemory())
			for range 150 {
				time.Sleep(100 * ms)
				for _, p := range fleet {
					if n := p.Group().Stats().Policies["api"].Processes.Sharing; n != 8 {
						t.Fatalf("%d processes after the loss, want 8", n)
					}
				}
			}
		}
	})
}

// An idle process notices by its presence alone that Redis is back, within a second, and makes no
// call for it. A Redis that stood still for a moment is back at its first answer, which is late.
func TestPresenceIsTheProbeOfAnIdleProcess(t *testing.T) {
	for _, outage := range []time.Duration{0, 5 * time.Second, 500 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := &afflicted{distant: newDistant(ms)}
			l := limiter(t, watch.Damaged{Store: store}, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
			time.Sleep(time.Second)
			store.cut(io.EOF)
			for l.Group().Stats().Nodes["memory"].Outages.Breaker == "closed" {
				l.Allow(ctx, "k")
				time.Sleep(ms)
			}
			time.Sleep(outage)
			store.heal()
			calls := store.calls.Load()
			time.Sleep(time.Second)
			if s := l.Group().Stats().Nodes["memory"]; s.Outages.Breaker != "closed" {
				t.Errorf("a second after Redis came back: %+v", s)
			}
			if n := store.calls.Load() - calls; n > 1 { // of the key that had failed
				t.Errorf("%d calls of an idle process", n)
			}
		})
	}
}

// A Redis that does not answer is asked by few: calls until the breaker opens, and then a probe at
// a time.
func TestCallsToADeadRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counted{distant: newDistant(ms)}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		time.Sleep(time.Second)
		store.loseRequests.Store(true)
		before := store.runs.Load() + store.reports.Load()
		for i := range 20_000 { // 2000 a second, each of another key
			go l.Allow(ctx, fmt.Sprint(i))
			time.Sleep(500 * time.Microsecond)
		}
		n := store.runs.Load() + store.reports.Load() - before
		t.Logf("%d round trips in 10 s", n)
		if n > 30 { // 15 when each of the calls that failed together counted
			t.Errorf("%d round trips in 10 s without Redis", n)
		}
		store.loseRequests.Store(false)
	})
}

// counted is a distant store that counts the reports of presence.
type counted struct {
	*distant
	reports atomic.Int64
}

func (s *counted) Presence(ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process) (remote.Census, error) {
	s.reports.Add(1)
	return s.distant.Presence(ctx, timeout, n, p)
}
