package lua_test

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// number draws what a field may hold, more often a small one.
func number(t *rapid.T, name string) int64 {
	return rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, lua.Whole-1)).Draw(t, name)
}

// drawCall draws a call that says something with every field that its algorithm has a use for.
func drawCall(t *rapid.T) lua.Call {
	c := lua.Call{Bucket: "b", Algorithm: lua.Algorithm(rapid.IntRange(0, lua.Algorithms-1).Draw(t, "algorithm")), Fleet: 1}
	limit := func() (l lua.Limit) {
		l.Cap, l.Period = number(t, "cap"), number(t, "period")
		switch c.Algorithm {
		case lua.TokenBucket, lua.TokenBuckets:
			l.Tokens = number(t, "tokens")
		case lua.SlidingWindow:
			l.Span = number(t, "span")
		}
		return l
	}
	first := limit()
	c.Cap, c.Tokens, c.Period, c.Span = first.Cap, first.Tokens, first.Period, first.Span
	switch c.Algorithm {
	case lua.FixedWindow:
		c.Phase = number(t, "phase")
	case lua.SlidingWindow, lua.TokenBuckets:
		for range rapid.IntRange(0, lua.MostLimits-1).Draw(t, "also") {
			c.Also = append(c.Also, limit())
		}
	}
	c.Want, c.Min, c.TTL = number(t, "want"), number(t, "min"), number(t, "ttl")
	c.Deadline, c.Epoch, c.Now = number(t, "deadline"), number(t, "epoch"), number(t, "now")
	c.MaxDebt = number(t, "max debt")
	if rapid.Bool().Draw(t, "leased") {
		c.Lease, c.Fleet = rapid.StringN(1, 8, -1).Draw(t, "lease"), number(t, "fleet")
		for _, x := range []*int64{&c.Seq, &c.Ack, &c.Hold, &c.Ret, &c.Refund, &c.Debt, &c.Owed, &c.Seen} {
			*x = number(t, "lease field")
		}
		if c.Algorithm != lua.TokenBucket {
			c.At, c.To, c.Since, c.Reset = number(t, "at"), number(t, "to"), number(t, "since"), number(t, "reset")
		}
	}
	return c
}

func texts(args []any) (argv []string) {
	for _, a := range args {
		argv = append(argv, fmt.Sprint(a))
	}
	return argv
}

// What is sent says all of the call, in both forms; and what is borrowed from another call changes
// nothing.
func TestArgumentsSayAll(t *testing.T) {
	var before []any
	rapid.Check(t, func(t *rapid.T) {
		c := drawCall(t)
		sent := c.Arguments(nil, before)
		if !reflect.DeepEqual(sent, c.Arguments(nil, nil)) {
			t.Fatalf("%+v: %v, and like %v: %v", c, c.Arguments(nil, nil), before, sent)
		}
		if n := c.ArgumentCount(); len(sent) != n {
			t.Fatalf("%+v: %d arguments, room for %d", c, len(sent), n)
		}
		for _, args := range [][]any{sent, c.LongArguments()} {
			got, ok := lua.ParseCall(c.Algorithm, c.Bucket, texts(args))
			if !ok || !reflect.DeepEqual(got, c) {
				t.Fatalf("%+v\nis sent as %v\nand read as %+v, %t", c, args, got, ok)
			}
		}
		before = sent
	})
}
