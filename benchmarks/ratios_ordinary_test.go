package benchmarks

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// ordinary is a service as most are: a dozen replicas, users with plans that come with the request,
// most of them with 100 per minute, and a limit by address, of which a request needs both.
type ordinary struct {
	name     string
	server   *Server
	replicas [][]*tiered.Limiter // by user and by address, or by user alone
	commands int64               // at the begin of a turn

	asked, inMemory atomic.Int64
}

const (
	ordinaryReplicas = 12
	ordinaryUsers    = 20_000
	ordinaryRate     = 600             // requests per second of all users together
	ordinaryFill     = 2 * time.Minute // burst ÷ rate of most users
)

func newOrdinary(t *testing.T, name string, shared float64) *ordinary {
	t.Helper()
	o := &ordinary{name: name, server: StartServer(t)}
	for range ordinaryReplicas {
		user := o.server.limiter(t, tiered.Policy{
			Name: "user", Standing: shared,
			Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000), "team": tiered.PerMinute(5000)},
		}, tiered.PerMinute(100).WithBurst(200), patient)
		address := fatal.Get(user.Group().NewLimiter(tiered.Policy{
			Name: "address", Limit: tiered.PerMinute(600), Standing: shared,
		}))(t)
		o.replicas = append(o.replicas, []*tiered.Limiter{user, address})
	}
	return o
}

// newWindows is a service whose users have windows of 1000 per minute.
func newWindows(t *testing.T, name string, shared float64) *ordinary {
	t.Helper()
	o := &ordinary{name: name, server: StartServer(t)}
	for range ordinaryReplicas {
		o.replicas = append(o.replicas, []*tiered.Limiter{o.server.limiter(t, tiered.Policy{
			Name: "user", Algorithm: tiered.FixedWindow, Standing: shared,
		}, tiered.PerMinute(1000), patient)})
	}
	return o
}

// ask makes a request of a user.
func (o *ordinary) ask(who uint64, replica int) {
	name, plan, r := strconv.FormatUint(who, 10), "", o.replicas[replica]
	if len(r) == 1 {
		d := r[0].Allow(context.Background(), name)
		if o.asked.Add(1); d.Tier == tiered.Local {
			o.inMemory.Add(1)
		}
		return
	}
	switch {
	case who%10 == 3:
		plan = "pro"
	case who%100 == 7:
		plan = "team"
	}
	d := tiered.All(r[0].For(name).WithPlan(plan), r[1].For(name)).Allow(context.Background())
	if o.asked.Add(1); d.Tier == tiered.Local {
		o.inMemory.Add(1)
	}
}

// TestRatiosOrdinary has the lines of an ordinary service, in the first two minutes of its shares
// and then. All fleets carry the same load at the same time: only what they count is compared.
// redis_rate, asked about user and address one after the other, makes two calls per request.
func TestRatiosOrdinary(t *testing.T) {
	forRatios(t)
	without, eighth, half := newOrdinary(t, "no shares", 0), newOrdinary(t, "an eighth", 1./8), newOrdinary(t, "a half", 1./2)
	windows, shared := newWindows(t, "windows, no shares", 0), newWindows(t, "windows, a half", 1./2)
	all := []*ordinary{without, eighth, half, windows, shared}
	time.Sleep(quarantine)
	turn := func(seed uint64, length time.Duration) (inMemory, calling map[*ordinary]float64) {
		random := rand.New(rand.NewPCG(seed, 3))
		zipf := rand.NewZipf(random, 1.1, 1, ordinaryUsers-1)
		for _, o := range all {
			o.commands = o.server.commands(t)
			o.asked.Store(0)
			o.inMemory.Store(0)
		}
		var done sync.WaitGroup
		at := 0.0
		for start := time.Now(); at < length.Seconds(); at += random.ExpFloat64() / ordinaryRate {
			time.Sleep(time.Duration(at*1e9) - time.Since(start))
			who, replica := zipf.Uint64(), random.IntN(ordinaryReplicas)
			for _, o := range all {
				done.Go(func() { o.ask(who, replica) })
			}
		}
		done.Wait()
		inMemory, calling = map[*ordinary]float64{}, map[*ordinary]float64{}
		for _, o := range all {
			inMemory[o] = float64(o.inMemory.Load()) / float64(o.asked.Load())
			calling[o] = float64(o.server.commands(t)-o.commands) / float64(o.asked.Load())
		}
		return inMemory, calling
	}
	_, first := turn(1, ordinaryFill)
	inMemory, calling := turn(2, 30*time.Second)
	tell(t, "plans, 12 replicas, no shares: decided in memory", inMemory[without])
	tell(t, "plans, 12 replicas, no shares: Redis calls per request of two keys", calling[without])
	some(t, "plans, 12 replicas, shares of a half, the first two minutes: Redis calls per request of two keys", first[half], 0.5)
	atLeast(t, "plans, 12 replicas, shares of an eighth, filled: decided in memory", inMemory[eighth], 0.68)
	some(t, "plans, 12 replicas, shares of an eighth, filled: Redis calls per request of two keys", calling[eighth], 0.45)
	atLeast(t, "plans, 12 replicas, shares of a half, filled: decided in memory", inMemory[half], 0.8)
	some(t, "plans, 12 replicas, shares of a half, filled: Redis calls per request of two keys", calling[half], 0.22)
	tell(t, "fixed windows of 1000 per minute, 12 replicas, no shares: Redis calls per request", calling[windows])
	some(t, "fixed windows of 1000 per minute, 12 replicas, shares of a half: Redis calls per request", calling[shared], 0.3)
}
