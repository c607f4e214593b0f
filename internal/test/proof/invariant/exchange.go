package invariant

import (
	"math"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Exchange is a call that a store answered, with the bucket before and after it.
type Exchange struct {
	Call          *lua.Call
	Reply         *lua.Reply
	Before, After *Bucket
	Own           lua.Record // what was on record of the call's lease before
	Owned         bool       // something was

	// Conceded says that the caller may hold what the store forgot, or took for over.
	Conceded bool

	now, behind int64
	freed       int64 // tokens of leases that are over, whose room is free from this call on
	end         int64 // the latest end among them
	charged     int64 // debt that is on record as charged by calls whose reply was not accepted
	charge      int64 // debt that this call charges
}

// Check holds what the store did against every law.
func (x *Exchange) Check() (f Finding) {
	c, r := x.Call, x.Reply
	late := c.Deadline > 0 && r.Now >= c.Deadline
	switch r.Code {
	case lua.Late:
		f.Is(!late, 0, "a call was called late before its deadline")
		return f
	case lua.Stale:
		f.Is(!x.Owned || c.Seq > x.Own.Seq, 0, "a call was called stale and is the newest of its lease")
		return f
	case lua.Granted, lua.Denied:
	default:
		return f
	}
	f.Is(late, 0, "a call was executed after its deadline")
	f.Is(x.Owned && c.Seq <= x.Own.Seq, 0, "a call was executed after a newer one of its lease")
	if r.Flags&lua.Created != 0 {
		x.created(&f)
	}
	x.now, x.behind = x.Before.clock(r.Now)
	if !x.wrote() {
		x.unwritten(&f)
		return f
	}
	a := x.After
	f.Is(!a.Exists, 0, "a call was answered and not written")
	if !a.Exists {
		return f
	}
	f.Is(a.Last != x.now || a.Behind != x.behind, 0, "a bucket's time is not the server's")
	x.terms(&f)
	x.records(&f)
	x.levels(&f)
	x.granted(&f)
	f.Or(a.Check(c.Algorithm, c.Limits()...))
	x.lifetime(&f)
	return f
}

// created checks that the bucket before could be forgotten, and puts a full one in its place.
func (x *Exchange) created(f *Finding) {
	c, b := x.Call, x.Before
	if b.Exists {
		missing, ok := b.Missing(x.Reply.Now+b.Behind, c)
		f.Is(!ok, max(missing, 0), "a bucket was forgotten before it was full and its leases were over")
	}
	full := &Bucket{Overflow: lua.OverflowStart, Last: x.Reply.Now, Born: x.Reply.Now}
	for i, l := range c.Limits() {
		full.Levels = append(full.Levels, full.level(c.Algorithm, i, l))
	}
	x.Before, x.Own, x.Owned = full, lua.Record{}, false
}

// wrote finds out whether the call has written, or had to. A call of a lease has to, and one that
// is granted something, that asks for something after a large step back of the clock, that changes
// what governs, or that has to note what it has.
func (x *Exchange) wrote() bool {
	c, b, a := x.Call, x.Before, x.After
	return c.Lease != "" || x.Reply.Grant > 0 || c.Want > 0 && x.behind != b.Behind || b.Exists && (x.changed() || c.Want > 0 && x.expiring()) ||
		a.Exists && (a.Last != b.Last || a.Escrow != b.Escrow)
}

// unwritten checks a call that left all as it was: that nobody was denied what there is.
func (x *Exchange) unwritten(f *Finding) {
	c, b := x.Call, x.Before
	least := math.Inf(1)
	for i, limit := range c.Limits() {
		l := b.level(c.Algorithm, i, limit)
		least = min(least, l.Tokens+x.brings(&l, x.governs(i, limit), b.Last), float64(l.Terms.Cap-b.Escrow))
	}
	f.Is(c.Want > 0 && least >= float64(max(c.Min, 1))+Rounding, least, "a call was denied what there was")
}

// remembers reports whether the record of an ended lease is kept, because its holder may not know
// that its debt was charged: until the buckets are full, however low they were.
func (x *Exchange) remembers(r lua.Record) bool {
	full := 0.0
	for i, limit := range x.Call.Limits() {
		t := x.After.level(x.Call.Algorithm, i, limit).Terms
		full = max(full, float64(t.Cap+max(t.Cap, x.Call.MaxDebt))*float64(t.Period)/float64(t.Tokens))
	}
	return r.Debt > 0 && float64(r.End)+full > float64(x.now)
}

// records checks who is on record: the caller as it says, and everybody else as before until a
// sweep after the lease's end, and then without tokens for as long as its debt matters.
func (x *Exchange) records(f *Finding) {
	c, b, a := x.Call, x.Before, x.After
	due, left, remembered := b.Sweep > 0 && x.now >= b.Sweep, false, false // what the caller's lease charged, if that is over
	if due {
		if x.Owned && x.Own.End <= x.now {
			x.Owned, remembered = false, x.remembers(x.Own)
		}
		for id, r := range b.Records {
			after, kept := a.Records[id]
			if r.End > x.now {
				left = true
				f.Is(!kept, float64(r.Out), "a lease was forgotten before its end")
				continue
			}
			if r.Out > 0 {
				x.freed, x.end = x.freed+r.Out, max(x.end, r.End)
			}
			if id == c.Lease {
				continue
			}
			matters := x.remembers(r)
			f.Is(kept && !matters, float64(r.Out), "a lease that is over is still on record after a sweep")
			changed := after != lua.Record{Seq: r.Seq, End: r.End, Debt: r.Debt}
			f.Is(matters && changed, float64(r.Debt), "a debt that was charged is forgotten while it matters")
		}
	}
	sweep := b.Sweep
	switch {
	case due && left:
		sweep = x.now + (c.TTL+1)/2
	case c.Lease != "" && (due || sweep == 0):
		sweep = x.now + c.TTL
	case due:
		sweep = 0
	}
	f.Is(a.Sweep != sweep, 0, "the next sweep is not half a lease away, or at the first end")
	if own, ok := a.Records[c.Lease]; c.Lease != "" {
		f.Is(!ok || own.Seq != c.Seq, 0, "a call of a lease was answered and is not on record")
		want := min(c.Want, c.LeastCap())
		if x.Reply.Grant == 0 && c.Algorithm == lua.TokenBucket {
			want = min(want, 1) // what it refused counts as one token
		}
		if c.To == 1 {
			want = 0
		}
		out := c.Hold + x.lent()
		f.Is(own.Out != out, float64(own.Out-out), "a record does not cover hold and grant")
		f.Is(own.End != x.now+c.TTL, 0, "a record does not end one ttl after its call")
		differs := own.Grant != x.lent() || own.Want != want
		f.Is(differs, 0, "a record does not say what was wanted and granted")
		if (x.Owned || remembered) && c.Ack < x.Own.Seq {
			x.charged = x.Own.Debt
		}
		x.charge = own.Debt - x.charged
	}
	f.Is(a.Escrow != a.out, float64(a.Escrow-a.out), "the escrow is not what is out")
	f.Is(a.Wants != a.wants, 0, "the wants are not what the leases want")
}

// lent is the part of the grant that becomes a lease.
func (x *Exchange) lent() int64 {
	if x.Call.Lease == "" || x.Call.To == 1 {
		return 0
	}
	return x.Reply.Grant
}

// lifetime checks that a key which was written ends: a second after its buckets are full and the
// last lease is over.
func (x *Exchange) lifetime(f *Finding) {
	c, a := x.Call, x.After
	if a.Left == Unseen || c.Tokens == 0 {
		return
	}
	f.Is(a.Left == 0, 0, "a key never ends")
	for i, limit := range c.Limits() {
		l := a.level(c.Algorithm, i, limit)
		rate := float64(l.Terms.Tokens) / float64(l.Terms.Period)
		full := float64(a.Last) + math.Ceil((float64(l.Terms.Most)-l.Tokens)/rate)
		least := max(full, float64(a.latest)) - float64(x.Reply.Now+a.Behind) + 1e6 - 1e3 // it ends in a whole ms
		short := min(least, longestLife) - float64(a.Left.Microseconds())
		f.Is(short > 0, short*rate, "a key ends before its bucket is full and its leases are over")
	}
}

// longestLife is what a key gets that is to live for ever, but for a rounding, in µs.
const longestLife = 1 << 52
