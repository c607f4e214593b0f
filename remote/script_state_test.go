package remote_test

import (
	"fmt"
	"math"
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// parsed is what the fields of a bucket's hash say, for those who judge it. The script's header
// names the fields.
type parsed struct {
	exists                                bool
	level, overflow                       float64
	last, born, behind                    int64
	cap, tokens, period, most             int64 // the terms that govern
	capUntil, rateUntil, noted            int64 // until when, and when that was written
	escrow, wants, active, sweep, latest  int64
	records                               map[string]lua.Record // by lease id
	outSum, wantSum, activeSum, latestEnd int64                 // the same as escrow … latest, counted from the records
}

// parse reads the fields of a hash, or says what is wrong with them.
func parse(fields map[string]string) (b parsed, fault string) {
	if fields == nil {
		return b, ""
	}
	b.exists, b.records = true, make(map[string]lua.Record)
	count := 0
	for _, f := range []struct {
		name string
		to   *int64
	}{
		{"t", &b.last},
		{"c", &b.born},
		{"z", &b.behind},
		{"o", &b.escrow},
		{"w", &b.wants},
		{"a", &b.active},
		{"g", &b.sweep},
		{"e", &b.latest},
	} {
		text, ok := fields[f.name]
		if !ok && (f.name == "z" || count >= 2 && fields["o"] == "") {
			continue // the clock was never set back, no lease was ever given
		}
		x, err := strconv.ParseInt(text, 10, 64)
		if err != nil || x < 0 || x >= 1<<53 || f.name == "z" && x == 0 {
			return b, "field " + f.name + " is " + strconv.Quote(text)
		}
		*f.to = x
		count++
	}
	b.overflow = 1 << 40
	for name, to := range map[string]*float64{"l": &b.level, "s": &b.overflow} {
		text, ok := fields[name]
		if !ok && name == "s" {
			continue // nothing was ever lost
		}
		x, err := strconv.ParseFloat(text, 64)
		if name == "s" && err == nil { // 4096ths
			whole := x == math.Trunc(x)
			if x = 1<<40 + x/4096; x <= 1<<40 || !whole {
				err = strconv.ErrRange
			}
		}
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return b, "field " + name + " is " + strconv.Quote(text)
		}
		*to = x
		count++
	}
	t, ok := invariant.ParseTerms(fields["r"])
	if !ok {
		return b, "field r is " + strconv.Quote(fields["r"])
	}
	b.cap, b.tokens, b.period, b.most = t.Cap, t.Tokens, t.Period, t.Most
	if text, ok := fields["h"]; ok {
		count++
		_, err := fmt.Sscanf(text, "%d/%d/%d", &b.capUntil, &b.rateUntil, &b.noted)
		if err != nil || b.noted > b.last || min(b.capUntil, b.rateUntil) < b.noted {
			return b, "field h is " + strconv.Quote(text)
		}
	}
	for name, text := range fields {
		if name[0] != 'p' {
			continue
		}
		l, ok := invariant.ParseRecord(text)
		if !ok {
			return b, "record " + name + " is " + strconv.Quote(text)
		}
		b.records[name[1:]] = l
		b.outSum, b.wantSum = b.outSum+l.Out, b.wantSum+l.Want
		// A record that is only kept for its debt has nothing that ends.
		if remembered := l.Debt > 0 && l.Out+l.Want == 0 && l.End <= b.last; !remembered {
			b.latestEnd = max(b.latestEnd, l.End)
		}
		b.activeSum += min(l.Out+l.Want, 1)
		count++
	}
	if known := count + 2; known != len(fields) { // v and r
		return b, fmt.Sprintf("%d fields in %v", len(fields), fields)
	}
	return b, ""
}

// lowest is the floor of a level after a call: a second of refill below −cap.
func (b parsed) lowest(c lua.Call) float64 {
	return -float64(max(b.cap, c.MaxDebt)) - min(math.Floor(float64(b.tokens)*1e6/float64(b.period)), 1<<40)
}

// unsound reports what is wrong with a bucket just written by a call, "" if nothing is. torn says
// that a record was removed by hand, so that escrow may be too high, as after a run that broke off.
func (b parsed) unsound(c lua.Call, torn bool) string {
	// A grant is ⌊level + 10⁻⁹⌋, and a double near 2⁴⁰ has steps of 2·10⁻⁴.
	rounding := 1e-8 + math.Abs(b.level)*1e-15
	governs := lua.Limit{Cap: b.cap, Tokens: b.tokens, Period: b.period}
	lesserRate := float64(c.Tokens)/float64(c.Period) < float64(b.tokens)/float64(b.period)
	switch room := max(float64(b.cap-b.escrow), b.lowest(c)); {
	case b.cap < c.Cap || b.most < b.cap || float64(c.Tokens)/float64(c.Period) > float64(b.tokens)/float64(b.period):
		return fmt.Sprintf("a limit governs that is smaller than the caller's: %+v", governs)
	case c.Cap < b.cap && b.capUntil <= b.last, lesserRate && b.rateUntil <= b.last:
		return fmt.Sprintf("a limit governs that nobody used for long: %+v", b)
	case b.level > room+rounding:
		return fmt.Sprintf("level %v beside escrow %d, cap %d", b.level, b.escrow, b.cap)
	case b.level < b.lowest(c)-rounding:
		return fmt.Sprintf("level %v below the floor %v", b.level, b.lowest(c))
	case torn && (b.outSum > b.escrow || b.wantSum > b.wants),
		!torn && (b.outSum != b.escrow || b.wantSum != b.wants || b.activeSum != b.active):
		return fmt.Sprintf("out %d, wants %d, active %d in the records of %+v", b.outSum, b.wantSum, b.activeSum, b)
	case b.latestEnd > b.latest, b.latestEnd > 0 && b.sweep == 0:
		return fmt.Sprintf("a lease ends at %d: %+v", b.latestEnd, b)
	case b.overflow < 1<<40 || b.overflow > 1<<52:
		return fmt.Sprintf("overflow %v", b.overflow)
	}
	for id, l := range b.records {
		if l.Grant > l.Out {
			return fmt.Sprintf("lease %s was granted more than is out: %+v", id, l)
		}
	}
	return ""
}

// needs reports for how many ms, from a time of the server's clock on, a bucket must be kept: until
// its leases are over and it would be full, by the largest cap. An absent bucket is taken for a
// full one without leases, so who forgets it sooner mints tokens.
func (b parsed) needs(server int64) float64 {
	refill := (float64(b.most) - b.level) * float64(b.period) / float64(b.tokens)
	return (refill + float64(max(b.last, b.latest)-(server+b.behind))) / 1000
}

// unkept reports what is wrong with the ms to live that a call gave a bucket at a time of the
// server's clock, "" if nothing is: it needs what it needs and a second of margin, in whole ms, and
// not more than 2 of them for rounding.
func (b parsed) unkept(server, pttl int64) string {
	const longest = 1 << 43
	least := longest - 1.0 // never, without a rate
	if b.tokens > 0 {
		least = min(b.needs(server)+1000, longest) * (1 - 1e-15)
	}
	if life := float64(pttl); life < least-1e-6 || life > min(least*(1+2e-15)+2, longest) {
		return fmt.Sprintf("%d ms to live, needed are %.3f", pttl, least)
	}
	return ""
}
