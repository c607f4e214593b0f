package legal_test

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/legal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

var (
	plans    = flag.Int("plans", 1500, "random plans on the model; 1/10 as many on the scripts in another Lua, 1/40 on a real Redis")
	from     = flag.Uint64("from", 1, "the seed of the first plan")
	patience = flag.Duration("patience", time.Minute, "how long a plan may take")
	tell     = flag.Bool("tell", false, "show all that happens in a plan that breaks something")
)

func TestMain(m *testing.M) {
	const ofGoRedis = "github.com/redis/go-redis/v9/maintnotifications.(*CircuitBreakerManager).cleanupLoop"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(ofGoRedis))
}

// play plays a plan in a bubble of its own, and reports its first fault.
func play(t *testing.T, p legal.Plan, bank func() *legal.Backend, tell bool) (fault string, o legal.Outcome) {
	hangs := time.AfterFunc(*patience, func() { panic(fmt.Sprintf("it hangs: %v", p)) })
	defer hangs.Stop()
	synctest.Test(t, func(*testing.T) { o = p.Play(bank(), tell) })
	return firstOf(o), o
}

// firstOf is the first fault of a plan, if any.
func firstOf(o legal.Outcome) string {
	if len(o.Faults) == 0 {
		return ""
	}
	return o.Faults[0].String()
}

func thin(seed uint64) legal.Plan { return legal.Draw(seed).Thinned() }

// playAll plays the plans of count seeds, some at once, until one breaks something.
func playAll(t *testing.T, count int, draw func(seed uint64) legal.Plan, bank func() *legal.Backend) {
	begin := time.Now()
	faults := make([]string, count)
	n := proof.First(t, count, false, func(t *testing.T, n int) bool {
		if p := draw(*from + uint64(n)); !p.Thin || p.Suits() {
			faults[n], _ = play(t, p, bank, false)
		}
		return faults[n] != ""
	})
	if n == count {
		t.Logf("%d plans, no fault, %v", count, time.Since(begin).Round(time.Millisecond))
		return
	}
	t.Logf("red after %d plans, %v", n+1, time.Since(begin).Round(time.Millisecond))
	p := draw(*from + uint64(n))
	kind, _, _ := strings.Cut(faults[n], ":")
	short := p
	short.Steps = proof.Shortest(p.Steps, func(steps []legal.Step) bool {
		less := p
		less.Steps = steps
		fault, _ := play(t, less, bank, false)
		return strings.HasPrefix(fault, kind)
	})
	fault, o := play(t, short, bank, *tell)
	t.Errorf("seed %d: %s\nshrunk: %s\n%v", p.Seed, faults[n], fault, short)
	if *tell {
		t.Log(o.Story)
	}
}

func TestPlansOnMemory(t *testing.T) {
	count := *plans
	if testing.Short() {
		count /= 10
	}
	playAll(t, count, legal.Draw, legal.OnMemory)
}

func TestPlansOnScripts(t *testing.T) {
	count := *plans / 10
	if testing.Short() {
		count /= 10
	}
	playAll(t, count, thin, legal.OnScripts)
}

// A few plans in real time, many at once on one redis-server.
func TestPlansOnRedis(t *testing.T) {
	count := *plans / 40
	if testing.Short() {
		count /= 10
	}
	server := redistest.StartOpen(t)
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: server.Socket, MaxRetries: -1, PoolSize: 1000, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	room := make(chan struct{}, 40)
	var all sync.WaitGroup
	for i := range count {
		seed := *from + uint64(i)
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			p := legal.Draw(seed).InRealTime()
			if fault := firstOf(p.Play(legal.OnRedis(client, fmt.Sprintf("legal%d:", seed)), false)); fault != "" {
				t.Errorf("%s\n%v", fault, p)
			}
		})
	}
	all.Wait()
}

// The same seed is the same plan. What happens is the same too, but where the library leaves it to
// the processors: Close looks again each Budget, or is told, and calls of one instant have no
// order, nor have nodes.
func TestSameSeedSamePlan(t *testing.T) {
	const seeds = 30
	others := 0
	for seed := range uint64(seeds) {
		a, b := legal.Draw(seed), legal.Draw(seed)
		if a.AtOnce.Name != "" { // what comes back of places goes with calls of other goroutines
			continue
		}
		a.Nodes, b.Nodes = 0, 0 // each node has its own goroutines
		if a.String() != b.String() {
			t.Fatalf("seed %d is two plans", seed)
		}
		_, x := play(t, a, legal.OnMemory, true)
		_, y := play(t, b, legal.OnMemory, true)
		if x.Story != y.Story {
			others++
		}
	}
	if others > seeds/10 {
		t.Errorf("%d of %d plans had two histories", others, seeds)
	}
}
