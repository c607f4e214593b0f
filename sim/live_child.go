package sim

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// liveVariable is the environment variable of a child.
const liveVariable = "TIERED_SIM_CHILD"

// hooked says that this program calls Child.
var hooked atomic.Bool

// Child must be the first call of main, or of TestMain, in a program that uses the engine [Live], whose processes are this
// program, started again. In one of them Child does that process' work and exits. In any other it returns at once.
func Child() {
	hooked.Store(true)
	if os.Getenv(liveVariable) == "" {
		return
	}
	redis.SetLogger(silence{})
	out := newSender(os.Stdout)
	os.Stdout = os.Stderr // whatever else is printed is no news
	c := &child{out: out}
	if err := c.serve(os.Stdin); err != nil {
		_ = out.send(&news{Wrong: err.Error()})
	}
	_ = out.flush()
	os.Exit(0)
}

// child is a process of its own, with a Group.
type child struct {
	out      *sender
	addr     atomic.Pointer[string]
	net      *faultnet.Net
	store    *overheard
	group    *tiered.Group
	limiters []*tiered.Limiter
	requests sync.WaitGroup
	lag      lag
}

// serve follows orders until the one to leave, or until nobody gives any.
func (c *child) serve(in io.Reader) error {
	if err := c.out.send(&news{Ready: true}); err != nil {
		return nil // nobody listens
	}
	orders := gob.NewDecoder(bufio.NewReaderSize(in, 1<<16))
	for {
		var o order
		switch err := orders.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("order: %w", err)
		}
		if o.Job != nil {
			if err := c.begin(o.Job); err != nil {
				return err
			}
		}
		if c.group == nil {
			return errors.New("the first order was no job")
		}
		if o.Addr != "" {
			c.addr.Store(&o.Addr)
		}
		if o.Faults != nil {
			if err := c.net.Set(*o.Faults); err != nil {
				return err
			}
		}
		if q := o.Ask; q != nil {
			c.requests.Go(func() { c.decide(q) })
		}
		if o.Stats > 0 {
			c.tell(o.Stats)
		}
		if o.Leave {
			c.leave()
			return nil
		}
	}
}

// begin makes the Group.
func (c *child) begin(j *job) error {
	go c.lag.measure(context.Background())
	c.addr.Store(&j.Addr)
	c.net = faultnet.New(j.Seed)
	if err := c.net.Set(j.Faults); err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", *c.addr.Load())
	}
	o := clientOptions(c.net.Dialer(dial))
	o.Password = j.Password
	client := redis.NewClient(o)
	client.AddHook(texts{c.out})
	c.store = &overheard{Redis: remote.NewRedis(client, nil), out: c.out}
	var err error
	c.group, err = tiered.NewGroup(c.store, &tiered.Options{
		Budget: j.Budget, Timeout: j.Timeout, Processes: j.Processes, MaxKeys: j.MaxKeys, MaxInFlight: j.MaxInFlight, Logger: slog.New(slog.DiscardHandler),
		Trace: &tiered.Trace{State: func(e tiered.StateEvent) { _ = c.out.send(&news{At: time.Now().UnixNano(), Breaker: e.To}) }},
	})
	if err != nil {
		return err
	}
	for _, p := range j.Policies {
		l, err := c.group.Limiter(p)
		if err != nil {
			return err
		}
		c.limiters = append(c.limiters, l)
	}
	return nil
}

// lag is by how much the machine holds a process up: nobody can do anything about it, and what is measured in real time has to
// allow for it.
type lag struct{ most atomic.Int64 }

// often is how often it is looked at. Who is held up for less is not noticed; nor is anybody by being looked at.
const often = 5 * time.Millisecond

// measure measures until ctx ends: it sleeps, and looks how long that took.
func (l *lag) measure(ctx context.Context) {
	for ctx.Err() == nil {
		before := time.Now()
		time.Sleep(often)
		l.note(time.Since(before) - often)
	}
}

// note notes that somebody was held up so long.
func (l *lag) note(d time.Duration) {
	for most := l.most.Load(); int64(d) > most && !l.most.CompareAndSwap(most, int64(d)); most = l.most.Load() {
	}
}

// longest is the most so far.
func (l *lag) longest() time.Duration { return time.Duration(l.most.Load()) }

// decide answers a question, with the time that it took here.
func (c *child) decide(q *question) {
	ctx := context.Background()
	if q.Leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.Leave)
		defer cancel()
	}
	came := time.Now()
	d := c.limiters[q.Limit].AllowN(ctx, q.Key, q.Cost)
	_ = c.out.send(&news{Answer: &answer{
		ID: q.ID, Came: came.UnixNano(), Took: time.Since(came), Allowed: d.Allowed, Reason: d.Reason, Tier: d.Tier, RetryAfter: d.RetryAfter,
	}})
}

func (c *child) tell(number uint64) {
	_ = c.out.send(&news{Figures: &figures{Number: number, Stats: c.group.Stats(), Busy: c.store.calls.Load() > 0, Lag: c.lag.longest()}})
}

// leave gives back what it can, as a deploy would have it.
func (c *child) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	_ = c.group.Close(ctx) // without Redis it fails, as it should
	c.requests.Wait()
	c.tell(0)
}

// overheard is a store that tells what was called.
type overheard struct {
	*remote.Redis
	out   *sender
	calls atomic.Int64 // round trips under way
}

// Run executes calls; see remote.Store.
func (s *overheard) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.calls.Add(1)
	defer s.calls.Add(-1)
	_ = s.out.send(&news{At: time.Now().UnixNano(), Calls: len(calls)})
	s.Redis.Run(ctx, timeout, calls, results)
	for i := range calls {
		if short(&calls[i], &results[i]) {
			_ = s.out.send(&news{Happened: "short_grant"})
		}
		if err := unasked(&results[i]); err != nil {
			_ = s.out.send(&news{Wrong: err.Error()})
		}
	}
}

// texts is a hook of go-redis that tells when a script is sent as a text.
type texts struct{ out *sender }

func (h texts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h texts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.look(cmd)
		return next(ctx, cmd)
	}
}

func (h texts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.look(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h texts) look(cmd redis.Cmder) {
	if cmd.Name() == "eval" {
		_ = h.out.send(&news{Happened: "script_sent"})
	}
}
