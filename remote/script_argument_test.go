package remote_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// secret is in every key of these tests, and must be in no error: keys are user names, tokens, addresses.
const secret = "s3cret@example.com"

// argumentCall is a valid call in which every argument may be spoiled alone.
func argumentCall(bucket string) lua.Call {
	return lua.Call{
		Bucket: bucket, Cap: 10, Tokens: 1, Period: 1e6, Want: 2, Min: 1, TTL: 1e6, Lease: "A", Seq: 5, Ack: 4, Hold: 1,
		Refund: 1, Debt: 2, Owed: 1, Seen: 1 << 40, Fleet: 2, Deadline: scriptStart + 5e6, Epoch: scriptStart, Since: scriptStart,
		Now: scriptStart + 1e6, MaxDebt: 30,
	}
}

// TestBadArgumentText sends what no Go program should: text, fractions, infinities in place of every argument. One NaN
// let in would damage the bucket for everybody, for x < 0 is false of it.
func TestBadArgumentText(t *testing.T) {
	bad := []string{
		"", " ", "x", "1x", "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e400", "-1", "-0.5", "0.5", "1e-9",
		"9007199254740992", "9007199254740993", "1e16", strings.Repeat("9", 400), "\x00", "0x",
	}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		c := argumentCall("{" + secret + "}tb2")
		first := c
		first.Seq, first.Ack, first.Now, first.Epoch = 1, 0, scriptStart, 0
		e.call(t, first)
		before, writes := e.look(t, c.Bucket), e.writes(t)
		for n := 1; n <= 25; n++ {
			if n == 4 { // the lease id is any text
				continue
			}
			for _, text := range bad {
				args := longArgs(c)
				args[n-1] = text
				got := answerOfCmd(t, e.client.EvalSha(t.Context(), lua.TokenBucket.Script().SHA, []string{c.Bucket},
					args...))
				if want := fmt.Sprintf("RLARG argument %d", n); got.err != want {
					t.Errorf("%s, %.20q: %v, want %s", e.name, text, got, want)
				}
			}
		}
		args := longArgs(c)[:23]
		if got := answerOfCmd(t, e.client.EvalSha(t.Context(), lua.TokenBucket.Script().SHA, []string{c.Bucket},
			args...)); got.err !=
			"RLARG argument 24" {
			t.Errorf("%s, 23 arguments: %v", e.name, got)
		}
		if d := differs(before, e.look(t, c.Bucket), 2000); d != "" || e.writes(t) != writes {
			t.Errorf("%s was written: %s", e.name, d)
		}
		// Whole numbers all the same.
		args = longArgs(c)
		args[21], args[22] = "0xA", "1000000.000"
		got := answerOfCmd(t, e.client.EvalSha(t.Context(), lua.TokenBucket.Script().SHA, []string{c.Bucket}, args...))
		if got.err != "" || got.reply.Grant != 2 {
			t.Errorf("%s: %v", e.name, got)
		}
	}
}

// TestBadArguments breaks the rules one by one, and several at once, on all engines.
func TestBadArguments(t *testing.T) {
	const tooMuch = 1 << 53
	type rule struct {
		name     string
		argument int // 0: no error
		spoil    func(c *lua.Call)
	}
	direct := func(c *lua.Call) {
		c.Lease, c.Seq, c.Ack, c.Hold, c.Ret, c.Refund, c.Debt, c.Owed = "", 0, 0, 0, 0, 0, 0, 0
	}
	rules := []rule{
		{"none", 0, func(*lua.Call) {}},
		{"cap 0", 22, func(c *lua.Call) { c.Cap = 0 }},
		{"cap of 2^40", 0, func(c *lua.Call) { c.Cap = 1 << 40 }},
		{"cap above 2^40", 22, func(c *lua.Call) { c.Cap = 1<<40 + 1 }},
		{"no rate", 0, func(c *lua.Call) { c.Tokens = 0 }},
		{"period 0", 23, func(c *lua.Call) { c.Period = 0 }},
		{"min above want", 2, func(c *lua.Call) { c.Min = 3 }},
		{"ttl 0", 3, func(c *lua.Call) { c.TTL = 0 }},
		{"ttl above 2^50", 3, func(c *lua.Call) { c.TTL = 1<<50 + 1 }},
		{"a dry run", 0, func(c *lua.Call) { c.Seq = 0 }},
		{"to 1", 0, func(c *lua.Call) { c.To = 1 }},
		{"to above 1", 19, func(c *lua.Call) { c.To = 2 }},
		{"ack of this call", 6, func(c *lua.Call) { c.Ack = c.Seq }},
		{"hold above 2^40", 7, func(c *lua.Call) { c.Hold = 1<<40 + 1 }},
		{"hold of a direct take", 7, func(c *lua.Call) { direct(c); c.Hold = 1 }},
		{"ret beside a hold", 8, func(c *lua.Call) { c.Ret = 1 }},
		{"ret of a direct take", 8, func(c *lua.Call) { direct(c); c.Ret = 1 }},
		{"refund of a direct take", 9, func(c *lua.Call) { direct(c); c.Refund = 1 }},
		{"debt of a direct take", 10, func(c *lua.Call) { direct(c); c.Debt = 1 }},
		{"debt of no time", 20, func(c *lua.Call) { c.Since = 0 }},
		{"a reset", 21, func(c *lua.Call) { c.Reset = 1 }},
		{"period above 2^52", 23, func(c *lua.Call) { c.Period = 1<<52 + 1 }},
		{"two limits", 25, func(c *lua.Call) { c.Also = []lua.Limit{{Cap: 1, Tokens: 1, Period: 1}} }},
		{"owed above debt", 15, func(c *lua.Call) { c.Owed = 3 }},
		{"fleet 0", 17, func(c *lua.Call) { c.Fleet = 0 }},
		{"max debt of 2^40", 0, func(c *lua.Call) { c.MaxDebt = 1 << 40 }},
		{"max debt above 2^40", 25, func(c *lua.Call) { c.MaxDebt = 1<<40 + 1 }},
		{"a direct take with seq and ack", 0, func(c *lua.Call) { direct(c); c.Seq, c.Ack = 3, 9 }},
		{"two rules: the lower number", 3, func(c *lua.Call) { c.Fleet, c.TTL, c.Owed = 0, 0, 3 }},
		{"ranges before rules", 17, func(c *lua.Call) { c.Fleet, c.Cap = -1, 0 }},
		{"rules before late and never", 2, func(c *lua.Call) { c.Min, c.Deadline = 99, 1 }},
	}
	fields := map[int]func(c *lua.Call) *int64{
		22: func(c *lua.Call) *int64 { return &c.Cap }, 24: func(c *lua.Call) *int64 { return &c.Tokens },
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
	}
	for n, field := range fields {
		rules = append(rules,
			rule{fmt.Sprintf("argument %d negative", n), n, func(c *lua.Call) { *field(c) = -1 }},
			rule{fmt.Sprintf("argument %d 2^53", n), n, func(c *lua.Call) { *field(c) = tooMuch }})
	}
	all := engines(t)
	for i, r := range rules {
		bucket := fmt.Sprintf("{%s/%d}tb2", secret, i)
		c := argumentCall(bucket)
		r.spoil(&c)
		for _, e := range all {
			first := argumentCall(bucket)
			first.Seq, first.Ack, first.Now = 1, 0, scriptStart
			e.call(t, first)
			before, writes := e.look(t, bucket), e.writes(t)
			got := e.call(t, c)
			if r.argument == 0 {
				if got.err != "" {
					t.Errorf("%s on %s: %v", r.name, e.name, got)
				}
				continue
			}
			if want := fmt.Sprintf("RLARG argument %d", r.argument); got.err != want {
				t.Errorf("%s on %s: %v, want %s", r.name, e.name, got, want)
			}
			if d := differs(before, e.look(t, bucket), 1000); d != "" || e.writes(t) != writes {
				t.Errorf("%s on %s was written: %s", r.name, e.name, d)
			}
		}
	}
}

// TestDamagedBucket spoils what is stored: the script must say so and leave it for somebody to look at.
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

// TestForeignKey puts something else where the bucket should be.
func TestForeignKey(t *testing.T) {
	const key = "{" + secret + "}tb2"
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		for _, f := range []struct{ command, want string }{
			{"HSET " + key + " name value", "RLFOREIGN key"},
			{"HSET " + key + " l 3", "RLFOREIGN key"},
			{"SET " + key + " value", "WRONGTYPE "},
			{"RPUSH " + key + " value", "WRONGTYPE "},
			{"ZADD " + key + " 1 value", "WRONGTYPE "},
		} {
			e.del(t, key)
			var words []any
			for _, w := range strings.Fields(f.command) {
				words = append(words, w)
			}
			if err := e.client.Do(t.Context(), words...).Err(); err != nil {
				t.Fatal(err)
			}
			writes := e.writes(t)
			c := lua.Call{Bucket: key, Cap: 10, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1, Want: 1}
			for _, lease := range []string{"", "A"} {
				c.Lease, c.Seq = lease, 1
				got := e.call(t, c)
				if !e.refuses(got.err, f.want) || strings.Contains(got.err, secret) {
					t.Errorf("%s, %s: %v, want %s…", e.name, f.command, got, f.want)
				}
			}
			if e.writes(t) != writes {
				t.Errorf("%s, %s was written", e.name, f.command)
			}
		}
	}
}
