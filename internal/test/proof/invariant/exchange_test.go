package invariant_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// t0 is when the bucket was written last, µs.
const t0 = int64(1_763_640_000_000_000)

func record(seq, grant, out, want, end, debt int64) string {
	return lua.Record{Seq: seq, Grant: grant, Out: out, Want: want, End: t0 + end, Debt: debt}.String()
}

// step is an exchange as the fields of the store before and after it.
type step struct {
	call          lua.Call
	reply         lua.Reply
	before, after map[string]string
	left          time.Duration
	conceded      bool
}

func (s *step) check(t *testing.T) invariant.Finding {
	t.Helper()
	var both [2]invariant.Bucket
	for i, fields := range []map[string]string{s.before, s.after} {
		var err error
		if both[i], err = invariant.Parse(s.call.Algorithm, fields, s.left); err != nil {
			t.Fatal(err)
		}
	}
	own, owned := both[0].Records[s.call.Lease]
	x := invariant.Exchange{
		Call: &s.call, Reply: &s.reply, Before: &both[0], After: &both[1], Own: own, Owned: owned, Conceded: s.conceded,
	}
	return x.Check()
}

func at(us int64) string { return fmt.Sprint(t0 + us) }

// renewal is a call half a second after a bucket of 100, refilled by 10 per second, lent 30: the
// caller holds them, and is granted 20. The refill of 5 finds no room.
func renewal() *step {
	return &step{
		call: lua.Call{
			Cap: 100, Tokens: 10, Period: 1e6, Want: 20, Min: 1, TTL: 1e6, Fleet: 1, Lease: "one", Seq: 2, Ack: 1, Hold: 30,
			Epoch: t0, Deadline: t0 + 700e3,
		},
		reply: lua.Reply{Code: lua.Granted, Grant: 20, Now: t0 + 500e3, Epoch: t0},
		before: map[string]string{
			"l": "70", "o": "30", "w": "30", "t": at(0), "c": at(0), "g": at(1e6), "r": "100/10/1000000",
			"pone": record(1, 30, 30, 30, 1e6, 0),
		},
		after: map[string]string{
			"l": "50", "s": "20480", "o": "50", "w": "20", "t": at(500e3), "c": at(0), "g": at(1e6), "r": "100/10/1000000",
			"pone": record(2, 20, 50, 20, 1500e3, 0),
		},
		left: 6 * time.Second,
	}
}

// taken is a direct take of 5 from the bucket of renewal, when the lease is over: 5 s later.
func taken() *step {
	s := renewal()
	s.call = lua.Call{Cap: 100, Tokens: 10, Period: 1e6, Want: 5, Min: 5, TTL: 1e6, Fleet: 1}
	s.reply = lua.Reply{Code: lua.Granted, Grant: 5, Now: t0 + 2e6, Epoch: t0}
	s.after = map[string]string{ // 20 came; of the 30 that are over, room for 10 since their end
		"l": "75", "s": "40960", "o": "0", "w": "0", "t": at(2e6), "c": at(0), "g": "0", "r": "100/10/1000000",
	}
	return s
}

// remembering is taken where the lease that is over charged a debt of 7, which its holder may
// report again.
func remembering() *step {
	s := taken()
	s.before["pone"] = record(1, 30, 30, 30, 1e6, 7)
	return s.alter("pone", record(1, 0, 0, 0, 1e6, 7))
}

// refused is a direct take of 80 from the bucket of renewal, which has 70.
func refused() *step {
	s := renewal()
	s.call = lua.Call{Cap: 100, Tokens: 10, Period: 1e6, Want: 80, Min: 80, TTL: 1e6, Fleet: 1}
	s.reply = lua.Reply{Code: lua.Denied, Now: t0 + 500e3, Epoch: t0}
	s.after = s.before
	return s
}

// owing is the call of renewal with a debt of 40, of which 10 are owed in any case. Of the rest the
// overflow has paid 5.
func owing() *step {
	s := renewal()
	s.call.Debt, s.call.Owed, s.call.Seen, s.reply.Grant = 40, 10, lua.OverflowStart, 20
	s.after["l"], s.after["pone"] = "15", record(2, 20, 50, 20, 1500e3, 35)
	s.left = 9500 * time.Millisecond
	return s
}

// several is the call of renewal in two buckets. The second has 30 per 2 s and room to spare, so
// nothing is lost.
func several() *step {
	s := renewal()
	s.call.Algorithm, s.call.Also = lua.TokenBuckets, []lua.Limit{{Cap: 200, Tokens: 30, Period: 2e6}}
	for _, fields := range []map[string]string{s.before, s.after} {
		fields["l1000000"], fields["r"], fields["s"] = fields["l"], "1000000:100/10,2000000:200/30", "1099511627776"
		fields["z"] = "0"
		delete(fields, "l")
	}
	s.before["l2000000"], s.after["l2000000"] = "100", "87.5"
	s.left = 9 * time.Second
	return s
}

// alter returns a step with some fields after it changed: name and value in turns; an empty value
// deletes.
func (s *step) alter(fields ...string) *step {
	s.after = maps.Clone(s.after)
	for i := 0; i < len(fields); i += 2 {
		s.after[fields[i]] = fields[i+1]
		if fields[i+1] == "" {
			delete(s.after, fields[i])
		}
	}
	return s
}

func (s *step) but(change func(s *step)) *step {
	change(s)
	return s
}

// Each law is broken, and says so; what keeps them all is not accused.
func TestExchange(t *testing.T) {
	for i, c := range []struct {
		rule string // a part of what is said, empty for nothing
		step *step
	}{
		{"", renewal()},
		{"", taken()},
		{"", remembering()},
		{"", refused()},
		{"", owing()},
		{"", several()},

		{"after its deadline", renewal().but(func(s *step) { s.call.Deadline = t0 + 500e3 })},
		{"late before its deadline", renewal().but(func(s *step) { s.reply.Code = lua.Late })},
		{"stale and is the newest", renewal().but(func(s *step) { s.reply.Code = lua.Stale })},
		{"after a newer one", renewal().but(func(s *step) { s.before["pone"] = record(2, 30, 30, 30, 1e6, 0) })},
		{"forgotten before it was full", renewal().but(func(s *step) { s.reply.Flags = lua.Created })},
		{"not written", renewal().but(func(s *step) { s.after = nil })},

		{"time is not", renewal().alter("t", at(500e3-1))},
		{"time is not", renewal().alter("z", "7")},
		{"does not know the limit", renewal().alter("r", "100/11/1000000")},
		{"does not know the limit", renewal().alter("r", "100/10/1000000/200")},
		{"not the one that it was", renewal().alter("c", at(1))},

		{"is not on record", renewal().alter("pone", "")},
		{"is not on record", renewal().alter("pone", record(1, 20, 50, 20, 1500e3, 0))},
		{"does not cover", renewal().alter("pone", record(2, 20, 49, 20, 1500e3, 0))},
		{"one ttl", renewal().alter("pone", record(2, 20, 50, 20, 1500e3+1, 0))},
		{"wanted and granted", renewal().alter("pone", record(2, 19, 50, 20, 1500e3, 0))},
		{"wanted and granted", renewal().alter("pone", record(2, 20, 50, 21, 1500e3, 0))},
		{"escrow is not", renewal().alter("o", "51")},
		{"wants are not", renewal().alter("w", "50")},
		{"next sweep", renewal().alter("g", at(1500e3))},
		{"still on record", taken().alter("pone", record(1, 30, 30, 30, 1e6, 0))},
		{"still on record", remembering().but(func(s *step) { s.reply.Now += 20e6; s.alter("t", at(22e6), "l", "95") })},
		{"forgotten while it matters", remembering().alter("pone", "")},
		{"forgotten while it matters", remembering().alter("pone", record(1, 0, 30, 0, 1e6, 7))},
		{"before its end", taken().but(func(s *step) { s.before["pone"] = record(1, 30, 30, 30, 3e6, 0) })},
		{"next sweep", taken().alter("g", at(2500e3))},

		{"level is not", renewal().alter("l", "50.00001")},
		{"level is not", renewal().alter("l", "49.99999")},
		{"level is not", taken().alter("l", "85")}, // as if the room had been free all the time
		{"level is not", owing().alter("l", "20")},
		{"overflow is not", renewal().alter("s", "")},
		{"overflow is not", renewal().alter("s", "24576")},
		{"level is not", several().alter("l2000000", "95")},
		{"overflow is not", several().alter("s", "1099511627781")},
		{"holds more", renewal().but(func(s *step) { s.before["pone"], s.before["o"] = record(1, 30, 29, 30, 1e6, 0), "29" })},
		{"the charge differs", owing().alter("l", "10", "pone", record(2, 20, 50, 20, 1500e3, 40))},
		{"the charge differs", owing().alter("l", "40", "pone", record(2, 20, 50, 20, 1500e3, 10))},
		{"the charge differs", renewal().alter("l", "49", "pone", record(2, 20, 50, 20, 1500e3, 1))},

		{"than there was", renewal().but(func(s *step) { s.grants(90, 90, 1) })},
		{"than the least", renewal().but(func(s *step) { s.grants(5, 20, 10) })},
		{"denied what there was", renewal().but(func(s *step) { s.grants(0, 20, 1) }).alter("w", "1", "pone", record(2, 0, 30, 1, 1500e3, 0))},
		{"the caller's part", renewal().but(func(s *step) { s.grants(19, 20, 1) })},
		{"wanted and granted", renewal().but(func(s *step) { s.grants(0, 90, 90) })},
		{"", renewal().but(func(s *step) { s.grants(0, 90, 90) }).alter("w", "1", "pone", record(2, 0, 30, 1, 1500e3, 0))},
		{"denied what there was", refused().but(func(s *step) { s.call.Want, s.call.Min = 69, 69 })},

		{"a key never ends", renewal().but(func(s *step) { s.left = 0 })},
		{"a key ends before", renewal().but(func(s *step) { s.left = 5998 * time.Millisecond })},
		{"", renewal().but(func(s *step) { s.left = invariant.Unseen })},
	} {
		f := c.step.check(t)
		if f.Broken() != (c.rule != "") || !strings.Contains(f.Rule, c.rule) {
			t.Errorf("row %d: want %q, got %v", i, c.rule, f)
		}
	}
}

// grants makes the store grant n of its 70 tokens to a call for want tokens, and at least least.
func (s *step) grants(n, want, least int64) {
	s.call.Want, s.call.Min, s.reply.Grant = want, least, n
	s.alter("l", fmt.Sprint(70-n), "o", fmt.Sprint(30+n), "w", fmt.Sprint(want), "pone", record(2, n, 30+n, want, 1500e3, 0))
	s.left = invariant.Unseen
}

func TestPart(t *testing.T) {
	for _, c := range []struct {
		level                     float64
		want, least, others, gets int64
	}{
		{10, 8, 1, 0, 8},
		{10, 8, 1, 4, 8},
		{10, 8, 1, 12, 6},
		{10, 8, 1, 24, 3},
		{10.9, 8, 1, 32, 3},
		{10, 8, 6, 24, 6},
		{5.9, 8, 6, 12, 0},
		{5, 8, 1, 0, 5},
		{-3, 8, 1, 0, 0},
		{10, 0, 1, 5, 0},
	} {
		if got := invariant.Part(c.level, c.want, c.least, c.others); got != c.gets {
			t.Errorf("of %v %d are wanted, %d at least, and %d by others: %d, want %d", c.level, c.want, c.least, c.others, got, c.gets)
		}
	}
}

// The checks of one bucket find each contradiction in its fields, without knowing which call wrote
// them.
func TestBucket(t *testing.T) {
	limit := lua.Limit{Cap: 100, Tokens: 10, Period: 1e6}
	for _, c := range []struct {
		rule   string
		fields []string
	}{
		{"", nil},
		{"", []string{"o", "51", "l", "49"}}, // a script that broke off leaves it too high
		{"level + escrow", []string{"l", "50.1"}},
		{"level + escrow", []string{"o", "51"}},
		{"more is out", []string{"o", "49"}},
		{"more is out", []string{"ptwo", record(1, 1, 1, 1, 1e6, 0)}},
	} {
		b, err := invariant.Parse(lua.TokenBucket, renewal().alter(c.fields...).after, 0)
		if err != nil {
			t.Fatal(err)
		}
		if f := b.Check(lua.TokenBucket, limit); f.Broken() != (c.rule != "") || !strings.Contains(f.Rule, c.rule) {
			t.Errorf("%v: want %q, got %v", c.fields, c.rule, f)
		}
	}
	for _, damaged := range [][]string{{"l", "many"}, {"l", ""}, {"t", "1.5"}, {"s", "x"}, {"r", "100/10"}, {"pone", "2|20"}} {
		if b, err := invariant.Parse(lua.TokenBucket, renewal().alter(damaged...).after, 0); err == nil {
			t.Errorf("%v is read as %+v", damaged, b)
		}
	}
	if b, err := invariant.Parse(lua.TokenBucket, nil, 0); err != nil || b.Exists {
		t.Errorf("nothing is %+v, %v", b, err)
	}
}
