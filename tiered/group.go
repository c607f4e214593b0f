package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// NewGroup returns a Group over a store. It does not wait for Redis. The error names each field
// that breaks its rule.
func NewGroup(s remote.Store, o *Options) (*Group, error) {
	filled, err := o.fill()
	if err := errors.Join(remote.Check(s), err); err != nil {
		return nil, err
	}
	g := &Group{store: s, options: filled, callsEnded: make(chan struct{})}
	g.trace = newTracer(filled.Trace)
	g.journal = report.NewJournal(filled.Logger)
	g.limiters.init()
	g.core = engine.NewGroup(engine.Options{
		Store: s, Budget: filled.Budget, MaxKeys: filled.MaxKeys, Uniform: filled.Random, Known: filled.Processes > 0,
		Journal: g.journal, Hooks: g.hooks(),
		Initial: func(number int) *local.Policy { return g.limiter(number).core.Settings().Initial },
	})
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.core.Dispatch = dispatch.New(ctx, g.dispatchOptions())
	g.tasks.Go(func() { g.core.Run(ctx) })
	g.core.Dispatch.Start(ctx)
	hooksCtx, stopHooks := context.WithCancel(context.Background())
	g.stopHooks = stopHooks
	g.callbacks.Go(func() {
		g.trace.calls.Run(hooksCtx, func(what string) {
			g.journal.Tally("hook", 1, slog.LevelError, "a trace hook panicked", "panic", what)
		})
	})
	if g.journal != nil {
		g.callbacks.Go(func() { g.journal.Run(ctx) })
	}
	if r, ok := s.(interface{ SkipsHooks() bool }); ok && r.SkipsHooks() {
		g.journal.Line(slog.LevelWarn, "hooks of the redis client, such as traces, do not see the limiter's calls: "+
			"set ContextTimeoutEnabled in its options, and no ReadTimeout or WriteTimeout below -1")
	}
	return g, nil
}

// dispatchOptions are those of the Group's dispatcher.
func (g *Group) dispatchOptions() dispatch.Options {
	o := dispatch.Options{
		Store: g.store, Base: g.core.Base, Timeout: g.options.Timeout, ClientTimeout: g.options.clientTimeout(),
		MaxInFlight: g.options.MaxInFlight, Processes: g.options.Processes, Uniform: g.options.Random,
		Lease: func() string { return *g.core.Lease.Load() }, Announced: g.announced,
		CheckClock: g.core.WatchClock, Observe: g.observe, Poll: g.core.Poll, Polled: g.polled,
	}
	o.Carry = remote.KeepsTimeout(g.store)
	if g.core.Simulated != nil {
		o.Yield = func(node int) { // calls of one instant leave together, in any order of arrival
			g.core.Simulated.Yield(0)
			if node > 0 {
				g.core.Simulated.Yield(uint64(node))
			}
		}
	}
	return o
}

// Ping asks every known node of the store, and returns nil if all of them record this process and
// allow what the policies need. The error names the others, each with its cause: a mistyped
// address, a refused password, a missing right, a node of a Cluster behind a client for one server
// ([remote.ErrClusterNode]). A node whose breaker is open is asked only when a probe is due; in
// between its cause is that of the last probe.
//
// Call it at the start, and httplimit.Ready for readiness, because an outage of Redis must not take
// all processes out of service. It blocks for at most twice as long as a call may go on (see
// Options.Timeout), and 0.1 s to find the cause: 0.5 s with the default Timeout. After several
// calls without an answer, and for a Cluster that is not known yet, that is 2.1 s. It never blocks
// longer than ctx.
func (g *Group) Ping(ctx context.Context) error {
	if g.isZero() {
		return errZeroGroup
	}
	ctx = orBackground(ctx)
	err := engine.ErrClosed
	if !g.core.Closed.Load() {
		err = g.core.Dispatch.Ping(ctx, g.limiters.algorithms(), func(node remote.Node, err error) error {
			return withRule(g.causeOf(node, err))
		})
	}
	if err == nil || errors.Is(err, engine.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Close returns all leases to Redis, takes this process out of the count of processes there, and
// ends all goroutines, but does not close the store. Call it after the last request, because later
// decisions go by fallbacks that are full again, so more than the limit may be admitted. It waits
// until the hooks of Options.Trace and the Logger's handler have returned, so neither may call it.
//
// If ctx ends first, the error wraps ctx.Err(), and what was not returned is burnt when its lease
// ends. If Redis does not answer, Close waits for that end, a second with the default Lease, and
// returns nil. Calls to Redis may begin for three times Options.Timeout after ctx has ended, and go
// on for as long as that says. Close may be called again, to wait for their end; it returns an error
// if there are tokens that nobody can return any more. What fail modes admitted is charged only if
// Redis answers before Close is over.
func (g *Group) Close(ctx context.Context) error {
	if g.isZero() {
		return errZeroGroup
	}
	ctx = orBackground(ctx)
	g.closeGuests(ctx)
	g.core.Shares.Close(g.core.Now())
	err := g.core.Empty(ctx, g.callsEnded)
	g.core.Dispatch.Stop()
	g.stop()
	if err == nil {
		g.core.Dispatch.Leave(ctx)
	}
	g.stopHooks()
	g.callsEnd.Do(func() {
		go func() {
			g.tasks.Wait()
			g.core.Dispatch.Wait()
			close(g.callsEnded)
		}()
	})
	ended := make(chan struct{})
	go func() {
		<-g.callsEnded
		g.callbacks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, engine.ErrTooLate):
		return fmt.Errorf("tiered: the Group is closed%s: %w", g.unreturned(), err)
	case err != nil:
		return fmt.Errorf("tiered: the Group is not closed yet%s: %w", g.unreturned(), err)
	}
	return nil
}

// unreturned names what the Group still holds, if that is anything: tokens by policy.
func (g *Group) unreturned() string {
	var all []string
	for name, p := range g.Stats().Policies {
		if p.Leases.Held > 0 {
			all = append(all, fmt.Sprintf("%d tokens of policy %q", p.Leases.Held, name))
		}
	}
	if all == nil {
		return ""
	}
	slices.Sort(all)
	return ", and " + strings.Join(all, ", ") + " were not given back"
}

// New returns a Limiter with a Group of its own.
func New(s remote.Store, p Policy, o *Options) (*Limiter, error) {
	if err := p.Validate(); err != nil {
		_, optionsErr := o.fill()
		return nil, errors.Join(err, optionsErr, remote.Check(s))
	}
	g, err := NewGroup(s, o)
	if err != nil {
		return nil, err
	}
	l, err := g.NewLimiter(p)
	if err != nil {
		return nil, err
	}
	l.ownsGroup = true
	return l, nil
}

// Close closes the Group if [New] made it. Otherwise it closes nothing and returns an error: close
// the Group, which other Limiters use too.
func (l *Limiter) Close(ctx context.Context) error {
	if l.isZero() {
		return errZeroLimiter
	}
	if !l.ownsGroup {
		return errInGroup
	}
	return l.group.Close(ctx)
}

// Group returns the Limiter's Group, and nil for a nil or zero Limiter.
func (l *Limiter) Group() *Group {
	if l.isZero() {
		return nil
	}
	return l.group
}

// NewLimiter adds a policy, whose name must be new. A process announces up to 512 of them. With
// more it counts as one of every policy, and nobody uses standing shares of its policies: see the
// log.
func (g *Group) NewLimiter(p Policy) (*Limiter, error) {
	if g.isZero() {
		return nil, errZeroGroup
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, back, err := g.add(p)
	if back {
		g.change(map[*Limiter]Policy{l: p.clone()})
	}
	// In a simulation, the processors would decide how many refreshes several policies of one
	// instant make.
	if err == nil && (l.place() == 0 || g.core.Simulated == nil) {
		g.core.Dispatch.Refresh()
	}
	return l, err
}

// Host gives package atonce the connections, the breakers, the clocks and the log of the Group,
// unless that is closed. Only this module can call it: the type of its argument is internal.
func (g *Group) Host(guest engine.Guest[AtOnceStats]) (*engine.Group, error) {
	if g.isZero() {
		return nil, errZeroGroup
	}
	g.guestsMu.Lock()
	defer g.guestsMu.Unlock()
	if g.core.Closed.Load() {
		return nil, engine.ErrClosed
	}
	g.guests = append(g.guests, guest)
	return g.core, nil
}

// closeGuests tells all guests that the Group closes, once.
func (g *Group) closeGuests(ctx context.Context) {
	g.guestsMu.Lock()
	guests := g.guests
	if g.core.Closed.Swap(true) {
		guests = nil
	}
	g.guestsMu.Unlock()
	for _, one := range guests {
		one.Closing(ctx)
	}
}
