package remote_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// settling is a call with a lease id that asks for nothing.
func settling(c lua.Call, seq int64, change func(c *lua.Call)) lua.Call {
	c.Lease, c.Seq = "A", seq
	change(&c)
	return c
}

// What a log is told to be, it is, however often it is told: an entry gets its cost and never a higher one, only in
// its epoch, and never a debt of the same microsecond in its place; a debt counts once, where it was admitted, as
// far as there is room.
func TestLogSettles(t *testing.T) {
	for _, e := range []*engine{memoryEngine(), realEngine(t)} {
		c := of(lua.SlidingLog, "settles", 10, minute, 0)
		now := scriptStart
		level := func(want int64, why string) {
			t.Helper()
			if a := e.at(t, now, c); a.err != "" || a.reply.Level != want {
				t.Errorf("%s, %s: level %d, want %d (%v)", e.name, why, a.reply.Level, want, a.err)
			}
		}
		do := func(change func(c *lua.Call)) lua.Reply {
			t.Helper()
			x := c
			change(&x)
			a := e.at(t, now, x)
			if a.err != "" {
				t.Fatalf("%s: %v", e.name, a)
			}
			return a.reply
		}
		first := do(func(c *lua.Call) { c.Want, c.Min = 5, 5 })
		now += 10 * sec
		to := func(cost, epoch int64) { do(func(c *lua.Call) { c.At, c.To, c.Epoch = first.Stamp, cost, epoch }) }
		to(3, first.Epoch+1)
		level(5, "of another epoch")
		to(3, first.Epoch)
		to(3, first.Epoch)
		level(7, "settled twice")
		to(9, first.Epoch)
		level(7, "never higher")

		seq := int64(0)
		debt := func(n, since int64) {
			do(func(c *lua.Call) {
				seq++
				*c = settling(*c, seq, func(c *lua.Call) { c.Debt, c.Since = n, since })
			})
		}
		debt(2, first.Stamp)
		debt(2, first.Stamp)
		level(5, "a debt, told twice")
		to(0, first.Epoch)
		level(8, "the entry and not the debt of its microsecond")
		to(0, first.Epoch)
		level(8, "and never the debt")
		debt(50, now-sec)
		level(0, "full, and not fuller")
		debt(3, now-minute)
		level(0, "a debt of what has left")
		now = first.Stamp + minute
		level(2, "the first debt has left, where it was admitted")
		late := do(func(c *lua.Call) { c.Want, c.Min, c.Deadline = 1, 1, now })
		if late.Code != lua.Late {
			t.Errorf("%s: at its deadline: %+v", e.name, late)
		}
		level(2, "a late call")
		do(func(c *lua.Call) {
			seq++
			*c = settling(*c, seq, func(c *lua.Call) { c.Reset = first.Stamp + 5*sec })
		})
		level(2, "reset to before the debt")
		do(func(c *lua.Call) { seq++; *c = settling(*c, seq, func(c *lua.Call) { c.Reset = now }) })
		level(10, "reset")
	}
}
