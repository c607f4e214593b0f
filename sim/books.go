package sim

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// account is what the auditor keeps of a bucket, to hold what Redis stores against what it should by the rules of docs/proof.md:
// the level rises by what time refills and by what the caller gives back, falls by what is granted and owed, and leaves room for
// all that is out. It is written from those rules and not from the script, and it takes the reply's word for nothing but the time.
type account struct {
	stored
	records map[string]entry // by lease id
	wants   int64            // of all records
	latest  int64            // µs of the bucket's time: when the last of them is over
	sweep   int64            // µs of the bucket's time: when ended records free their room
	at      time.Duration    // of the run: when it was last written, less what the clock was set ahead since
	lost    bool             // Redis may have forgotten something: look before the next call
}

// stored is what the hash of a bucket says of itself. Times are µs of the bucket's clock.
type stored struct {
	exists              bool
	level, overflow     float64
	last, born, behind  int64
	escrow              int64
	terms               terms         // of who wrote last
	left                time.Duration // until the key ends; 0 is never
	own                 entry         // of the lease that was asked for
	ownIsThere, damaged bool
}

// terms are a limit that a bucket refills by, and the largest burst that it ever had: no caller may find it forgotten sooner than
// it would be full for all.
type terms lua.Terms

// by is the terms once a call has written.
func (t terms) by(c *lua.Call) terms { return terms{c.Cap, c.Tokens, c.Period, max(c.Cap, t.Most)} }

// brings is what comes in some µs.
func (t terms) brings(elapsed int64) float64 {
	return float64(elapsed) * float64(t.Tokens) / float64(t.Period)
}

// entry is the record of a lease.
type entry struct {
	lua.Record
	until time.Duration // of the run: the end, if no clock is moved
}

// shelf is where a Redis keeps its hashes. nil and an empty map are a bucket that is not there.
type shelf interface {
	values(bucket string, fields ...string) []string
	fields(bucket string) map[string]string
	left(bucket string) time.Duration // until its key ends; 0 for never
}

// What is forgiven to levels, which are doubles, and to overflows: tokens.
const (
	levelRounding    = 1e-6
	overflowRounding = 1e-2
)

// stock takes what is stored from the shelf.
func stock(s shelf, bucket, lease string) (x stored) {
	v := s.values(bucket, "l", "s", "t", "c", "z", "o", "r", "p"+lease)
	if len(v) == 0 || v[0] == "" {
		return x
	}
	x.exists, x.left = true, s.left(bucket)
	var wrong [7]error
	x.level, wrong[0] = strconv.ParseFloat(v[0], 64)
	if x.overflow = lua.OverflowStart; v[1] != "" {
		x.overflow, wrong[1] = strconv.ParseFloat(v[1], 64)
		x.overflow = lua.OverflowStart + x.overflow/4096
	}
	x.last, wrong[2] = strconv.ParseInt(v[2], 10, 64)
	x.born, wrong[3] = strconv.ParseInt(v[3], 10, 64)
	if v[4] != "" {
		x.behind, wrong[4] = strconv.ParseInt(v[4], 10, 64)
	}
	if v[5] != "" {
		x.escrow, wrong[5] = strconv.ParseInt(v[5], 10, 64)
	}
	was, known := lua.ParseTerms(v[6])
	x.terms = terms(was)
	x.damaged = !known
	if lease != "" && v[7] != "" {
		x.own, x.ownIsThere = parseEntry(v[7])
		x.damaged = x.damaged || !x.ownIsThere
	}
	for _, err := range wrong {
		x.damaged = x.damaged || err != nil
	}
	return x
}

func parseEntry(text string) (e entry, ok bool) {
	e.Record, ok = lua.ParseRecord(text)
	return e, ok
}

// load takes all of a bucket from the shelf: what a Redis remembers that has forgotten something. at is the time of the run.
func (a *account) load(s shelf, bucket string, at time.Duration) {
	a.stored = stock(s, bucket, "")
	a.records, a.sweep, a.at, a.lost = make(map[string]entry), 0, at, false
	a.wants, a.latest = 0, 0
	for field, text := range s.fields(bucket) {
		if field == "g" {
			a.sweep, _ = strconv.ParseInt(text, 10, 64)
		}
		if e, ok := parseEntry(text); ok && len(field) > 1 {
			e.until = at + time.Duration(e.End-a.last)*time.Microsecond
			a.records[field[1:]] = e
			a.wants, a.latest = a.wants+e.Want, max(a.latest, e.End)
		}
	}
}

// verdict is a rule that did not hold, and by how many tokens where that is known.
type verdict struct {
	rule   string
	excess float64
}

// or takes another verdict where there is none.
func (v *verdict) or(w verdict) {
	if v.rule == "" {
		*v = w
	}
}

func (v *verdict) is(wrong bool, excess float64, format string, args ...any) {
	if wrong && v.rule == "" {
		v.rule, v.excess = fmt.Sprintf(format, args...), math.Abs(excess)
	}
}

// executed enters a call that Redis answered, and reports what is wrong with what it stores now. conceded says that the caller
// may hold what Redis forgot.
func (a *account) executed(c *lua.Call, r *lua.Reply, now stored, at time.Duration, conceded bool) (v verdict) {
	late := c.Deadline > 0 && r.Now >= c.Deadline
	own, owned := a.records[c.Lease]
	owned = owned && c.Lease != ""
	switch r.Code {
	case lua.Late:
		v.is(!late, 0, "a call was called late before its deadline")
		return v
	case lua.Stale:
		v.is(!owned || c.Seq > own.Seq, 0, "a call was called stale and is the newest of its lease")
		return v
	case lua.Granted, lua.Denied:
	default:
		return v
	}
	v.is(late, 0, "a call was executed after its deadline")
	v.is(owned && c.Seq <= own.Seq, 0, "a call was executed after a newer one of its lease")
	if r.Flags&lua.Created != 0 {
		v.is(a.exists && !a.fullBy(c, r.Now, at), float64(c.Cap)-a.level, "a bucket was forgotten before it was full and its leases were over")
		*a = account{
			stored:  stored{level: float64(c.Cap), overflow: lua.OverflowStart, last: r.Now, born: r.Now, terms: terms{}.by(c)},
			records: make(map[string]entry),
		}
		own, owned = entry{}, false
	}
	due := a.next(c, r, own, owned, &v, conceded)
	v.is(now.damaged, 0, "a bucket is damaged")
	changed := a.exists && a.terms != a.terms.by(c)
	if leased := c.Lease != ""; leased || r.Grant > 0 || due.stepped || changed || now.exists && now.last != a.last {
		v.is(!now.exists, 0, "a call was answered and not written")
		due.compare(&now, &v)
		for _, id := range due.ended {
			delete(a.records, id)
		}
		if leased {
			due.own.until = at + time.Duration(c.TTL)*time.Microsecond
			v.is(!now.ownIsThere || now.own.Seq != c.Seq, 0, "a call of a lease was answered and is not on record")
			v.is(now.own.Out != due.own.Out, float64(now.own.Out-due.own.Out), "a record does not cover hold and grant")
			v.is(now.own.End != due.own.End, 0, "a record does not end one ttl after its call")
			a.records[c.Lease] = due.own
		}
		room := float64(c.Cap - now.escrow)
		v.is(now.level > room+levelRounding, now.level-room, "level + escrow is more than the burst")
		a.stored, a.sweep, a.at, a.wants, a.latest = now, due.sweep, at, due.wants, due.latest
		a.outlives(c, r, &now, &v)
	}
	a.exists = now.exists
	return v
}

// fullBy reports whether a bucket that nobody asks is full at a time, by the server's clock or by the right one, with all leases
// over. A key that ended before the clock was set back does not come back.
func (a *account) fullBy(c *lua.Call, server int64, at time.Duration) bool {
	now := max(server+a.behind, a.last+(at-a.at).Microseconds())
	for _, e := range a.records {
		if e.End > now {
			return false
		}
	}
	return a.level+a.terms.brings(now-a.last) >= float64(max(a.terms.Most, c.Cap))-levelRounding
}

// outlives checks that a key which was written ends, and a second after its bucket is full and the last lease over.
func (a *account) outlives(c *lua.Call, r *lua.Reply, now *stored, v *verdict) {
	if c.Tokens == 0 {
		return
	}
	full := float64(now.last) + math.Ceil((float64(now.terms.Most)-now.level)/rate(c))
	least := max(full, float64(a.latest)) - float64(r.Now+now.behind) + 1e6 - 1e3 // it ends in a whole ms
	short := min(least, longestLife) - float64(now.left.Microseconds())
	v.is(now.left == 0, 0, "a key never ends")
	v.is(short > 0, short*rate(c), "a key ends before its bucket is full and its leases are over")
}

// longestLife is what a key gets that is to live for ever, but for a rounding: µs.
const longestLife = 1 << 52

// rate is how many tokens a µs refills.
func rate(c *lua.Call) float64 { return float64(c.Tokens) / float64(c.Period) }

// due is what a bucket must store after a call.
type due struct {
	stored
	sweep   int64
	wants   int64
	latest  int64
	ended   []string // the leases that are over, which a call forgets if it writes
	stepped bool     // a large step back of the clock was believed: that is always written
}

// next reckons what the bucket must store after a call: by the time that went by, by what is out, and by what the call says.
func (a *account) next(c *lua.Call, r *lua.Reply, own entry, owned bool, v *verdict, conceded bool) due {
	d := due{stored: a.stored, sweep: a.sweep, wants: a.wants, latest: a.latest}
	d.own = entry{}
	now := r.Now + a.behind
	if a.last-now > lua.MaxBack.Microseconds() {
		d.behind, d.stepped, now = a.behind+a.last-now, true, a.last
	}
	now = max(now, a.last)
	d.last = now

	ended := int64(0) // the latest end among those whose room is free from now on
	if a.sweep > 0 && now >= a.sweep {
		d.escrow, d.sweep, d.wants, d.latest = 0, 0, 0, 0
		for id, e := range a.records {
			if e.End > now {
				d.escrow, d.wants, d.latest = d.escrow+e.Out, d.wants+e.Want, max(d.latest, e.End)
				d.sweep = now + (c.TTL+1)/2
				continue
			}
			ended, d.ended = max(ended, e.End), append(d.ended, id)
			owned = owned && id != c.Lease
		}
	}
	before := float64(a.terms.Cap - a.escrow)
	refilled := min(a.level, before) + a.terms.brings(now-a.last)
	d.level = refilled
	if d.escrow < a.escrow { // the room of who is gone fills from its end on
		d.level = min(d.level, before+a.terms.brings(now-max(ended, a.last)))
	}
	d.level = min(d.level, float64(a.terms.Cap-d.escrow))
	d.terms = a.terms.by(c)
	d.overflow += refilled - d.level

	cover, charged := int64(0), int64(0)
	if owned {
		d.escrow, d.wants = d.escrow-own.Out, d.wants-own.Want
		if cover = own.Out; c.Ack < own.Seq { // its grant never came, or came too late
			cover, charged = cover-own.Grant, own.Debt
			d.level += float64(own.Grant)
		}
		back := min(c.Ret, cover)
		d.level, cover = d.level+float64(back), cover-back
	}
	beyond := max(0, c.Hold-cover)
	v.is(beyond > 0 && owned && !conceded, float64(beyond), "a process holds more than its record covers")
	d.level -= float64(beyond)
	d.escrow += c.Hold

	room, lowest := float64(c.Cap-d.escrow), -float64(c.Cap)-min(math.Floor(float64(c.Tokens)*1e6/float64(c.Period)), 1<<40) // rate(c) is rounded
	d.level = max(min(d.level, room), lowest)
	seen := c.Seen
	if c.Epoch != a.born {
		seen = 0
	}
	paid := int64(max(0, d.overflow-float64(seen))) / max(c.Fleet, 1)
	charge := min(max(0, max(c.Owed, c.Debt-paid)-charged), int64(d.level-lowest))
	d.level -= float64(charge)
	if c.Deadline > 0 && c.Deadline <= r.Now+c.TTL {
		d.level = max(d.level, min(room, d.level+float64(c.Refund)))
	}
	v.is(float64(r.Grant) > d.level+levelRounding && r.Grant > 0, float64(r.Grant)-d.level, "more was granted than there was")
	least := max(c.Min, 1)
	v.is(r.Grant > 0 && r.Grant < least, 0, "less was granted than the least that is of use")
	v.is(r.Grant == 0 && c.Want > 0 && d.level >= float64(least)+levelRounding, d.level, "a call was denied what there was")
	want := min(c.Want, c.Cap)
	low, high := granted(d.level-levelRounding, want, least, d.wants), granted(d.level+levelRounding, want, least, d.wants)
	v.is(r.Grant < low || r.Grant > high, float64(r.Grant-high), "a grant is not the caller's part of what there is")
	d.level -= float64(r.Grant)
	if c.Lease != "" {
		d.escrow, d.wants, d.latest = d.escrow+r.Grant, d.wants+want, max(d.latest, now+c.TTL)
		d.own.Record = lua.Record{Seq: c.Seq, Grant: r.Grant, Out: c.Hold + r.Grant, Want: want, End: now + c.TTL, Debt: charged + charge}
		if d.sweep == 0 {
			d.sweep = d.own.End
		}
	}
	return d
}

// granted is what a caller gets who wants so much, and no less than least, of a level that others want part of too.
func granted(level float64, want, least, others int64) int64 {
	there := int64(math.Floor(level))
	if want == 0 || there < least {
		return 0
	}
	return min(max(int64(math.Floor(1.5*float64(there)*float64(want)/float64(others+want))), least), want, there)
}

// compare says where what is stored is not what is due.
func (d *due) compare(now *stored, v *verdict) {
	v.is(now.last != d.last || now.behind != d.behind, 0, "a bucket's time is not the server's")
	v.is(now.terms != d.terms, 0, "a bucket does not know the limit that it was written by")
	v.is(now.escrow != d.escrow, float64(now.escrow-d.escrow), "the escrow is not what is out")
	v.is(math.Abs(now.level-d.level) > levelRounding, now.level-d.level, "the level is not what time and callers made of it")
	v.is(math.Abs(now.overflow-d.overflow) > overflowRounding, now.overflow-d.overflow, "the overflow is not what the refill lost")
	v.is(now.own.Debt != d.own.Debt, float64(now.own.Debt-d.own.Debt), "a debt is not charged as far as it is owed")
}
