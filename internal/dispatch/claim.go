package dispatch

import (
	"context"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// MaxClaims is the most claims in one round trip. They take the node 8 ms, and others have their
// turn in between.
const MaxClaims = 1024

// Claim sends claims of places to the node, in one round trip, unless its breaker is open. It calls
// done once: with a result for each claim, or with the error of all of them, after Timeout at the
// latest. It returns when the store has returned, which may be later than that.
func (n *Node) Claim(c *lua.Claims, done func(results []remote.ClaimResult, err error)) {
	d := n.dispatcher
	sent := d.now()
	attempt, ok := n.guard.Begin(func() {
		n.pace.noAnswer(d.now())
		done(nil, ErrNoAnswer)
	})
	if !ok {
		done(nil, n.WhyOpen())
		return
	}
	defer attempt.Abort()
	n.Calls.Add(1)
	results := make([]remote.ClaimResult, len(c.Each))
	d.options.Store.Claim(context.Background(), n.pace.patience(), c, results)
	now := d.now()
	d.options.CheckClock(now)
	answered := slices.IndexFunc(results, func(r remote.ClaimResult) bool { return r.Err == nil })
	var shown error // of the node
	switch {
	case answered >= 0:
		n.Trips.Observe(now - sent)
		n.heard(now - sent)
		n.stepped(n.clock.learn(sent, now, results[answered].Reply.Now))
		if !slices.ContainsFunc(c.Each, func(one lua.Claim) bool { return one.Seq > 0 }) {
			shown = context.Canceled // a replica answers a look too
		}
	default:
		shown = results[0].Err
		n.Failed[failover.Classify(shown)].Add(1)
	}
	if !attempt.End(shown) {
		n.answeredLate(len(results), shown)
		return
	}
	done(results, nil)
}

// Find returns the node of a bucket, and asks Redis if it is not known. It blocks until ctx ends at
// most.
func (d *Dispatcher) Find(ctx context.Context, bucket string) (*Node, error) {
	id := d.options.Store.Node(bucket)
	if id == "" {
		var err error
		if id, err = d.options.Store.Locate(ctx, bucket); err != nil {
			return nil, err
		}
	}
	return d.Node(id), nil
}
