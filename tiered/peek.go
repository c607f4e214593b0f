package tiered

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// peek is a [dispatch.Job] that reads a bucket and takes nothing.
type peek struct {
	group *Group
	call  lua.Call
	until time.Duration      // the caller stops waiting then
	reply chan remote.Result // capacity 1
}

func (p *peek) Compose(_ *dispatch.Node, now time.Duration, _ string) (lua.Call, bool) {
	if now >= p.until {
		return lua.Call{}, false
	}
	p.call.Seq = p.group.seq.Add(1)
	return p.call, true
}

func (p *peek) Abandon(n *dispatch.Node, _ time.Duration) { p.reply <- remote.Result{Err: n.WhyOpen()} }

func (p *peek) Finish(_ *dispatch.Node, _ time.Duration, _ *lua.Call, _ time.Duration, r remote.Result) {
	p.reply <- r
}

var errClosed = errors.New("tiered: the Group is closed")

// peekAll asks Redis for the state of each bucket of a key, in one pipeline per node. It blocks for at most
// Options.Budget.
func (l *Limiter) peekAll(ctx context.Context, key string, policies []*local.Policy) []remote.Result {
	var calls []lua.Call
	for i, s := range l.bucketLimiters() {
		c := call(l.group.store.Name(s.kind, s.name, key), policies[i])
		c.Phase = s.phase(key)
		calls = append(calls, c)
	}
	return l.group.peekCalls(ctx, calls)
}

// peekCalls makes calls that take nothing, in one pipeline per node. It blocks for as long as patience says.
func (g *Group) peekCalls(ctx context.Context, calls []lua.Call) []remote.Result {
	results, looks := make([]remote.Result, len(calls)), make([]*peek, len(calls))
	var jobs []dispatch.Routed
	budget := patience(ctx, g.options.Budget)
	for i, c := range calls {
		j := &peek{group: g, call: c, until: g.now() + budget, reply: make(chan remote.Result, 1)}
		switch n := g.dispatch.Node(g.store.Node(j.call.Bucket)); {
		case g.closed.Load():
			results[i].Err = errClosed
		case n.State() != failover.Closed: // a peek cannot be a probe: it writes nothing
			results[i].Err = n.WhyOpen()
		default:
			looks[i] = j
			jobs = append(jobs, dispatch.Routed{Pending: dispatch.Pending{Job: j, Bucket: j.call.Bucket}, Node: n})
		}
	}
	dispatch.Push(jobs)
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for i, j := range looks {
		if j == nil {
			continue
		}
		select {
		case results[i] = <-j.reply:
		case <-ctx.Done():
			results[i].Err = ctx.Err()
		}
	}
	return results
}
