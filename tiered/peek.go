package tiered

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// peek is a job that reads a bucket and takes nothing.
type peek struct {
	call  lua.Call
	until time.Duration      // nobody waits after that
	reply chan remote.Result // capacity 1
}

func (p *peek) begin(n *node, now time.Duration, _ string) (lua.Call, bool) {
	if now >= p.until {
		return lua.Call{}, false
	}
	p.call.Seq = n.group.seq.Add(1)
	return p.call, true
}

func (p *peek) drop(*node, time.Duration) { p.reply <- remote.Result{Err: errOpen} }

func (p *peek) end(_ *node, _ time.Duration, _ *lua.Call, _ time.Duration, r remote.Result) {
	p.reply <- r
}

var (
	errClosed = errors.New("tiered: the Group is closed")
	errOpen   = errors.New("tiered: the breaker is open")
)

// look asks Redis for the state of each bucket of a key, in one pipeline per node. It blocks for at most
// Options.Budget.
func (l *Limiter) look(ctx context.Context, key string, policies []*local.Policy) []remote.Result {
	g, parts := l.group, l.parts()
	results, looks := make([]remote.Result, len(parts)), make([]*peek, len(parts))
	var jobs []addressed
	for i, s := range parts {
		j := &peek{
			call: call(g.store.Name(s.kind, s.name, key), policies[i]), until: g.now() + g.options.Budget,
			reply: make(chan remote.Result, 1),
		}
		j.call.Phase = s.phase(key)
		switch n := g.node(g.store.Node(j.call.Bucket)); {
		case g.closed.Load():
			results[i].Err = errClosed
		case n.guard.State() != failover.Closed: // a peek cannot be a probe: it writes nothing
			results[i].Err = errOpen
		default:
			looks[i] = j
			jobs = append(jobs, addressed{due{j, j.call.Bucket}, n})
		}
	}
	push(jobs)
	ctx, cancel := context.WithTimeout(ctx, g.options.Budget)
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
