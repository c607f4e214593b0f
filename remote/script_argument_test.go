package remote_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// secret is in every key of these tests, and must be in no error: keys are user names, tokens,
// addresses.
const secret = "s3cret@example.com"

// argumentCall is a valid call in which every argument may be spoiled alone.
func argumentCall(bucket string) lua.Call {
	return lua.Call{
		Bucket: bucket, Cap: 10, Tokens: 1, Period: 1e6, Want: 2, Min: 1, TTL: 1e6, Lease: "A", Seq: 5, Ack: 4, Hold: 1,
		Refund: 1, Debt: 2, Owed: 1, Seen: 1 << 40, Fleet: 2, Deadline: scriptStart + 5e6, Epoch: scriptStart, Since: scriptStart,
		Now: scriptStart + 1e6, MaxDebt: 30,
	}
}

// validCall is one of an algorithm in which every argument may be spoiled alone, on a bucket of its
// own.
func validCall(a lua.Algorithm, bucket string) lua.Call {
	if a == lua.TokenBucket {
		return argumentCall(bucket)
	}
	c := take(of(a, bucket, 5, minute, sec), 1)
	c.Now, c.Lease, c.Seq, c.MaxDebt = scriptStart, "A", 3, 30
	return c
}

// TestBadArgumentText sends what no Go program should: text, fractions, infinities in place of
// every argument. One NaN let in would damage the bucket for everybody, for x < 0 is false of it.
func TestBadArgumentText(t *testing.T) {
	bad := []string{
		"", " ", "x", "1x", "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e400", "-1", "-0.5", "0.5", "1e-9",
		"9007199254740992", "9007199254740993", "1e16", strings.Repeat("9", 400), "\x00", "0x",
	}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for a := range lua.Algorithm(lua.Algorithms) {
			c := validCall(a, fmt.Sprintf("{%s/%d}", secret, a))
			send := func(args []any) string {
				return answerOfCmd(t, a, e.client.EvalSha(t.Context(), a.Script().SHA, []string{c.Bucket}, args...)).err
			}
			args := longArgs(c)
			for i := range args {
				if i < len(args)-1 { // without the last one it is a call
					if got := send(args[:i]); !strings.HasPrefix(got, "RLARG argument") {
						t.Errorf("%s, algorithm %d, %d arguments: %s", e.name, a, i, got)
					}
				}
				for _, text := range bad {
					spoiled := slices.Clone(args)
					spoiled[i] = text
					if got, want := send(spoiled), fmt.Sprintf("RLARG argument %d", i+1); i != 3 && got != want { // a lease id is any text
						t.Errorf("%s, algorithm %d, %.20q: %s, want %s", e.name, a, text, got, want)
					}
				}
			}
			if got := send(args[:23]); got != "RLARG argument 24" {
				t.Errorf("%s, algorithm %d, 23 arguments: %s", e.name, a, got)
			}
			args[21], args[22] = fmt.Sprintf("0x%X", c.Cap), fmt.Sprintf("%d.000", c.Period) // whole numbers all the same
			if got := send(args); got != "" {
				t.Errorf("%s, algorithm %d: %s", e.name, a, got)
			}
		}
	}
}

// TestBadArguments breaks the rules one by one, and several at once, on all engines.
func TestBadArguments(t *testing.T) {
	type rule struct {
		name     string
		argument int // 0: no error
		spoil    func(c *lua.Call)
	}
	direct := func(c *lua.Call) {
		c.Lease, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Owed = "", 0, 0, 0, 0, 0, 0, 0
	}
	all := []rule{
		{"none", 0, func(*lua.Call) {}},
		{"cap 0", 22, func(c *lua.Call) { c.Cap = 0 }},
		{"cap of 2^40", 0, func(c *lua.Call) { c.Cap = 1 << 40 }},
		{"cap above 2^40", 22, func(c *lua.Call) { c.Cap = 1<<40 + 1 }},
		{"period 0", 23, func(c *lua.Call) { c.Period = 0 }},
		{"min above want", 2, func(c *lua.Call) { c.Min = c.Want + 1 }},
		{"ttl 0", 3, func(c *lua.Call) { c.TTL = 0 }},
		{"ttl above 2^50", 3, func(c *lua.Call) { c.TTL = 1<<50 + 1 }},
		{"a dry run", 0, func(c *lua.Call) { c.Seq = 0 }},
		{"ack of this call", 6, func(c *lua.Call) { c.Ack = c.Seq }},
		{"hold of a direct take", 7, func(c *lua.Call) { direct(c); c.Hold = 1 }},
		{"ret beside a hold", 8, func(c *lua.Call) { c.Hold, c.Ret = 1, 1 }},
		{"ret of a direct take", 8, func(c *lua.Call) { direct(c); c.Ret = 1 }},
		{"refund of a direct take", 9, func(c *lua.Call) { direct(c); c.Refund = 1 }},
		{"debt of a direct take", 10, func(c *lua.Call) { direct(c); c.Debt, c.Since = 1, 1 }},
		{"owed above debt", 15, func(c *lua.Call) { c.Owed = c.Debt + 1 }},
		{"fleet 0", 17, func(c *lua.Call) { c.Fleet = 0 }},
		{"debt of no time", 20, func(c *lua.Call) { c.Debt, c.Since = 1, 0 }},
		{"reset of a direct take", 21, func(c *lua.Call) { direct(c); c.Reset = 1 }},
		{"max debt of 2^40", 0, func(c *lua.Call) { c.MaxDebt = 1 << 40 }},
		{"max debt above 2^40", 25, func(c *lua.Call) { c.MaxDebt = 1<<40 + 1 }},
		{"two rules: the lower number", 3, func(c *lua.Call) { c.Fleet, c.TTL, c.Owed = 0, 0, 3 }},
		{"ranges before rules", 17, func(c *lua.Call) { c.Fleet, c.Cap = -1, 0 }},
		{"rules before late and never", 2, func(c *lua.Call) { c.Min, c.Deadline = 99, 1 }},
	}
	more := map[lua.Algorithm][]rule{lua.TokenBucket: {
		{"no rate", 0, func(c *lua.Call) { c.Tokens = 0 }},
		{"to 1", 0, func(c *lua.Call) { c.To = 1 }},
		{"to above 1", 19, func(c *lua.Call) { c.To = 2 }},
		{"hold above 2^40", 7, func(c *lua.Call) { c.Hold = 1<<40 + 1 }},
		{"a reset", 21, func(c *lua.Call) { c.Reset = 1 }},
		{"period above 2^52", 23, func(c *lua.Call) { c.Period = 1<<52 + 1 }},
		{"two limits", 25, func(c *lua.Call) { c.Also = []lua.Limit{{Cap: 1, Tokens: 1, Period: 1}} }},
	}}
	for _, a := range without(lua.OneLevel) {
		more[a] = []rule{{"nine limits", 46, func(c *lua.Call) { c.Also = make([]lua.Limit, 8) }}}
	}
	for a := range lua.Algorithm(lua.Algorithms) {
		if a != lua.SlidingLog {
			more[a] = append(more[a], rule{"a direct take with seq and ack", 0, func(c *lua.Call) { direct(c); c.Seq, c.Ack = 3, 9 }})
		}
		if a == lua.SlidingWindow || a == lua.TokenBuckets { // its fields are named by it
			more[a] = append(more[a], rule{"a limit twice", 26, func(c *lua.Call) {
				c.Also = []lua.Limit{{Cap: 9, Tokens: 9, Period: c.Period, Span: c.Span}}
			}})
		}
		if a == lua.TokenBucket || a == lua.TokenBuckets { // a window has no rate
			more[a] = append(more[a], rule{"rate negative", 24, func(c *lua.Call) { c.Tokens = -1 }},
				rule{"rate 2^53", 24, func(c *lua.Call) { c.Tokens = 1 << 53 }})
		}
	}
	for n, field := range map[int]func(c *lua.Call) *int64{
		22: func(c *lua.Call) *int64 { return &c.Cap },
		23: func(c *lua.Call) *int64 { return &c.Period }, 1: func(c *lua.Call) *int64 { return &c.Want },
		2: func(c *lua.Call) *int64 { return &c.Min }, 3: func(c *lua.Call) *int64 { return &c.TTL },
		5: func(c *lua.Call) *int64 { return &c.Seq }, 6: func(c *lua.Call) *int64 { return &c.Ack },
		7: func(c *lua.Call) *int64 { return &c.Hold }, 8: func(c *lua.Call) *int64 { return &c.Ret },
		9: func(c *lua.Call) *int64 { return &c.Refund }, 10: func(c *lua.Call) *int64 { return &c.Debt },
		11: func(c *lua.Call) *int64 { return &c.Deadline }, 12: func(c *lua.Call) *int64 { return &c.Epoch },
		13: func(c *lua.Call) *int64 { return &c.Now }, 15: func(c *lua.Call) *int64 { return &c.Owed },
		16: func(c *lua.Call) *int64 { return &c.Seen }, 17: func(c *lua.Call) *int64 { return &c.Fleet },
		25: func(c *lua.Call) *int64 { return &c.MaxDebt }, 19: func(c *lua.Call) *int64 { return &c.To },
		18: func(c *lua.Call) *int64 { return &c.At }, 20: func(c *lua.Call) *int64 { return &c.Since },
		21: func(c *lua.Call) *int64 { return &c.Reset },
	} {
		all = append(all,
			rule{fmt.Sprintf("argument %d negative", n), n, func(c *lua.Call) { *field(c) = -1 }},
			rule{fmt.Sprintf("argument %d 2^53", n), n, func(c *lua.Call) { *field(c) = 1 << 53 }})
	}
	for _, e := range engines(t) {
		for a := range lua.Algorithm(lua.Algorithms) {
			for i, r := range slices.Concat(all, more[a]) {
				c := validCall(a, fmt.Sprintf("{%s/%d/%d}", secret, a, i))
				first := c
				first.Hold, first.Refund, first.Debt, first.Owed, first.Seq, first.Ack, first.Now = 0, 0, 0, 0, 1, 0, scriptStart
				e.call(t, first)
				r.spoil(&c)
				before, writes := e.lookAt(t, a, c.Bucket), e.writes(t)
				got, want := e.call(t, c).err, ""
				if r.argument > 0 {
					want = fmt.Sprintf("RLARG argument %d", r.argument)
				}
				if got != want {
					t.Errorf("%s, algorithm %d, %s: %q, want %q", e.name, a, r.name, got, want)
				}
				if want == "" {
					continue
				}
				if d := differs(before, e.lookAt(t, a, c.Bucket), 1000); d != "" || e.writes(t) != writes {
					t.Errorf("%s, algorithm %d, %s was written: %s", e.name, a, r.name, d)
				}
			}
		}
	}
}

// TestDamagedBucket spoils what is stored: the script must say so and leave it for somebody to look
// at.
func TestDamagedBucket(t *testing.T) {
	const bucket = "{" + secret + "}tb2"
	numbers := []string{"", "x", "nan", "-nan", "inf", "-inf", "1e300", "-1e300"}
	type damage struct {
		field, value string // value "-" removes the field
		want         string
	}
	damages := []damage{
		{"v", "tb1", "RLFOREIGN key"},
		{"v", "", "RLFOREIGN key"},
		{"v", "-", "RLFOREIGN key"},
		{"s", "-1", "RLCORRUPT field"},
		{"pA", "x", "RLCORRUPT lease"},
		{"pA", "", "RLCORRUPT lease"},
		{"pA", "1|2|2|2|5", "RLCORRUPT lease"},
		{"pA", "1|2|2|2|5|0|0", "RLCORRUPT lease"},
		{"pA", "1|2|2|2|-5|0", "RLCORRUPT lease"},
		{"pA", "1|2|2|2|nan|0", "RLCORRUPT lease"},
		{"pA", "1|1.5|2|2|5|0", "RLCORRUPT lease"},
		{"pA", "1|2|1|2|5|0", "RLCORRUPT lease"},  // granted more than is out
		{"pA", "1|2|99|2|5|0", "RLCORRUPT lease"}, // out more than the escrow
		{"pA", "1|2|2|99|5|0", "RLCORRUPT lease"}, // wants more than the sum
		{"pB", "x", "RLCORRUPT lease"},            // found by the sweep
	}
	for _, field := range []string{"l", "s", "t", "c", "z", "o", "w", "a", "g", "e"} {
		if field != "s" && field != "z" { // these are left out while they say nothing
			damages = append(damages, damage{field, "-", "RLCORRUPT field"})
		}
		for _, x := range numbers {
			damages = append(damages, damage{field, x, "RLCORRUPT field"})
		}
		if field != "l" && field != "s" { // whole and not negative
			damages = append(damages, damage{field, "-1", "RLCORRUPT field"}, damage{field, "0.5", "RLCORRUPT field"})
		}
	}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for _, d := range damages {
			e.del(t, bucket)
			c := lua.Call{
				Bucket: bucket, Cap: 10, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1, Lease: "A", Seq: 1, Want: 2,
				Now: scriptStart,
			}
			e.call(t, c)
			c.Lease = "B"
			e.call(t, c)
			if d.value == "-" {
				e.hdel(t, bucket, d.field)
			} else if err := e.client.HSet(t.Context(), bucket, d.field, d.value).Err(); err != nil {
				t.Fatal(err)
			}
			before, writes := e.look(t, bucket), e.writes(t)
			c.Lease, c.Seq, c.Now = "A", 2, c.Now+5e6 // sweeps
			if got := e.call(t, c); got.err != d.want {
				t.Errorf("%s, %s = %q: %v, want %s", e.name, d.field, d.value, got, d.want)
			}
			if x := differs(before, e.look(t, bucket), 1000); x != "" || e.writes(t) != writes {
				t.Errorf("%s, %s = %q was written: %s", e.name, d.field, d.value, x)
			}
		}
	}
}

// TestDamagedWindow: so do the other scripts.
func TestDamagedWindow(t *testing.T) {
	e := realEngine(t)
	for _, a := range without(lua.OneLevel) {
		c := take(of(a, fmt.Sprint("damaged", a), 5, minute, sec), 1)
		e.at(t, scriptStart, c)
		if a.Has(lua.Entries) {
			e.client.ZAdd(t.Context(), c.Bucket, redis.Z{Score: 5, Member: "#n"})
		} else {
			e.client.HSet(t.Context(), c.Bucket, "t", "nan")
		}
		before := e.lookAt(t, a, c.Bucket).fields
		if got := e.at(t, scriptStart+1, c); got.err != "RLCORRUPT field" || !maps.Equal(before, e.lookAt(t, a, c.Bucket).fields) {
			t.Errorf("algorithm %d: %v", a, got)
		}
	}
}

// TestForeignKey puts something else where the bucket should be.
func TestForeignKey(t *testing.T) {
	const foreign, wrong = "RLFOREIGN key", "WRONGTYPE "
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for a := range lua.Algorithm(lua.Algorithms) {
			key := fmt.Sprintf("{%s/%d}", secret, a)
			for _, f := range []struct{ command, hash, sorted string }{
				{"HSET " + key + " name value", foreign, wrong},
				{"HSET " + key + " l 3", foreign, wrong},
				{"SET " + key + " value", wrong, wrong},
				{"RPUSH " + key + " value", wrong, wrong},
				{"ZADD " + key + " 1 value", wrong, foreign},
			} {
				e.del(t, key)
				var words []any
				for _, w := range strings.Fields(f.command) {
					words = append(words, w)
				}
				if err := e.client.Do(t.Context(), words...).Err(); err != nil {
					t.Fatal(err)
				}
				want := f.hash
				if a.Has(lua.Entries) {
					want = f.sorted
				}
				writes := e.writes(t)
				c := take(of(a, key, 10, minute, sec), 1)
				for _, lease := range []string{"", "A"} {
					c.Lease, c.Seq = lease, 1
					got := e.call(t, c)
					if !e.refuses(got.err, want) || strings.Contains(got.err, secret) {
						t.Errorf("%s, algorithm %d, %s: %v, want %s…", e.name, a, f.command, got, want)
					}
				}
				if e.writes(t) != writes {
					t.Errorf("%s, algorithm %d, %s was written", e.name, a, f.command)
				}
			}
		}
	}
}
