package remote_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The script has a short way for most direct takes, which must come to the same as the long one. That it does is
// seen by all tests that compare engines, for they send direct takes as production does; here, that it is taken
// when it should be.

// directTake is a call in the short form, on a bucket of 10 that gets a token per second.
func directTake(bucket string, after, want int64) lua.Call {
	return lua.Call{
		Bucket: bucket, Cap: 10, Tokens: 1, Period: 1e6, TTL: 1e6, Fleet: 1, Want: want, Min: want,
		Now:      scriptStart + after,
		Deadline: scriptStart + 1e9,
	}
}

// TestShortWay tells the ways apart by what they write: the server counts fields. The long way writes four each
// time, and five more when the bucket lends. A sweep writes one more, which changes nothing. What else says something is one more: terms that are new, an overflow,
// a clock that was set back. So is the time to live.
func TestShortWay(t *testing.T) {
	e := realEngine(t)
	const long, nothing = 4 + 1, 0
	for _, c := range []struct {
		name   string
		before []lua.Call
		call   lua.Call
		writes int64
		want   lua.Code
	}{
		{"a new bucket: all fields", nil, directTake("", 0, 1), 5 + 1, lua.Granted},
		{
			"one that is there: level and time",
			[]lua.Call{directTake("", 0, 2)},
			directTake("", 1e6, 1), 2 + 1,
			lua.Granted,
		},
		{
			"one that is full: the overflow too",
			[]lua.Call{directTake("", 0, 2)},
			directTake("", 9e6, 10), 3 + 1,
			lua.Granted,
		},
		{"the clock a second back", []lua.Call{directTake("", 0, 2)}, directTake("", -1e6, 1), 2 + 1, lua.Granted},
		{"the clock further back", []lua.Call{directTake("", 0, 2)}, directTake("", -1e6-1, 1), 1 + long, lua.Granted},
		{"not enough", []lua.Call{directTake("", 0, 2)}, directTake("", 0, 9), nothing, lua.Denied},
		{"all that is there", []lua.Call{directTake("", 0, 2)}, min1(directTake("", 0, 9)), long, lua.Granted},
		{"more than the burst", nil, min1(directTake("", 0, 11)), 1 + long, lua.Granted},
		{
			"another rate",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 1), 10, 2, 1e6), 1 + long,
			lua.Granted,
		},
		{
			"another period",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 1), 10, 1, 2e6), 1 + long,
			lua.Granted,
		},
		{
			"another burst",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 1), 11, 1, 1e6), 1 + long,
			lua.Granted,
		},
		{
			"another rate, and not enough",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 9), 10, 2, 1e6), 1 + long, lua.Denied,
		},
		{
			"another rate, and a look",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 0), 10, 2, 1e6),
			1 + long, lua.Granted,
		},
		{
			"another rate, for the second time",
			[]lua.Call{directTake("", 0, 2), limitedTo(directTake("", 0, 1), 10, 2, 1e6)},
			limitedTo(directTake("", 0, 1), 10, 2, 1e6), 2 + 1, lua.Granted,
		},
		{
			"a smaller burst: until when the larger one governs",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 1), 9, 1, 1e6), 1 + long, lua.Granted,
		},
		{
			"a smaller burst, and not enough",
			[]lua.Call{directTake("", 0, 2)},
			limitedTo(directTake("", 0, 9), 9, 1, 1e6), nothing, lua.Denied,
		},
		{
			"beside a smaller burst",
			[]lua.Call{directTake("", 0, 2), limitedTo(directTake("", 0, 1), 9, 1, 1e6)},
			directTake("", 1e6, 1), 2 + 1, lua.Granted,
		},
		{
			"beside a smaller burst, and not enough after half of the hold",
			[]lua.Call{directTake("", 0, 10), limitedTo(directTake("", 1e6, 1), 9, 1, 1e6)},
			directTake("", 6e6+1, 9), long, lua.Denied,
		},
		{
			"a smaller burst that governs",
			[]lua.Call{slowTake(0, 7), limitedTo(slowTake(10e6, 1), 9, 1, 1e9)},
			limitedTo(slowTake(10e6, 1), 9, 1, 1e9), 2 + 1, lua.Granted,
		},
		{"a look", []lua.Call{directTake("", 0, 2)}, directTake("", 0, 0), nothing, lua.Granted},
		{"too late", nil, directTake("", 1e9, 1), nothing, lua.Late},
		{"a bucket that lends", []lua.Call{leaseOf(directTake("", 0, 2))}, directTake("", 0, 1), long, lua.Granted},
		{
			"a bucket whose leases are over",
			[]lua.Call{leaseOf(directTake("", 0, 2))},
			directTake("", 5e6, 1),
			1 + 1 + 4 + 5 + 1 + 1, lua.Granted,
		},
	} {
		bucket := fmt.Sprintf("{short/%s}tb2", c.name)
		for _, b := range c.before {
			b.Bucket = bucket
			if a := e.call(t, b); a.err != "" || a.reply.Grant != b.Want {
				t.Fatalf("%s: %v before", c.name, a)
			}
		}
		before := e.writes(t)
		c.call.Bucket = bucket
		a := e.call(t, c.call)
		if n := e.writes(t) - before; n != c.writes || a.err != "" || a.reply.Code != c.want {
			t.Errorf("%s: %d writes and %v, want %d and code %d", c.name, n, a, c.writes, c.want)
		}
	}
}

// slowTake is a direct take from a bucket that is there for long.
func slowTake(later, n int64) lua.Call { return limitedTo(directTake("", later, n), 10, 1, 1e9) }

// limitedTo is the call by another limit.
func limitedTo(c lua.Call, cap, tokens, period int64) lua.Call {
	c.Cap, c.Tokens, c.Period = cap, tokens, period
	return c
}

func min1(c lua.Call) lua.Call { c.Min = 1; return c }

func leaseOf(c lua.Call) lua.Call { c.Lease, c.Seq = "A", 1; return c }

// TestShortForm sends direct takes in both forms, with text in place of each argument and over each damage to a
// bucket: all that differs is their length.
func TestShortForm(t *testing.T) {
	const bucket = "{" + secret + "}tb2"
	numbers := map[int]int{1: 1, 2: 2, 3: 3, 4: 11, 5: 12, 6: 13, 7: 22, 8: 23, 9: 24, 10: 25} // of the arguments in the long form
	bad := []string{"", "x", "nan", "-nan", "inf", "-1", "0.5", "9007199254740992", "1e400"}
	for _, e := range []*engine{miniEngine(t), realEngine(t)} {
		send := func(args []any) answer {
			return answerOfCmd(t, e.client.EvalSha(t.Context(), lua.TokenBucket.Script().SHA, []string{bucket},
				args...))
		}
		for short, n := range numbers {
			for _, text := range bad {
				c := directTake(bucket, 0, 1)
				c.MaxDebt = 30
				args := shortArgs(c)
				args[short-1] = text
				if got, want := send(args), fmt.Sprintf("RLARG argument %d", n); got.err != want {
					t.Errorf("%s, %q for argument %d: %v, want %s", e.name, text, short, got, want)
				}
			}
		}
		args := shortArgs(directTake(bucket, 0, 1))
		if got := send(args[:7]); len(args) != 9 || got.err != "RLARG argument 23" {
			t.Errorf("%s, 7 arguments of %d: %v", e.name, len(args), got)
		}
		if got := send(append(args, 0, 0)); got.err != "RLARG argument 27" {
			t.Errorf("%s, 11 arguments: %v", e.name, got)
		}
		if e.look(t, bucket).fields != nil {
			t.Fatalf("%s wrote", e.name)
		}
		e.damage(t, directTake(bucket, 0, 1), []string{"v", "l", "s", "t", "c", "z", "r"}, append(bad, "-1e300", "1e300", "0", "7",
			"10/1", "10/1/0", "10/1/1000000/", "10/2/1000000", "1e1/1/1000000", "10/1/1000000/99", "10/1/1000000/9", "10/1/1000000/0",
			"10/1/1000000/-9", "10/2/1000000/99", "10/1/1000000/"+strings.Repeat("9", 400)))
	}
}

// damage takes once, then puts each text into each field, and takes the fields away. The same call in both forms has the same answer
// then, and leaves the same.
func (e *engine) damage(t *testing.T, c lua.Call, fields, texts []string) {
	t.Helper()
	sha := c.Algorithm.Script().SHA
	for _, field := range fields {
		for _, text := range append([]string{"gone"}, texts...) {
			e.del(t, c.Bucket)
			e.call(t, c)
			if text == "gone" {
				e.client.HDel(t.Context(), c.Bucket, field) // it may not be there
			} else if err := e.client.HSet(t.Context(), c.Bucket, field, text).Err(); err != nil {
				t.Fatal(err)
			}
			dump, err := e.client.HGetAll(t.Context(), c.Bucket).Result()
			if err != nil {
				t.Fatal(err)
			}
			var results [2]string
			for i, args := range [][]any{shortArgs(c), longArgs(c)} {
				got := answerOfCmd(t, e.client.EvalSha(t.Context(), sha, []string{c.Bucket}, args...))
				results[i] = fmt.Sprintf("%v, %v", got, e.look(t, c.Bucket).fields)
				e.del(t, c.Bucket)
				if err := e.client.HSet(t.Context(), c.Bucket, dump).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if results[0] != results[1] {
				t.Errorf("%s, field %s %q: short\n\t%s, long\n\t%s", e.name, field, text, results[0], results[1])
			}
		}
	}
}
