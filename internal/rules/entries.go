package rules

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Entries are the places that a request needs while it runs. It takes them before its tokens,
// because what is given back at once costs nobody anything, and tokens may.
type Entries struct {
	wanted  []entry
	places  []*atonce.Place
	request any      // what canonical.Request says
	outer   *Entries // of another reading of the same request, or nil
}

// entriesKey is the context key of the *Entries of a request that is read in several ways.
type entriesKey struct{}

type entry struct {
	limiter   *atonce.Limiter
	key, plan string
}

// retryFull is the time after which a request that found all places taken should come again.
const retryFull = time.Second

// NeedPlaces reports whether requests need places by one of the rules.
func NeedPlaces[R any](all []Rule[R]) bool {
	return slices.ContainsFunc(all, func(r Rule[R]) bool { return r.AtOnce != nil })
}

// NewEntries returns room for the places of a request, and nil, which is fine, if it needs none.
func NewEntries(needed bool) *Entries {
	if !needed {
		return nil
	}
	return new(Entries)
}

// Take takes all places, or none. The Decision says why there are none.
func (e *Entries) Take(ctx context.Context) (d tiered.Decision) {
	if d.Allowed = true; e == nil {
		return d
	}
	if e.request = ctx.Value(canonical.Request{}); e.request != nil {
		if outer, ok := ctx.Value(entriesKey{}).(*Entries); ok && outer.request == e.request {
			e.outer = outer
		}
	}
	for i, w := range e.wanted {
		if e.outer.has(w) || has(e.wanted[:i], w) { // a request is one, by however many rules
			continue
		}
		place, err := w.limiter.For(w.key).WithPlan(w.plan).Acquire(ctx)
		if err != nil {
			e.Release()
			d.Allowed, d.Policy, d.Key, d.Cost = false, w.limiter.Policy().Name, w.key, 1
			switch {
			case errors.Is(err, atonce.ErrFull):
				d.Reason, d.RetryAfter = tiered.Limited, retryFull
			case errors.Is(err, atonce.ErrInvalid):
				d.Reason = tiered.InvalidKey
			case ctx.Err() != nil:
				d.Reason, d.Expired = tiered.Canceled, errors.Is(err, context.DeadlineExceeded)
			default:
				d.Reason = tiered.Unavailable
			}
			return d
		}
		e.places = append(e.places, place)
	}
	return d
}

// has reports whether a request has a place of the key.
func (e *Entries) has(w entry) bool {
	for ; e != nil; e = e.outer {
		if has(e.wanted, w) {
			return true
		}
	}
	return false
}

func has(all []entry, w entry) bool {
	return slices.ContainsFunc(all, func(o entry) bool { return o.limiter == w.limiter && o.key == w.key })
}

// Within returns ctx for the next reading of the request, which takes no second place of a key.
func (e *Entries) Within(ctx context.Context) context.Context {
	if e == nil || e.request == nil {
		return ctx
	}
	return context.WithValue(ctx, entriesKey{}, e)
}

// Release gives all places back.
func (e *Entries) Release() {
	if e == nil {
		return
	}
	for _, p := range e.places {
		p.Release()
	}
	e.places = nil
}
