package tiered

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Host gives a package of this module, such as atonce, the connections, the breakers, the clocks
// and the log of the Group. It is not for others: what it returns is internal. closing is called
// once, by the first Close of the Group, before anything else ends. It must return when ctx has
// ended. The Group must not be closed.
func (g *Group) Host(closing func(ctx context.Context)) (*engine.Group, error) {
	if g.isZero() {
		return nil, errZeroGroup
	}
	g.guestsMu.Lock()
	defer g.guestsMu.Unlock()
	if g.core.Closed.Load() {
		return nil, engine.ErrClosed
	}
	g.guests = append(g.guests, closing)
	return g.core, nil
}

// closeGuests tells all guests that the Group closes.
func (g *Group) closeGuests(ctx context.Context) {
	g.guestsMu.Lock()
	g.core.Closed.Store(true)
	guests := g.guests
	g.guests = nil
	g.guestsMu.Unlock()
	for _, closing := range guests {
		closing(ctx)
	}
}
