package remote_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// census counts the kinds of events that random histories were made of. A property that holds of
// all histories says nothing about what occurs in none.
type census map[string]int

// What is counted besides: all events, calls that wrote, and those of which the time to live was
// compared to the ms.
const anything, writes, exact = "anything", "writes", "exact"

// few is how often each kind must occur at least: so often that it is no accident. Once will do in
// a short run.
const few = 5

// require fails the test for every kind of event that hardly occurred.
func (seen census) require(t *testing.T) {
	t.Helper()
	least := few
	if testing.Short() {
		least = 1
	}
	var table strings.Builder
	for _, k := range eventKinds {
		n := seen[k.name]
		if fmt.Fprintf(&table, "\n%8d  %s", n, k.name); n < least {
			t.Errorf("%s: %d times in %d events, want %d", k.name, n, seen[anything], least)
		}
	}
	t.Log(table.String())
}

// count adds the kinds of a history's events.
func (w *walk) count(seen census) {
	for i := range w.events {
		seen[anything]++
		m := w.moment(i)
		for _, k := range eventKinds {
			if k.is(m) {
				seen[k.name]++
			}
		}
	}
}

// moment is an event and what it changed.
type moment struct {
	*event
	c        lua.Call
	r        lua.Reply
	was, is  parsed     // what was stored before and after
	own, new lua.Record // the caller's record before and after

	passed  int64 // µs since the event before
	now     int64 // the bucket's time, guarded
	back    int64 // by how much the server's clock lay before the bucket's
	lent    bool  // a lease was given once
	settled bool  // a call that was executed: code 0 or 1
	swept   bool
	owned   bool  // the caller had a record
	live    bool  // and it was not swept
	paid    int64 // by how much overflow lowers the caller's debt
	due     int64 // what is left of it
	charged int64 // of that, by calls before this one whose reply was not accepted
}

func (w *walk) moment(i int) *moment {
	e := &w.events[i]
	m := &moment{event: e, c: e.call, r: e.answer.reply}
	m.is, _ = parse(e.state.fields)
	if i > 0 {
		m.was, _ = parse(w.events[i-1].state.fields)
		_, m.lent = w.events[i-1].state.fields["o"]
		m.passed = e.at - w.events[i-1].at
	}
	m.settled = e.by != nil && e.answer.err == "" && m.r.Code <= lua.Denied
	if m.was.exists {
		m.back = m.was.last - (e.at + m.was.behind)
		m.now = max(e.at+m.was.behind, m.was.last)
	}
	m.swept = m.settled && m.was.sweep > 0 && m.now >= m.was.sweep
	if m.c.Lease != "" {
		m.own, m.owned = m.was.records[m.c.Lease]
		m.new = m.is.records[m.c.Lease]
	}
	m.live = m.settled && m.owned && !(m.swept && m.own.End <= m.now)
	if m.settled && m.c.Debt > 0 {
		known := m.c.Seen
		if m.c.Epoch != m.is.born {
			known = 0
		}
		m.paid = int64(max(0, m.is.overflow-float64(known))) / m.c.Fleet
		m.due = max(m.c.Owed, m.c.Debt-m.paid)
	}
	if m.live && m.c.Ack < m.own.Seq {
		m.charged = m.own.Debt
	}
	return m
}

// The kinds overlap: a call may renew, return, sweep and be refused at once.
var eventKinds = []struct {
	name string
	is   func(m *moment) bool
}{
	// What a process does.
	{"lease", func(m *moment) bool { return m.granted() && !m.owned }},
	{"lease for a cost above one", func(m *moment) bool { return m.granted() && m.c.Min > 1 }},
	{"renewal", func(m *moment) bool { return m.granted() && m.live && m.c.Hold > 0 && m.c.Hold <= m.own.Out }},
	{"renewal denied", func(m *moment) bool { return m.live && m.r.Code == lua.Denied }},
	{"return", func(m *moment) bool { return m.live && m.c.Ret > 0 && m.own.Out > 0 }},
	{"return of more than is out", func(m *moment) bool { return m.settled && m.c.Ret > m.own.Out }},
	{"refund", func(m *moment) bool { return m.refund(0, m.c.TTL) }},
	{"refund without a deadline", func(m *moment) bool { return m.settled && m.c.Refund > 0 && m.c.Deadline == 0 }},
	{"refund, deadline too far", func(m *moment) bool { return m.refund(m.c.TTL, walkEnd) }},
	{"debt charged", func(m *moment) bool { return m.settled && m.new.Debt > m.charged }},
	{"debt paid by overflow", func(m *moment) bool { return m.due < m.c.Debt && m.new.Debt == max(m.due, m.charged) }},
	{"debt owed in any case", func(m *moment) bool {
		return m.c.Debt-m.paid < m.due && m.new.Debt == m.due &&
			m.due > m.charged
	}},
	{"debt forgiven at the floor", func(m *moment) bool { return m.settled && m.new.Debt < m.due }},
	{"debt below a burst", func(m *moment) bool { return m.settled && m.is.level < -float64(m.c.Cap)-1 && m.new.Debt > m.charged }},
	{"direct take", func(m *moment) bool { return m.direct() && m.r.Grant == m.c.Want && m.c.Want > 0 }},
	{"direct take of what is there", func(m *moment) bool { return m.direct() && m.r.Grant > 0 && m.short() }},
	{"direct take denied", func(m *moment) bool { return m.direct() && m.r.Code == lua.Denied && m.r.Retry > 0 }},
	{"peek", func(m *moment) bool { return m.direct() && m.c.Want == 0 }},
	{"short way, new bucket", func(m *moment) bool { return m.shortWay() && !m.was.exists }},
	{"short way, known bucket", func(m *moment) bool {
		return m.shortWay() && m.was.exists &&
			m.is.overflow == m.was.overflow
	}},
	{"short way, overflow", func(m *moment) bool {
		return m.shortWay() && m.was.exists &&
			m.is.overflow > m.was.overflow
	}},
	{"short way, clock back", func(m *moment) bool { return m.shortWay() && m.back > 0 }},
	{"short way, clock believed before", func(m *moment) bool { return m.shortWay() && m.was.behind > 0 }},
	{"short way, limit lowered", func(m *moment) bool { return m.shortWay() && m.was.level > float64(m.c.Cap) }},
	{"short way left, the bucket lends", func(m *moment) bool { return m.direct() && m.r.Grant > 0 && m.lent }},
	{"short way left, clock believed", func(m *moment) bool {
		return m.direct() && m.r.Grant > 0 && !m.lent &&
			m.back > 1e6
	}},
	{"short way left, late", func(m *moment) bool { return m.c.Lease == "" && !m.lent && m.r.Code == lua.Late }},
	{"settlement alone", func(m *moment) bool { return m.live && m.c.Want == 0 }},

	// What two processes do to each other.
	{"proportional grant", func(m *moment) bool { return m.granted() && m.short() && m.r.Level > 0 }},
	{"limit raised", func(m *moment) bool { return m.settled && m.mine.Cap > 0 && m.c.Cap > m.mine.Cap }},
	{"limit lowered", func(m *moment) bool { return m.settled && m.c.Cap < m.mine.Cap }},
	{"limit below what is leased", func(m *moment) bool { return m.settled && m.c.Cap < m.was.escrow }},
	{"rate changed", func(m *moment) bool { return m.settled && m.mine.Cap > 0 && m.c.Tokens != m.mine.Tokens }},
	{"two processes, two limits", func(m *moment) bool {
		return m.settled && m.others.Cap > 0 &&
			m.c.Cap != m.others.Cap
	}},
	{"a larger limit governs", func(m *moment) bool { return m.settled && m.flag(lua.OtherTerms) }},
	{"two limits cross", func(m *moment) bool {
		return m.settled && m.is.cap > m.c.Cap && m.is.tokens == m.c.Tokens && m.was.tokens < m.is.tokens
	}},
	{"a burst falls", func(m *moment) bool { return m.settled && m.is.exists && m.is.cap < m.was.cap }},
	{"a burst falls at a denied take", func(m *moment) bool {
		return m.direct() && m.r.Code == lua.Denied && m.is.exists && m.is.cap < m.was.cap
	}},
	{"a rate falls", func(m *moment) bool {
		return m.settled && m.is.exists && m.was.exists && m.is.tokens*m.was.period < m.was.tokens*m.is.period
	}},
	{"a denied take notes what governs", func(m *moment) bool {
		return m.direct() && m.r.Code == lua.Denied && m.wrote() && !m.swept && m.back <= 1e6 &&
			m.is.cap == m.was.cap && m.is.tokens == m.was.tokens && m.is.period == m.was.period
	}},
	{"short way beside a smaller limit", func(m *moment) bool { return m.shortWay() && m.was.noted > 0 && m.is.noted < m.is.last }},
	{"two leases", func(m *moment) bool { return m.settled && m.r.Active == 2 }},

	// What time does.
	{"time forward", func(m *moment) bool { return m.was.exists && m.passed > 0 && m.passed < 3600e6 }},
	{"clock forward", func(m *moment) bool { return m.settled && m.was.outSum > 0 && m.passed >= 3600e6 }},
	{"clock back, waited out", func(m *moment) bool { return m.back > 0 && m.back <= 1e6 && m.wrote() }},
	{"clock back, believed", func(m *moment) bool { return m.back > 1e6 && m.wrote() }},
	{"denied, clock believed", func(m *moment) bool {
		return m.direct() && m.r.Grant == 0 && m.back > 1e6 &&
			m.wrote()
	}},
	{"sweep", func(m *moment) bool { return m.swept && len(m.was.records) > 0 }},
	{"sweep by a direct take", func(m *moment) bool { return m.swept && m.c.Lease == "" }},
	{"sweep that burns tokens", func(m *moment) bool { return m.swept && m.burnt() > 0 }},
	{"sweep that spares a lease", func(m *moment) bool { return m.swept && m.burnt() < m.was.outSum }},
	{"sweep after a run that broke off", func(m *moment) bool { return m.swept && m.was.escrow > m.was.outSum }},
	{"overflow", func(m *moment) bool { return m.wrote() && m.was.exists && m.is.overflow > m.was.overflow }},
	{"floor", func(m *moment) bool { return m.wrote() && m.is.level == m.is.lowest(m.c) }},
	{"expiry", func(m *moment) bool { return m.loss == byExpiry }},
	{"del", func(m *moment) bool { return m.loss == byDel && m.was.exists }},
	{"flush", func(m *moment) bool { return m.loss == byFlush && m.was.exists }},
	{"key for ever", func(m *moment) bool { return m.state.pttl == 1<<43 }},

	// What a network does.
	{"duplicate", func(m *moment) bool { return m.r.Code == lua.Replay && m.r.Grant > 0 }},
	{"duplicate of a denial", func(m *moment) bool { return m.r.Code == lua.Replay && m.r.Retry > 0 }},
	{"duplicate, lease over", func(m *moment) bool { return m.r.Code == lua.Stale && m.c.Seq == m.own.Seq }},
	{"stale", func(m *moment) bool { return m.r.Code == lua.Stale && m.c.Seq < m.own.Seq }},
	{"late", func(m *moment) bool { return m.r.Code == lua.Late }},
	{"grant undone", func(m *moment) bool { return m.live && m.c.Ack < m.own.Seq && m.own.Grant > 0 }},
	{"debt reported again", func(m *moment) bool { return m.charged > 0 && m.c.Debt > 0 }},
	{"debt reported no more", func(m *moment) bool { return m.charged > 0 && m.c.Debt == 0 }},

	// All that a reply can say.
	{"never", func(m *moment) bool { return m.r.Code == lua.Never }},
	{"no retry will do", func(m *moment) bool { return m.r.Code == lua.Denied && m.r.Retry == -1 }},
	{"retry at a lease end", func(m *moment) bool { return m.r.Retry > 0 && m.c.Min > m.c.Cap-m.is.escrow }},
	{"created", func(m *moment) bool { return m.settled && m.flag(lua.Created) }},
	{"stepped back", func(m *moment) bool { return m.flag(lua.SteppedBack) }},
	{"adopted, key lost", func(m *moment) bool { return m.flag(lua.Adopted) && !m.was.exists }},
	{"adopted, lease over", func(m *moment) bool { return m.flag(lua.Adopted) && m.owned && !m.live }},
	{"other epoch", func(m *moment) bool { return m.flag(lua.OtherEpoch) && m.was.exists }},
	{"argument refused", func(m *moment) bool { return strings.HasPrefix(m.answer.err, "RLARG ") }},
	{"records removed by hand", func(m *moment) bool { return m.hdel != "" }},
}

func (m *moment) flag(f lua.Flags) bool { return m.r.Flags&f != 0 }

func (m *moment) direct() bool { return m.settled && m.c.Lease == "" }

// shortWay reports whether the script takes it: see there.
func (m *moment) shortWay() bool {
	return m.direct() && m.c.Want > 0 && m.r.Grant == m.c.Want && !m.lent && m.back <= 1e6
}

func (m *moment) short() bool   { return m.r.Grant < min(m.c.Want, m.c.Cap) }
func (m *moment) granted() bool { return m.settled && m.c.Lease != "" && m.r.Grant > 0 }

// refund reports whether a call gave some with a deadline later than a time from now, and at the
// latest another.
func (m *moment) refund(after, last int64) bool {
	return m.settled && m.c.Refund > 0 && m.c.Deadline > m.at+after && m.c.Deadline <= m.at+last
}

// burnt counts the tokens of the leases that a sweep finds ended.
func (m *moment) burnt() (n int64) {
	for _, l := range m.was.records {
		if l.End <= m.now {
			n += l.Out
		}
	}
	return n
}
