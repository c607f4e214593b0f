package model

import (
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// slidingLog is lua/sliding_log.lua in Go.
type slidingLog struct {
	entries []logEntry // by score, then in Redis' order of members
	total   int64      // tokens in all entries together
	last    int64      // newest stamp, by the log's own clock
	epoch   int64      // epoch
	behind  int64      // how far the server's clock was set back
}

// logEntry is a member of the sorted set: a take, or the debt of a lease id.
type logEntry struct {
	score, cost int64
	debtor      string // "" for a take
}

const (
	// logSpare is the number of old entries that a call removes beyond those that it must.
	logSpare = 32

	// logLook is the number of entries that a call reads to tell the level, if it may leave old
	// ones.
	logLook = 1000
)

// member returns the entry's name in the sorted set.
func (e *logEntry) member() string {
	switch {
	case e.debtor != "":
		return "d" + e.debtor + "@" + decimal(e.score) + ":" + decimal(e.cost)
	case e.cost != 1:
		return decimal(e.score) + ":" + decimal(e.cost)
	}
	return decimal(e.score)
}

// before compares two entries in the order of the sorted set.
func (e *logEntry) before(o *logEntry) int {
	if e.score != o.score {
		return int(min(max(e.score-o.score, -1), 1))
	}
	return strings.Compare(e.member(), o.member())
}

// run implements state.
func (l *slidingLog) run(s *step) (keep int64, written bool) {
	c, server, exists, r := s.Call, s.server, s.exists, s.reply
	next := *l // the entries are replaced, never changed
	var flags lua.Flags
	if !exists {
		next = slidingLog{epoch: server}
		flags = lua.Created
	}
	if c.Epoch > 0 && c.Epoch != next.epoch {
		flags += lua.OtherEpoch
	}
	want, least := min(c.Want, c.Cap), max(c.Min, 1)

	var stepped bool
	if next.behind, stepped = guard(next.last, server, next.behind); stepped {
		flags += lua.SteppedBack
	}
	now := max(server+next.behind, next.last+1)

	cut := now - c.Period
	if c.Reset > 0 {
		until := min(c.Reset+next.behind, now)
		if now > server+next.behind { // the clock was set back: the key's time waits
			until = now
		}
		cut = max(cut, until)
	}
	var spare int64 // tokens of old entries that this call leaves
	if exists && next.last <= cut {
		next.total, next.entries = 0, nil
	} else if next.total > 0 {
		most := want + c.Debt + logSpare + max(0, next.total-c.Cap)
		if c.Reset > 0 {
			most = next.total
		}
		spare = next.trim(cut, most)
	}

	next.entries = slices.Clone(next.entries)
	settled := exists && c.At > cut && c.Epoch == next.epoch && next.settle(c.At, c.To)
	if c.At > 0 && !(exists && c.Epoch == next.epoch) {
		flags += lua.Unapplied
	}
	if due := min(c.Since+next.behind, now); c.Debt > 0 && due > cut {
		next.charge(logEntry{due, c.Debt, c.Lease}, c.Cap)
	}

	*r = lua.Reply{Code: lua.Granted, Now: server, Epoch: next.epoch, Flags: flags, Which: 1, Stamp: now}
	if avail := c.Cap - next.total; want > 0 && avail >= least {
		r.Grant = min(want, avail)
		if !c.Dry() {
			next.total += r.Grant
			next.put(logEntry{score: now, cost: r.Grant})
		}
	} else if want > 0 {
		r.Code, r.Retry = lua.Denied, next.retry(least-avail, cut, c.Period)-server-next.behind
		r.Retry = max(1, r.Retry)
	}
	r.Level = c.Cap - next.total + spare
	peek := c.Lease == "" && c.Want == 0
	written = !c.Dry() && (r.Grant > 0 || settled || c.Lease != "" || stepped && !peek)
	if written {
		next.last = now
		*l = next
		keep = keepFor(now + c.Period - server - next.behind)
	} else if !exists {
		r.Epoch = 0
	}
	if c.Dry() && (settled || c.Debt > 0) {
		next.last = now // as the call would
	}
	if next.total > 0 {
		r.Reset = max(0, next.last+c.Period-server-next.behind)
	}
	return keep, written
}

// trim removes the oldest entries up to the time cut, at most most of them. It returns the tokens
// of those that it leaves, or fewer: see sliding_log.lua.
func (l *slidingLog) trim(cut, most int64) (spare int64) {
	n := 0
	for ; n < len(l.entries) && int64(n) < most && l.entries[n].score <= cut; n++ {
		l.total -= l.entries[n].cost
	}
	l.entries = l.entries[n:]
	if int64(n) < most {
		return 0
	}
	old := slices.IndexFunc(l.entries, func(e logEntry) bool { return e.score > cut })
	if old < 0 {
		old = len(l.entries)
	}
	if len(l.entries)-old > logLook {
		old = min(old, logLook)
	}
	for _, e := range l.entries[:old] {
		spare += e.cost
	}
	return spare
}

// settle sets the cost of the entry with a stamp, if the new cost is lower. It reports whether it
// did.
func (l *slidingLog) settle(at, to int64) bool {
	i := slices.IndexFunc(l.entries, func(e logEntry) bool { return e.score == at && e.debtor == "" })
	if i < 0 || to >= l.entries[i].cost {
		return false
	}
	l.total += to - l.entries[i].cost
	l.entries[i].cost = to
	if to == 0 {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
	return true
}

// charge raises a debt to a new value, as far as the log has room. It never lowers one.
func (l *slidingLog) charge(debt logEntry, most int64) {
	had := int64(0)
	i := slices.IndexFunc(l.entries, func(e logEntry) bool { return e.score == debt.score && e.debtor == debt.debtor })
	if i >= 0 {
		had = l.entries[i].cost
	}
	if debt.cost = min(debt.cost, had+max(0, most-l.total)); debt.cost <= had {
		return
	}
	if i >= 0 {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
	l.total += debt.cost - had
	l.put(debt)
}

// put inserts an entry at its place.
func (l *slidingLog) put(e logEntry) {
	i, _ := slices.BinarySearchFunc(l.entries, e, func(a, b logEntry) int { return a.before(&b) })
	l.entries = slices.Insert(l.entries, i, e)
}

// retry returns when enough entries have left the window to free the tokens that are missing.
func (l *slidingLog) retry(over, cut, period int64) (at int64) {
	for _, e := range l.entries {
		if e.score <= cut {
			continue
		}
		at = e.score + period
		if over -= e.cost; over <= 0 {
			break
		}
	}
	return at
}

// fields implements state: it returns members and their scores.
func (l *slidingLog) fields() map[string]string {
	f := map[string]string{"#lg1": decimal(-1 - l.epoch), "#n": decimal(-1 - l.total), "#t": decimal(-1 - l.last)}
	if l.behind > 0 {
		f["#z"] = decimal(-1 - l.behind)
	}
	for i := range l.entries {
		f[l.entries[i].member()] = decimal(l.entries[i].score)
	}
	return f
}

// clone implements state.
func (l *slidingLog) clone() state {
	twin := *l
	twin.entries = slices.Clone(l.entries)
	return &twin
}
