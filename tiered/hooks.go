package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// hooks are what the engine tells the Group.
func (g *Group) hooks() engine.Hooks {
	h := engine.Hooks{
		Decision: func(t *engine.Told) {
			var d Decision
			tell(&d, t)
			g.trace.decision(d)
		},
		Waited: func(e engine.WaitEnd) {
			g.trace.call(g.trace.hooks.Wait, Event{
				What: "wait", Policy: e.Limiter.Name, Key: e.Key, Asked: e.Cost, Time: e.Time, Err: errorOf(e.Err), Waiting: e.Waiting,
			})
		},
		StateLost:  func(b *engine.Bucket, n *dispatch.Node) { healthOf(n).stateLost(b) },
		Standstill: func(by time.Duration) { g.trace.fault(Event{What: "standstill", Time: by}) },
	}
	if g.trace.hooks.Lease != nil {
		h.Accepted = func(b *engine.Bucket, n *dispatch.Node, c *lua.Call, r lua.Reply, trip time.Duration) {
			e := Event{
				What: "lease",
				Node: string(n.ID()), Policy: b.Limiter().Name, Key: b.Key(),
				Direct: c.Lease == "", Asked: c.Want, Granted: r.Grant, Held: c.Hold,
				Returned: c.Ret, Settled: c.Debt, Forgiven: r.Forgiven, Time: trip,
			}
			if r.Flags&lua.Unapplied == 0 {
				e.Returned += c.Refund
			}
			if len(c.Also) > 0 {
				e.LimitNumber = uint8(r.Which)
			}
			g.trace.call(g.trace.hooks.Lease, e)
		}
	}
	if g.trace.hooks.Error != nil {
		h.Failed = func(b *engine.Bucket, n *dispatch.Node, c *lua.Call, err error, class string) {
			g.trace.call(g.trace.hooks.Error, Event{
				What: "error", Node: string(n.ID()), Policy: b.Limiter().Name, Key: b.Key(), Err: err, Class: class, Asked: c.Want,
			})
		}
	}
	return h
}
