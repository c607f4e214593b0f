package remote_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A reply says when a refund or a reset came to nothing although what it is for may still count, and a replay says
// what its first execution did, however much later it is asked.
func TestUnappliedIsTold(t *testing.T) {
	const none, done, left = lua.Flags(0), 2, 0 // tokens that come back
	type test struct {
		name   string
		change func(c *lua.Call, took lua.Reply)
		flag   lua.Flags
		back   int64
	}
	refund := func(deadline, epoch, at int64) func(c *lua.Call, took lua.Reply) {
		return func(c *lua.Call, took lua.Reply) {
			c.Refund, c.At, c.Epoch = 2, took.Stamp+at, took.Epoch+epoch
			if deadline > 0 {
				c.Deadline = c.Now + deadline
			}
		}
	}
	reset := func(deadline int64) func(c *lua.Call, took lua.Reply) {
		return func(c *lua.Call, took lua.Reply) {
			if c.Reset = c.Now; deadline > 0 {
				c.Deadline = c.Now + deadline
			}
		}
	}
	dated := []test{
		{"a refund", refund(sec, 0, 0), none, done},
		{"a refund without a deadline", refund(0, 0, 0), lua.Unapplied, left},
		{"a refund whose copies could outlive the record", refund(sec+1, 0, 0), lua.Unapplied, left},
	}
	resets := []test{
		{"a reset", reset(sec), none, 5},
		{"a reset without a deadline", reset(0), lua.Unapplied, left},
		{"a reset whose copies could outlive the record", reset(sec + 1), lua.Unapplied, left},
	}
	stamped := []test{
		{"a refund of another epoch", refund(sec, 1, 0), lua.Unapplied, left},
		{"a refund of what is over", refund(sec, 0, -3*minute), none, left},
	}
	settle := func(epoch int64) func(c *lua.Call, took lua.Reply) {
		return func(c *lua.Call, took lua.Reply) { c.At, c.To, c.Epoch = took.Stamp, 3, took.Epoch+epoch }
	}
	for a, tests := range map[lua.Algorithm][][]test{
		lua.TokenBucket:   {dated},
		lua.TokenBuckets:  {dated, resets, {{"a refund of another epoch", refund(sec, 1, 0), none, done}}},
		lua.SlidingWindow: {dated, resets, stamped},
		lua.FixedWindow: {
			dated, resets, stamped,
			{{"a refund of a window to come", refund(sec, 0, minute), lua.Unapplied, left}},
		},
		lua.SlidingLog: {{
			{"settling", settle(0), none, done},
			{"settling in another epoch", settle(1), lua.Unapplied, left},
			{"a reset", reset(0), none, 5}, // states what is to be, so it needs no deadline
		}},
	} {
		for _, e := range engines(t) {
			for _, some := range tests {
				for i, test := range some {
					c := of(a, test.name, 10, minute, sec)
					c.Tokens, c.Period = 1, minute // refills next to nothing
					if a == lua.SlidingWindow {
						c.Period, c.Tokens = sec, 0
					}
					now := (scriptStart/minute + int64(i) + 1) * minute
					at := func(c lua.Call) lua.Reply {
						t.Helper()
						r := e.at(t, now, c)
						if r.err != "" {
							t.Fatalf("%s, algorithm %d, %s: %v", e.name, a, test.name, r)
						}
						return r.reply
					}
					took := at(take(c, 5))
					call := settling(c, 1, func(c *lua.Call) { c.Now = now; test.change(c, took) })
					r := at(call)
					if r.Flags&lua.Unapplied != test.flag || r.Level != 5+test.back {
						t.Errorf("%s, algorithm %d, %s: %+v, want flag %d and %d back", e.name, a, test.name, r,
							test.flag, test.back)
					}
					for range 2 {
						now += sec/2 - 1
						if again := at(call); again.Code == lua.Replay && again.Flags&lua.Unapplied != test.flag {
							t.Errorf("%s, algorithm %d, %s: a replay says %+v", e.name, a, test.name, again)
						} else if a != lua.SlidingLog && again.Code != lua.Replay && call.Deadline > now {
							t.Errorf("%s, algorithm %d, %s: %+v", e.name, a, test.name, again)
						}
					}
					if e.memory != nil {
						e.memory.Del(c.Bucket)
					} else {
						e.client.Del(t.Context(), c.Bucket)
					}
				}
			}

			// There is nothing to refund to: of a level it goes nowhere either, for what is absent is full.
			c := of(a, "absent", 10, minute, sec)
			now := (scriptStart/minute + 1) * minute
			call := settling(c, 1, func(c *lua.Call) { c.Refund, c.At, c.Epoch, c.Deadline = 2, now-1, 7, now+sec })
			want := lua.Unapplied
			switch a {
			case lua.TokenBucket, lua.TokenBuckets:
				want = none
			case lua.SlidingLog:
				call.Refund = 0
			}
			if r := e.at(t, now, call); r.err != "" || r.reply.Flags&lua.Unapplied != want || r.reply.Level != 10 {
				t.Errorf("%s, algorithm %d, no key: %v, want flag %d", e.name, a, r, want)
			}
		}
	}
}
