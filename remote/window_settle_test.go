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

// Refunds and debts of windows count once, in their own window and epoch, and make nothing fuller than full or
// emptier than empty.
func TestWindowsSettle(t *testing.T) {
	for _, a := range []lua.Algorithm{lua.FixedWindow, lua.SlidingWindow} {
		for _, e := range []*engine{memoryEngine(), realEngine(t)} {
			c := of(a, "settles", 10, minute, sec)
			start := (scriptStart/minute + 1) * minute
			now := start
			level := func(want int64, why string) {
				t.Helper()
				if x := e.at(t, now, c); x.err != "" || x.reply.Level != want {
					t.Errorf("%s, algorithm %d, %s: level %d, want %d (%v)", e.name, a, why, x.reply.Level, want, x.err)
				}
			}
			seq := int64(0)
			tell := func(change func(c *lua.Call)) lua.Reply {
				t.Helper()
				seq++
				x := settling(c, seq, change)
				x.Ack = seq - 1
				r := e.at(t, now, x)
				if r.err != "" {
					t.Fatalf("%s: %v", e.name, r)
				}
				return r.reply
			}
			took := e.at(t, now, take(c, 5)).reply
			now += sec / 2
			refund := func(n, at, epoch, deadline int64) {
				tell(func(c *lua.Call) { c.Refund, c.At, c.Epoch, c.Deadline = n, at, epoch, deadline })
			}
			refund(2, took.Stamp, took.Epoch+1, now+1)
			level(5, "a refund of another epoch")
			refund(2, took.Stamp-minute*2, took.Epoch, now+1)
			level(5, "a refund of a window that is over")
			refund(2, took.Stamp, took.Epoch, now+sec+1)
			level(5, "a refund whose copies could outlive the record")
			refund(2, took.Stamp, took.Epoch, now+sec)
			level(7, "a refund")
			refund(50, took.Stamp, took.Epoch, now+sec)
			level(10, "more than counts")

			debt := func(n, since int64) { tell(func(c *lua.Call) { c.Debt, c.Since = n, since }) }
			debt(4, now-2*minute)
			level(10, "a debt of a window that is over")
			debt(4, now)
			level(6, "a debt")
			// Its reply was lost: it is told again, and counts as charged.
			seq++
			again := settling(c, seq, func(c *lua.Call) { c.Debt, c.Since = 4, now })
			again.Ack = seq - 2
			e.at(t, now, again)
			level(6, "a debt that is told again")
			debt(50, now)
			level(0, "full, and not fuller")

			tell(func(c *lua.Call) { c.Reset, c.Deadline = now, now+sec })
			level(10, "reset")
			lease := settling(take(c, 6), 1, func(c *lua.Call) { c.Lease = "B" })
			e.at(t, now, lease)
			e.at(t, now, take(c, 2))
			tell(func(c *lua.Call) { c.Reset, c.Deadline = now, now+sec })
			level(4, "a reset leaves what is out in leases")
		}
	}
}

// A reset forgets what a lease that has ended held, whether its record is due to be swept or not. So what its holder brings
// back later does not come off what was taken since.
func TestResetForgetsAnEndedLease(t *testing.T) {
	for _, a := range []lua.Algorithm{lua.FixedWindow, lua.SlidingWindow} {
		for _, e := range []*engine{memoryEngine(), miniEngine(t), realEngine(t)} {
			c := of(a, "ended", 10, minute, sec)
			now := (scriptStart/minute + 1) * minute
			call := func(x lua.Call) lua.Reply {
				t.Helper()
				r := e.at(t, now, x)
				if r.err != "" {
					t.Fatalf("%s: %v", e.name, r)
				}
				return r.reply
			}
			call(settling(take(c, 1), 1, func(c *lua.Call) { c.Lease = "C" }))
			now += sec / 5
			call(settling(take(c, 4), 1, func(c *lua.Call) { c.Lease = "B" }))
			now += sec * 15 / 20
			call(settling(take(c, 2), 1, func(c *lua.Call) { c.Lease = "D" }))
			now += sec / 20
			call(take(c, 1)) // sweeps C, and again at 1.5 s
			now += sec * 3 / 10
			call(settling(c, 1, func(c *lua.Call) { c.Reset, c.Deadline = now, now+sec }))
			left := call(c).Level
			if left != 8 {
				t.Errorf("%s, algorithm %d: after a reset %d are left, and 2 of 10 are leased", e.name, a, left)
			}
			call(take(c, left))
			call(settling(c, 2, func(c *lua.Call) { c.Lease, c.Ack, c.Ret = "B", 1, 4 }))
			call(settling(c, 3, func(c *lua.Call) { c.Lease, c.Ack, c.Hold = "B", 1, 4 })) // and a late one that held
			if now := call(c).Level; now > 0 {
				t.Errorf("%s, algorithm %d: %d of 10 are taken, and %d are left", e.name, a, left, now)
			}
		}
	}
}

// The room of an ended lease fills in each of several buckets from the lease's end on, not for the time in which
// what filled it could be spent: else a holder who spends late and whoever comes at the end have more than the
// burst together.
func TestBucketsRoomOfAnEndedLease(t *testing.T) {
	for _, e := range engines(t) {
		c := of(lua.TokenBuckets, "room", 2, 2*sec, 0)
		c.Also = []lua.Limit{{Cap: 4, Tokens: 3, Period: 3 * sec}}
		c.TTL = 2 * sec
		at := func(now int64, c lua.Call, grant, level int64) {
			t.Helper()
			if a := e.at(t, scriptStart+now, c); a.err != "" || a.reply.Grant != grant || a.reply.Level != level {
				t.Errorf("%s, after %d µs: %v, want %d granted and %d left", e.name, now, a, grant, level)
			}
		}
		at(0, settling(take(c, 2), 1, func(c *lua.Call) { c.Lease = "A" }), 2, 0)
		at(2*sec, take(c, 1), 0, 0) // it ends
		at(2*sec+999_999, take(c, 1), 0, 0)
		at(3*sec, take(c, 1), 1, 0)
		at(4*sec, take(c, 2), 0, 1)
		fields := e.lookAt(t, c.Algorithm, c.Bucket).fields
		if first, second := fields["l2000000"], fields["l3000000"]; first != "0" || second != "2" { // as written at 3 s
			t.Errorf("%s: levels %s and %s, want 0 and 2", e.name, first, second)
		}
	}
}

// Tokens of a sliding window's lease count in the block in which the lease ends, for they may be spent until then.
func TestLeaseCountsWhereItEnds(t *testing.T) {
	for _, e := range engines(t) {
		c := of(lua.SlidingWindow, "ends", 10, minute, sec)
		c.TTL = 10 * sec
		start := (scriptStart/minute + 1) * minute
		e.at(t, start, settling(take(c, 6), 1, func(c *lua.Call) { c.Lease = "A" }))
		for _, x := range []struct{ after, level int64 }{
			{0, 4},
			{minute + sec, 4},
			{minute + 11*sec - 1, 4},
			{minute + 11*sec, 10},
		} {
			if a := e.at(t, start+x.after, c); a.err != "" || a.reply.Level != x.level {
				t.Errorf("%s, after %d µs: %v, want %d left", e.name, x.after, a, x.level)
			}
		}
	}
}

// A call that settles and takes directly settles as any other, and what it is granted counts now and is in no
// lease: nothing of it is undone, repeated, wanted or held.
func TestSettlesAndTakesAtOnce(t *testing.T) {
	for _, e := range []*engine{memoryEngine(), realEngine(t)} {
		c := of(lua.SlidingWindow, "at once", 10, sec, sec/4)
		now := (scriptStart/sec + 1) * sec
		took := e.at(t, now, take(c, 4)).reply
		call := func(seq int64, change func(c *lua.Call)) lua.Reply {
			t.Helper()
			x := take(c, 3)
			x.Lease, x.Seq, x.Ack, x.To, x.TTL = "A", seq, seq-1, 1, 5*sec
			change(&x)
			a := e.at(t, now, x)
			if a.err != "" {
				t.Fatalf("%s: %v", e.name, a)
			}
			return a.reply
		}
		settles := func(c *lua.Call) { c.Refund, c.At, c.Epoch, c.Deadline = 4, took.Stamp, took.Epoch, now+sec }
		if r := call(1, settles); r.Grant != 3 || r.Level != 7 || r.Active != 0 || r.TTLLeft != 5*sec {
			t.Errorf("%s: %+v", e.name, r)
		}
		if r := call(1, settles); r.Code != lua.Replay || r.Grant != 0 || r.Level != 7 {
			t.Errorf("%s, repeated: %+v", e.name, r)
		}
		if r := call(2, func(c *lua.Call) { c.Ack = 0 }); r.Grant != 3 || r.Level != 4 {
			t.Errorf("%s, whose reply was lost: %+v", e.name, r)
		}
		now += sec + sec/4
		if r := call(3, func(c *lua.Call) { c.Want, c.Min = 0, 0 }); r.Level != 10 {
			t.Errorf("%s: level %d when it has left, want 10", e.name, r.Level)
		}
	}
}

// A lease may outlive what a limit counts, where it was taken under another. Its tokens count until the window
// after its end, a refusal says so once they cannot come back, and nothing of it is left behind.
func TestLeaseThatOutlivesItsWindow(t *testing.T) {
	for _, e := range []*engine{memoryEngine(), realEngine(t)} {
		c := of(lua.SlidingWindow, "outlived", 10, 1000, 250) // 1 ms
		now := (scriptStart/sec + 1) * sec
		e.at(t, now, take(c, 1))
		held := settling(c, 2, func(c *lua.Call) { c.Hold, c.Ack, c.TTL = 8, 1, sec })
		if a := e.at(t, now, held); a.reply.Level != 1 || a.reply.TTLLeft != sec {
			t.Fatalf("%s: %v", e.name, a)
		}
		end := now + sec
		for _, at := range []struct{ now, told int64 }{
			{now + 1, end - sec/4}, {now + 2000, end - sec/4}, {end - sec/8, end}, {end - 1, end}, {end, end + 1250}, {end + 1000, end + 1250},
		} {
			a := e.at(t, at.now, take(c, 3))
			if a.reply.Code != lua.Denied || at.now+a.reply.Retry != at.told {
				t.Errorf("%s, %d µs before its end: %v, want to hear of %d", e.name, end-at.now, a, at.told-at.now)
			}
		}
		if a := e.at(t, end+1250, take(c, 10)); a.reply.Code != lua.Granted {
			t.Errorf("%s, when it has left: %v", e.name, a)
		}
		if left := e.lookAt(t, lua.SlidingWindow, c.Bucket).fields; len(left) > 13 {
			t.Errorf("%s: left behind %v", e.name, left)
		}
	}
}
