package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// startup is the time within which the processes start, one after the other.
const startup = time.Second

// fleet is all processes and their Redis.
type fleet struct {
	redis     *miniredis.Miniredis
	processes []*process
}

func newFleet(n int) *fleet {
	m := miniredis.NewMiniRedis() // never started: it has no socket, only what Dial makes
	m.ClockTTL(true)              // keys end by the bubble's clock
	return &fleet{redis: m, processes: make([]*process, n)}
}

// each calls f for every process that has started.
func (f *fleet) each(do func(*process)) {
	for _, p := range f.processes {
		if p != nil {
			do(p)
		}
	}
}

// swallow cuts all processes off at once.
func (f *fleet) swallow(h hole) { f.each(func(p *process) { p.wire.swallow(h) }) }

// heal ends that.
func (f *fleet) heal() { f.each(func(p *process) { p.wire.heal() }) }

// close ends all processes and then Redis, so that nothing is left in the bubble.
func (f *fleet) close() error {
	var all []error
	f.each(func(p *process) { all = append(all, p.close()) })
	f.redis.Close()
	return errors.Join(all...)
}

// process is what a process of a service has: a wire, a client, a Group of its own and nothing in common with the others.
type process struct {
	number    int
	wire      *wire
	client    *redis.Client
	group     *tiered.Group
	hot, cold *tiered.Limiter
}

// connections is more than a process ever has under way: 64 calls and its presence. go-redis' own number depends on the
// processors, and waiting for a free connection uses timers that it keeps for all bubbles.
const connections = 100

// start starts a process.
func (f *fleet) start(number int, s *Scenario, mode tiered.FailMode, base time.Time) error {
	name := fmt.Sprintf("process %d", number)
	p := &process{number: number}
	p.wire = newWire(func() (net.Conn, error) { return f.redis.Dial() }, newDice(s.Seed, name+", network", base))
	// As remote.Open sets a client up, but for the Dialer, which no URL can name.
	p.client = redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:6379", // never dialled, and no name: looking one up leaves the bubble
		Dialer:                   p.wire.dial,
		MaxRetries:               -1,
		DialTimeout:              200 * time.Millisecond,
		DialerRetries:            1,
		ReadTimeout:              200 * time.Millisecond,
		WriteTimeout:             200 * time.Millisecond,
		PoolTimeout:              25 * time.Millisecond,
		PoolSize:                 connections,
		PipelinePoolSize:         -1,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	options := s.Options
	options.Random = newDice(s.Seed, name+", limiter", base).uniform
	hot, cold := s.Hot.Policy, s.Cold.Policy
	hot.FailMode, cold.FailMode = mode, mode
	var err error
	if p.group, err = tiered.NewGroup(remote.NewRedis(p.client, nil), &options); err != nil {
		return errors.Join(err, p.client.Close())
	}
	f.processes[number] = p // from here on close closes it
	var coldErr error
	p.hot, err = p.group.Limiter(hot)
	p.cold, coldErr = p.group.Limiter(cold)
	return errors.Join(err, coldErr)
}

func (p *process) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := p.group.Close(ctx)
	return errors.Join(err, p.client.Close())
}

// node is the Redis of p as its Stats have it: there is one.
func (p *process) node() tiered.NodeStats {
	for _, n := range p.group.Stats().Nodes {
		return n
	}
	return tiered.NodeStats{}
}
