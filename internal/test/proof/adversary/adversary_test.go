package adversary_test

import (
	"flag"
	"fmt"
	"math"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

var (
	schedules = flag.Int("schedules", 100_000, "random schedules on Memory; 1/50 as many on Redis, 1/200 on miniredis")
	from      = flag.Uint64("from", 1, "the seed of the first random schedule")
	scope     = flag.String("scope", "", "only scopes whose name matches this regular expression")
	soak      = flag.Duration("soak", 0, "how long TestSoak plays")
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/redis/go-redis/v9/maintnotifications.(*CircuitBreakerManager).cleanupLoop"))
}

// steps is how long a random schedule is at most. The shortest ones that show a known mistake have
// 2 to 18 steps; what is longer finds them sooner, for chance needs detours.
const steps = 120

// scopes are those of an algorithm that are asked for.
func scopes(t testing.TB, a lua.Algorithm) []*adversary.Scope {
	pattern, err := regexp.Compile(*scope)
	if err != nil {
		t.Fatal(err)
	}
	var chosen []*adversary.Scope
	for _, s := range adversary.Scopes(a) {
		if pattern.MatchString(s.Name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		t.Skipf("no scope is called %s", *scope)
	}
	return chosen
}

// play plays the schedules of count seeds, each worker in a store of its own or one that they
// share.
func play(t *testing.T, a lua.Algorithm, first uint64, count int, store func() *adversary.Store) {
	all := scopes(t, a)
	r := adversary.Drive(first, count,
		func(seed uint64) adversary.Schedule { return adversary.Random(all, seed, steps) },
		func(worker int) adversary.Place {
			return adversary.Place{Store: store(), Bucket: fmt.Sprintf("{adversary/%d}%d", worker, a)}
		})
	for _, broken := range r.Broken {
		t.Errorf("after %d schedules: %s", r.Played, broken)
	}
	if !t.Failed() {
		t.Logf("%s: %d schedules, %d calls, violations: 0, tightest: %.3f tokens below the bound",
			a.String(), r.Played, r.Count, math.Abs(r.Slack))
	}
}

// inMemory is a place of its own.
func inMemory() adversary.Place { return adversary.Place{Store: adversary.OnMemory(), Bucket: "b"} }

// eachAlgorithm plays count schedules of each.
func eachAlgorithm(t *testing.T, count int, play func(t *testing.T, a lua.Algorithm, count int)) {
	for _, a := range adversary.Algorithms() {
		t.Run(a.String(), func(t *testing.T) { play(t, a, count) })
	}
}

// inBubble plays on Memory, whose clock stands still in a bubble: a bucket's time to live is
// counted by it, and is compared with the world's.
func inBubble(t *testing.T, a lua.Algorithm, first uint64, count int) {
	synctest.Test(t, func(t *testing.T) { play(t, a, first, count, adversary.OnMemory) })
}

func TestSchedulesOnMemory(t *testing.T) {
	count := *schedules
	if testing.Short() {
		count /= 25
	}
	eachAlgorithm(t, count, func(t *testing.T, a lua.Algorithm, count int) { inBubble(t, a, *from, count) })
}

func TestSchedulesOnRedis(t *testing.T) {
	server := redistest.StartOpen(t)
	count := *schedules / 50
	if testing.Short() {
		count /= 10
	}
	eachAlgorithm(t, count, func(t *testing.T, a lua.Algorithm, count int) {
		play(t, a, *from, count, func() *adversary.Store {
			c := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket})
			t.Cleanup(func() { _ = c.Close() })
			return adversary.OnRedis(c)
		})
	})
}

func TestSchedulesOnMiniredis(t *testing.T) {
	count := *schedules / 200
	if testing.Short() {
		count /= 10
	}
	eachAlgorithm(t, count, func(t *testing.T, a lua.Algorithm, count int) {
		play(t, a, *from, count, func() *adversary.Store {
			m := miniredis.RunT(t)
			c := redis.NewClient(&redis.Options{Addr: m.Addr()})
			t.Cleanup(func() { _ = c.Close() })
			return adversary.OnRedis(c)
		})
	})
}

// TestSoak plays for as long as it is told, and nothing without.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("no -soak")
	}
	const batch = 50_000
	first := *from
	if first == 1 {
		first = uint64(time.Now().UnixNano()) // other schedules each time
	}
	begin := time.Now()
	played := 0
	for ; time.Since(begin) < *soak && !t.Failed(); played += batch {
		all := adversary.Algorithms()
		inBubble(t, all[played/batch%len(all)], first+uint64(played), batch)
	}
	t.Logf("%d schedules from seed %d on, %v", played, first, time.Since(begin).Round(time.Second))
}

// FuzzSchedule lets the fuzzer choose: the first byte the scope, each further one a step.
func FuzzSchedule(f *testing.F) {
	var all []*adversary.Scope
	for _, a := range adversary.Algorithms() {
		all = append(all, adversary.Scopes(a)...)
	}
	for i := range all {
		f.Add(append([]byte{byte(i)}, "a lease is tokens with a deadline"...))
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		if len(choices) == 0 || len(choices) > 4*steps {
			return
		}
		s := adversary.Schedule{Scope: all[int(choices[0])%len(all)], Seed: 1}
		for _, c := range choices[1:] {
			// Spread over all actions, however many there are.
			s.Choices = append(s.Choices, uint16(int(c)*len(s.Scope.Actions)/256))
		}
		if fault := s.Play(inMemory(), false).Fault; fault != "" {
			t.Fatalf("%s\n%s", fault, adversary.Describe(s, inMemory()))
		}
	})
}
