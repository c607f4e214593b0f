package legal

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// perOf is the time that a limit is of, or the longest that a window of the calendar lasts.
func perOf(l tiered.Limit) time.Duration { return cmp.Or(l.Per, l.Calendar.Longest()) }

// midnight is how long after the beginning of a bubble, which is that of a Saturday, a month and a
// year in UTC, the same begins in the zones of calendars. It begins half an hour later in one.
const midnight = 3 * time.Hour

// calendar draws windows of which one ends soon after midnight.
func (d *drawer) calendar(u tiered.Unit) tiered.Calendar {
	c := tiered.Calendar{Unit: u, Zone: pick(d, "Etc/GMT+3", "America/Cayenne", "America/Argentina/Buenos_Aires", "America/St_Johns", "Asia/Tokyo")}
	switch u {
	case tiered.Week:
		c.Day = pick(d, int16(6), 6, 6, 2)
	case tiered.Month:
		c.Day = pick(d, int16(0), 0, 0, 31, 17)
	case tiered.Quarter, tiered.Year:
		c.Month = pick(d, int8(0), 0, 0, 4)
	}
	return c
}

// quotas makes the windows of a plan those of the calendar. A plan without any gets a policy of
// them. Half of the later limits have other edges.
func (d *drawer) quotas(p *Plan) {
	fixed := func(x tiered.Policy) bool { return x.Algorithm == tiered.FixedWindow }
	if !slices.ContainsFunc(p.Policies, fixed) {
		x := tiered.Policy{Name: "p0", Algorithm: tiered.FixedWindow, FailMode: tiered.FailMode(d.IntN(3)), Limit: tiered.PerYear(d.tokens()), Lease: d.lease()}
		for !valid(x) {
			x.Lease = d.lease()
		}
		p.only(p.Class, x)
		p.Plans[0] = d.one(2)
		for range 30 + d.IntN(60) {
			p.Steps = append(p.Steps, d.step(p))
		}
	}
	for i, x := range p.Policies {
		if !fixed(x) {
			continue
		}
		c := d.calendar(pick(d, tiered.Day, tiered.Week, tiered.Month, tiered.Quarter, tiered.Year))
		of := func(l tiered.Limit) tiered.Limit {
			if l == (tiered.Limit{}) || free(l) {
				return l
			}
			at := c
			if d.one(2) {
				at = d.calendar(c.Unit)
			}
			return tiered.Limit{Tokens: max(l.Tokens, 4*x.Lease.Size), Calendar: at}
		}
		x.Limit, x.Calendar, x.Standing = tiered.Limit{Tokens: x.Limit.Tokens, Calendar: c}, false, 0
		if leased := x; d.one(2) { // so that leases are out at the end, and what is left is used after it
			leased.Limit.Tokens, leased.Lease = pick(d, int64(40), 100, 400), tiered.Lease{Size: pick(d, int64(7), 10)}
			if valid(leased) {
				x = leased
			}
		}
		p.Policies[i] = x
		for j := range p.Steps {
			if s := &p.Steps[j]; s.Which == i {
				s.Limit = of(s.Limit)
			}
		}
	}
	p.Warm = max(p.Warm, midnight-time.Duration(d.IntN(1800))*second)
}

// month draws requests about the end of a window, and often other ends for one process before.
func (d *drawer) month(p *Plan) []Step {
	which := slices.IndexFunc(p.Policies, func(x tiered.Policy) bool { return !x.Limit.Calendar.IsZero() })
	if which < 0 {
		return nil
	}
	s := Step{
		Verb: Edge, Who: d.IntN(p.Processes), Which: which, Key: d.IntN(keys), N: d.IntN(4), After: d.after(time.Minute),
		Pause: pick(d, 20*ms, 20*ms, 100*ms),
	}
	scene := []Step{s}
	if to := p.Policies[which].Limit; d.one(2) {
		to.Calendar = d.calendar(to.Calendar.Unit)
		scene = []Step{{Verb: Change, Who: s.Who, Which: which, Limit: to}, s, s}
	}
	return scene
}

// edge asks for a key by two processes from some seconds before the end of its window until after
// it, if it is near.
func (p *process) edge(s *Step) {
	w, limit := p.player, p.own(s)
	if free(limit) || limit.Calendar.IsZero() || w.plan.Real {
		return
	}
	clock := w.base
	w.mu.Lock()
	for _, m := range w.histories[s.Which][s.Key].moves {
		clock = clock.Add(m.by)
	}
	w.mu.Unlock()
	_, end := limit.Calendar.At(clock.Add(w.now()))
	at := end.Sub(clock)
	if at-w.now() > time.Hour {
		return
	}
	time.Sleep(max(at-w.now()-time.Duration(1+s.N)*second, 0))
	next := w.slots[(s.Who+1)%len(w.slots)]
	for n := 0; w.now() < at; n++ {
		p.one(s)
		if n%4 >= s.N {
			next.one(s)
		}
		time.Sleep(s.Pause)
	}
	for range 500 { // all that the next window has, and what leases have that are still out
		p.one(s)
		next.one(s)
		if time.Sleep(ms); w.plan.Thin {
			return
		}
	}
}

// countsBy reports whether a call goes by the windows of a limit.
func countsBy(l tiered.Limit, c *lua.Call) bool {
	if l.Calendar.IsZero() {
		return c.Period == l.Per.Microseconds()
	}
	from, to := l.Calendar.At(time.UnixMicro(c.Phase))
	return from.UnixMicro() == c.Phase && to.UnixMicro()-c.Phase == c.Period
}

// overCalendar compares what was admitted between two ends of windows with the largest limit in
// force. Each limit has its ends while it is in force. What a step of the clock cuts is skipped.
func (b *history) overCalendar(terms []term) (worst float64, where string) {
	worst = math.Inf(-1)
	last := b.horizon(b.sure)
	for start, s := range b.steady(time.Duration(b.base.UnixNano())) {
		var ends []time.Duration
		for _, t := range terms {
			for at := max(s.from, 0, t.from); at <= min(s.to, last); {
				begin, end := t.Calendar.At(time.Unix(0, int64(start+at)))
				for _, e := range []time.Time{begin, end} {
					if e := time.Duration(e.UnixNano()) - start; e <= after(t.until, b.life) {
						ends = append(ends, e)
					}
				}
				at = time.Duration(end.UnixNano()) - start
			}
		}
		slices.Sort(ends)
		for j, first := range ends[:max(len(ends)-1, 0)] {
			next := ends[j+1]
			if first < s.from || next > s.to {
				continue
			}
			if over := b.within(terms, first, next); over > worst {
				worst, where = over, "the time from "+first.String()+" to "+next.String()
			}
		}
	}
	return worst, where
}
