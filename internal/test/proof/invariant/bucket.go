package invariant

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Rounding is what is forgiven to a level, in tokens: it is a double.
const Rounding = 1e-6

// Bucket is what a store keeps of a key. Times are µs of the bucket's clock. Windows have no levels
// and no overflow.
type Bucket struct {
	Exists             bool
	Levels             []Level // one of a TokenBucket; of TokenBuckets one for each limit that is on record
	Overflow           float64 // tokens
	Last, Born, Behind int64
	End                int64 // the latest that its record of leases tells
	Noted              int64 // of a TokenBucket: when it was recorded until when its limit governs; 0: it is not
	Escrow, Wants      int64
	Sweep              int64 // 0: none is due
	Records            map[string]lua.Record
	Left               time.Duration // until the key ends; 0: never; Unseen: nobody looked

	// Sums over Records.
	out, wants, latest int64
}

// Unseen as what is left of a key's time means that nobody looked.
const Unseen = time.Duration(-1)

// Level is one limit of a bucket, and the tokens that it has.
type Level struct {
	Tokens float64
	Terms  Terms // by which it refills

	CapUntil, RateUntil int64 // until when each of them governs; 0: that is not on record
}

// brings is how many tokens come in some µs.
func (l *Level) brings(elapsed int64) float64 {
	return float64(elapsed) * float64(l.Terms.Tokens) / float64(l.Terms.Period)
}

// record begins the name of a field with a lease's record.
const record = "p"

// Parse reads the fields of a bucket, as its script writes them. No fields are a bucket that is not
// there.
func Parse(a lua.Algorithm, fields map[string]string, left time.Duration) (b Bucket, err error) {
	b.Records = make(map[string]lua.Record)
	if len(fields) == 0 {
		return b, nil
	}
	b.Exists, b.Left = true, left
	for name, to := range map[string]*int64{
		"t": &b.Last, "c": &b.Born, "z": &b.Behind, "o": &b.Escrow, "w": &b.Wants, "g": &b.Sweep, "e": &b.End,
	} {
		if text := fields[name]; text != "" {
			if *to, err = strconv.ParseInt(text, 10, 64); err != nil {
				return b, fmt.Errorf("invariant: field %s: %w", name, err)
			}
		}
	}
	if a == lua.TokenBucket || a == lua.TokenBuckets {
		if b.Overflow, err = parseOverflow(a, fields["s"]); err != nil {
			return b, err
		}
		if b.Levels, err = parseLevels(a, fields); err != nil {
			return b, err
		}
		if err = b.parseHolds(a, fields["h"]); err != nil {
			return b, err
		}
	}
	for name, text := range fields {
		if !strings.HasPrefix(name, record) || text == "" {
			continue
		}
		r, ok := ParseRecord(text)
		if !ok {
			return b, fmt.Errorf("invariant: a record is %q", text)
		}
		b.put(name[len(record):], r)
	}
	return b, nil
}

// parseOverflow reads the overflow. A TokenBucket stores what came since the start, in 4096ths of a
// token.
func parseOverflow(a lua.Algorithm, text string) (float64, error) {
	if text == "" {
		return lua.OverflowStart, nil
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("invariant: field s: %w", err)
	}
	if a == lua.TokenBucket {
		x = lua.OverflowStart + x/4096
	}
	return x, nil
}

// parseLevels reads the levels and their terms.
func parseLevels(a lua.Algorithm, fields map[string]string) (all []Level, err error) {
	names, terms := []string{"l"}, []string{fields["r"]}
	if a == lua.TokenBuckets {
		names, terms = nil, strings.Split(fields["r"], ",")
		for i, text := range terms { // period:cap/tokens, and /most if that is larger than cap
			period, rest, _ := strings.Cut(text, ":")
			parts := strings.SplitN(rest, "/", 3)
			if len(parts) < 2 {
				return nil, fmt.Errorf("invariant: terms are %q", text)
			}
			names = append(names, "l"+period)
			terms[i] = strings.Join(append([]string{parts[0], parts[1], period}, parts[2:]...), "/")
		}
	}
	for i, name := range names {
		l := Level{}
		if l.Tokens, err = strconv.ParseFloat(fields[name], 64); err != nil {
			return nil, fmt.Errorf("invariant: field %s: %w", name, err)
		}
		ok := false
		if l.Terms, ok = ParseTerms(terms[i]); !ok {
			return nil, fmt.Errorf("invariant: terms are %q", terms[i])
		}
		all = append(all, l)
	}
	return all, nil
}

// parseHolds reads until when limits govern.
func (b *Bucket) parseHolds(a lua.Algorithm, text string) error {
	if text == "" {
		return nil
	}
	for _, one := range strings.Split(text, ",") {
		l, period := Level{}, int64(0)
		format, to := "%d:%d/%d", []any{&period, &l.CapUntil, &l.RateUntil}
		if a == lua.TokenBucket {
			format, to = "%d/%d/%d", []any{&l.CapUntil, &l.RateUntil, &b.Noted}
		}
		if _, err := fmt.Sscanf(one, format, to...); err != nil {
			return fmt.Errorf("invariant: field h: %w", err)
		}
		for i := range b.Levels {
			if x := &b.Levels[i]; a == lua.TokenBucket || x.Terms.Period == period {
				x.CapUntil, x.RateUntil = l.CapUntil, l.RateUntil
			}
		}
	}
	return nil
}

// put enters a lease's record.
func (b *Bucket) put(lease string, r lua.Record) {
	old := b.Records[lease]
	b.out, b.wants, b.latest = b.out+r.Out-old.Out, b.wants+r.Want-old.Want, max(b.latest, r.End)
	b.Records[lease] = r
}

// clock is the time of a bucket at a time of the server's clock, and how far it then is ahead of
// that clock. The bucket waits out a small step back. It believes a large one, and makes up for it.
func (b *Bucket) clock(server int64) (now, behind int64) {
	behind = b.Behind
	if b.Last-server-behind > lua.MaxBack.Microseconds() {
		behind = b.Last - server
	}
	return max(server+behind, b.Last), behind
}

// level is the level of a call's i-th limit. A limit that is new is as full as what is out leaves
// room.
func (b *Bucket) level(a lua.Algorithm, i int, l lua.Limit) Level {
	if a == lua.TokenBucket && len(b.Levels) > 0 {
		return b.Levels[i]
	}
	for _, x := range b.Levels {
		if x.Terms.Period == l.Period {
			return x
		}
	}
	return Level{
		Tokens: float64(l.Cap - b.Escrow), Terms: Terms{Cap: l.Cap, Tokens: l.Tokens, Period: l.Period, Most: l.Cap},
	}
}

// limit is what governs a level.
func (l *Level) limit() lua.Limit {
	return lua.Limit{Cap: l.Terms.Cap, Tokens: l.Terms.Tokens, Period: l.Terms.Period}
}

// Check reports what a bucket says of itself that cannot be. limits are those that its last writer
// knew, because it debited no other.
func (b *Bucket) Check(a lua.Algorithm, limits ...lua.Limit) (f Finding) {
	if !b.Exists {
		return f
	}
	f.Is(b.out > b.Escrow, float64(b.out-b.Escrow), "more is out by the records than is in escrow")
	for i, limit := range limits {
		level := b.level(a, i, limit)
		room := max(float64(level.Terms.Cap-b.Escrow), floor(level.limit(), 0))
		f.Is(level.Tokens > room+Rounding, level.Tokens-room, "level + escrow is more than the burst")
	}
	return f
}

// Missing is how many tokens a bucket that nobody asks lacks, at a time of its clock, until it is
// as full as a new one for every caller. Then it may be forgotten, unless a lease lives.
func (b *Bucket) Missing(now int64, c *lua.Call) (tokens float64, forgettable bool) {
	forgettable = true
	for _, r := range b.Records {
		forgettable = forgettable && r.End <= now
	}
	for i, limit := range c.Limits() {
		l := b.level(c.Algorithm, i, limit)
		lacks := float64(max(l.Terms.Most, limit.Cap)) - l.Tokens - l.brings(now-b.Last)
		tokens = max(tokens, lacks)
	}
	return tokens, forgettable && tokens <= Rounding
}

// floor is the lowest that a level gets: debt below is forgiven. It lies one second of refill below
// -cap, or below -maxDebt if that is lower.
func floor(l lua.Limit, maxDebt int64) float64 {
	return -float64(max(l.Cap, maxDebt)) - min(math.Floor(float64(l.Tokens)*1e6/float64(l.Period)), lua.MostTokens)
}

// ParseRecord reads a record. It reports false if the text is none.
func ParseRecord(text string) (r lua.Record, ok bool) {
	to := []*int64{&r.Seq, &r.Grant, &r.Out, &r.Want, &r.End, &r.Debt}
	if parseNumbers(text, "|", to) != len(to) {
		return lua.Record{}, false
	}
	return r, true
}

// Terms is the limit that governs a token bucket. It is the field r.
type Terms struct {
	Cap, Tokens, Period int64
	Most                int64 // the largest cap ever, ≥ Cap
}

// ParseTerms reads cap/tokens/period, and /most if that is larger than cap. It reports false if the
// text is something else.
func ParseTerms(text string) (t Terms, ok bool) {
	n := parseNumbers(text, "/", []*int64{&t.Cap, &t.Tokens, &t.Period, &t.Most})
	if n < 3 || n == 4 && t.Most <= t.Cap || t.Period == 0 {
		return Terms{}, false
	}
	t.Most = max(t.Most, t.Cap)
	return t, true
}

// parseNumbers reads whole numbers that a script takes, at most as many as there is room for, and
// reports how many there are: 0 if the text is something else.
func parseNumbers(text, separator string, to []*int64) int {
	parts := strings.Split(text, separator)
	if len(parts) > len(to) {
		return 0
	}
	for i, part := range parts {
		x, err := strconv.ParseInt(part, 10, 64)
		if err != nil || x < 0 || x >= lua.Whole {
			return 0
		}
		*to[i] = x
	}
	return len(parts)
}
