package tiered

import (
	"fmt"
	"log/slog"
	"slices"
	"weak"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func (ls *limiters) init() {
	ls.byName = make(map[string]*Limiter)
	ls.byID, ls.gone = make(map[int]weak.Pointer[Limiter]), make(map[string][]weak.Pointer[Limiter])
}

// left returns the Limiters of removed policies of a name that may still be used, and forgets the
// others. mu is held.
func (ls *limiters) left(name string) (all []*Limiter) {
	var used []weak.Pointer[Limiter]
	for _, w := range ls.gone[name] {
		if l := w.Value(); l != nil {
			all, used = append(all, l), append(used, w)
		}
	}
	if ls.gone[name] = used; used == nil {
		delete(ls.gone, name)
	}
	return all
}

// outside reports how many Limiters of removed policies use the same buckets as l and take a larger
// part of the limit from Redis.
func (ls *limiters) outside(l *Limiter) (n int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, other := range ls.left(l.core.Name) {
		if other.core.Kind == l.core.Kind && other.redisPart() < l.redisPart() {
			n++
		}
	}
	return n
}

// add adds a valid policy. The presence must be refreshed afterwards. If the policy takes up the
// Limiter that it had before it was removed, back is true, and the Limiter must get the policy by
// change.
func (g *Group) add(p Policy) (l *Limiter, back bool, err error) {
	p = p.clone()
	if g.core.Closed.Load() {
		return nil, false, engine.ErrClosed
	}
	ls := &g.limiters
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.byName[p.Name] != nil {
		return nil, false, fmt.Errorf("tiered: Policy.Name is %q: must differ from the names of the Group's other policies", p.Name)
	}
	left := ls.left(p.Name)
	if i := slices.IndexFunc(left, func(l *Limiter) bool { return p.checkReplaces(*l.was) == nil }); i >= 0 {
		l, back = left[i], true
		ls.gone[p.Name] = slices.DeleteFunc(ls.gone[p.Name], func(w weak.Pointer[Limiter]) bool { return w.Value() == l })
	} else {
		l = newLimiter(g, ls.next, p)
		l.core.Beside = len(left) > 0
		ls.next++
		ls.byID[l.core.Number] = weak.Make(l)
	}
	ls.all, ls.byName[p.Name] = append(ls.all, l), l
	l.core.Place.Store(int64(ls.freePlace()))
	ls.placed[l.place()] = l
	if len(ls.placed) > lua.MostPolicies {
		g.warnPlacesOnce.Do(func() {
			g.journal.Line(slog.LevelWarn, "too many policies to announce: this process counts as one of every policy, and no "+
				"standing share is used", "policies", len(ls.placed), "most", lua.MostPolicies)
		})
	}
	ls.version++
	g.core.Dispatch.Forget(l.place(), ls.version)
	l.removed.Store(false)
	return l, back, nil
}

// freePlace returns the first place that is free. mu is held.
func (ls *limiters) freePlace() int {
	if i := slices.Index(ls.placed, nil); i >= 0 {
		return i
	}
	ls.placed = append(ls.placed, nil)
	return len(ls.placed) - 1
}

// removeOthers removes the policies without these names, and returns their Limiters.
func (ls *limiters) removeOthers(stay map[string]bool) (removed []*Limiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for name, l := range ls.byName {
		if stay[name] {
			continue
		}
		was := l.Policy()
		l.was = &was
		l.removed.Store(true)
		l.mu.Lock()
		l.split.Stop() // if it comes back, it finds out again how the others split the limits
		l.core.Standing.Agreed.Store(false)
		l.mu.Unlock()
		removed = append(removed, l)
		delete(ls.byName, name)
		ls.gone[name] = append(ls.gone[name], weak.Make(l))
	}
	ls.all = slices.DeleteFunc(ls.all, func(l *Limiter) bool { return l.removed.Load() })
	for i, l := range ls.placed {
		if l != nil && l.removed.Load() {
			ls.placed[i] = nil
			l.core.Place.Store(-1)
		}
	}
	for name := range ls.gone {
		ls.left(name)
	}
	for number, l := range ls.byID {
		if l.Value() == nil {
			delete(ls.byID, number)
		}
	}
	return removed
}

// present returns the Limiters of the Group's policies, in the order in which they were added.
func (ls *limiters) present() []*Limiter {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return slices.Clone(ls.all)
}

// algorithms returns those of the policies, each once.
func (ls *limiters) algorithms() (all []lua.Algorithm) {
	for _, l := range ls.present() {
		all = append(all, l.core.Kind.Algorithm)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// at returns the Limiter that has a place, or nil.
func (ls *limiters) at(place int) *Limiter {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	if place >= len(ls.placed) {
		return nil
	}
	return ls.placed[place]
}

// Limiter returns the Limiter of a policy, if there is one of that name.
func (g *Group) Limiter(policy string) (*Limiter, bool) {
	if g.isZero() {
		return nil, false
	}
	ls := &g.limiters
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	l := ls.byName[policy]
	return l, l != nil
}

// limiter returns the Limiter of a number that is in use.
func (g *Group) limiter(number int) *Limiter {
	g.limiters.mu.RLock()
	defer g.limiters.mu.RUnlock()
	return g.limiters.byID[number].Value()
}

func newLimiter(g *Group, number int, p Policy) *Limiter {
	l := &Limiter{group: g}
	l.core.Group, l.core.Number, l.core.Name, l.core.Kind = g.core, number, p.Name, p.kind()
	l.set(p)
	return l
}
