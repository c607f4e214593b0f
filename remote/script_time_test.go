package remote_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// TestServerTime: who tells no time is answered by the engine's own clock, to the µs, and deadlines
// are held against it. What else a call does is the same for any clock.
func TestServerTime(t *testing.T) {
	for _, e := range engines(t) {
		for a := range lua.Algorithm(lua.Algorithms) {
			for _, lease := range []string{"", "A"} { // direct takes go in the short form
				c := take(of(a, fmt.Sprintf("{time/%d%s}", a, lease), 5, minute, sec), 1)
				c.Lease = lease
				last := int64(0)
				for i, late := range []time.Duration{-time.Minute, time.Second, 0} {
					begun := time.Now()
					if c.Seq, c.Deadline = int64(i+1), 0; late != 0 {
						c.Deadline = begun.Add(-late).UnixMicro()
					}
					got := e.call(t, c)
					r, after := got.reply, time.Now().UnixMicro()
					if got.err != "" || r.Now < begun.UnixMicro()-1000 || r.Now > after+1000 || r.Now < last {
						t.Errorf("%s, algorithm %d%s: %v after %d; it is %d", e.name, a, lease, got, last, after)
					}
					if late < 0 && (r.Flags&lua.Created == 0 || r.Epoch != r.Now) || (late > 0) != (r.Code == lua.Late) {
						t.Errorf("%s, algorithm %d%s, %v late: %v", e.name, a, lease, late, got)
					}
					last = r.Now
				}
			}
		}
	}
}

// TestServerForgets lets a key's time to live run out by the engine's own clock: the bucket is
// there as long as was promised, and then a new one is, full and of another epoch. It takes the
// second of margin that a key is given.
func TestServerForgets(t *testing.T) {
	all := engines(t)
	all[1].mini.ClockTTL(true)
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			c := lua.Call{
				Bucket: "{time/end}tb2", Cap: 10, Tokens: 1, Period: 1000, TTL: 1000, Fleet: 1,
				Lease: "A", Seq: 1, Want: 10,
			}
			a := e.call(t, c)
			if a.reply.Grant != 10 || a.reply.Flags != lua.Created {
				t.Fatal(a)
			}
			began := time.Now()
			until := began.UnixMilli() + e.look(t, c.Bucket).pttl
			for e.look(t, c.Bucket).fields != nil {
				if time.Since(began) > 30*time.Second {
					t.Fatalf("the key is still there, its end was %d ms ago", time.Now().UnixMilli()-until)
				}
				time.Sleep(time.Millisecond) // a real clock: there is nothing else to wait on
			}
			// 1 ms, as Memory counts whole ms of a clock of its own.
			if early := until - time.Now().UnixMilli(); early > 1 {
				t.Errorf("the key is gone %d ms before its end", early)
			}
			c.Seq, c.Ack, c.Epoch = 2, 1, a.reply.Epoch
			a = e.call(t, c)
			r := a.reply
			if r.Grant != 10 || r.Flags != lua.Created|lua.OtherEpoch|lua.Unrecorded || r.Epoch != r.Now ||
				r.Now <= c.Epoch {
				t.Errorf("after the end: %v", a)
			}
		})
	}
}
