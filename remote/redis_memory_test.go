package remote_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// What goes to Redis and comes from it is what Call and Reply say, field by field: Memory, which
// has no arguments to confuse, answers the same.
func TestRedisAnswersAsMemory(t *testing.T) {
	server := redistest.Start(t)
	s, memory := openStore(t, server.URL()), remote.NewMemory()
	warm(t, s)
	codes, check := map[lua.Code]int{}, 0
	rapid.Check(t, func(t *rapid.T) {
		check++
		now, epoch, seq := int64(1_763_640_000_000_000), int64(0), int64(0)
		for range rapid.IntRange(1, 12).Draw(t, "calls") {
			small := func(name string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name) }
			now += small("after", 300_000)
			seq = max(1, seq+small("step", 3)-1)
			c := lua.Call{
				Cap: 90 + small("cap", 3), Tokens: 1 + small("tokens", 100), Period: 1_000_000 + small("period", 5),
				Want: small("want", 40), TTL: 500_000 + small("ttl", 9), Fleet: 1 + small("fleet", 3), Epoch: epoch,
				Now: now,
			}
			if c.Min = min(small("min", 5), c.Want); small("never", 20) == 20 {
				c.Want, c.Min = 100, 99
			}
			if rapid.Bool().Draw(t, "leased") {
				c.Lease = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "lease")
				c.Seq, c.Ack = seq, max(0, seq-1-small("ack", 2))
				c.Refund, c.Deadline = small("refund", 7), now+small("deadline", 200_000)
				c.Debt, c.Since = small("debt", 20), now
				c.Owed, c.Seen = min(small("owed", 9), c.Debt), 1<<40+small("seen", 30)
				if rapid.Bool().Draw(t, "returns") {
					c.Ret = small("ret", 30)
				} else {
					c.Hold = small("hold", 30)
				}
			}
			var got, want [1]remote.Result
			c.Bucket = s.Key("test", fmt.Sprint(check))
			s.Run(t.Context(), patience, []lua.Call{c}, got[:])
			memory.Run(t.Context(), patience, []lua.Call{c}, want[:])
			// this seq was executed with other numbers: no process does that
			if want[0].Err == nil && !want[0].Reply.Answers(&c) {
				want[0] = remote.Result{Err: remote.ErrShape}
			}
			var a, b *remote.ScriptError
			if errors.As(got[0].Err, &a) && errors.As(want[0].Err, &b) && a.Text == b.Text {
				continue
			}
			if got != want {
				t.Fatalf("%+v:\nredis  %+v\nmemory %+v", c, got[0], want[0])
			}
			if got[0].Err != nil {
				continue
			}
			codes[got[0].Reply.Code]++
			epoch = got[0].Reply.Epoch
		}
	})
	t.Log(codes)
	if testing.Short() { // a fifth of the checks: chance alone may leave one out
		return
	}
	for code := lua.Granted; code <= lua.Late; code++ {
		if codes[code] == 0 {
			t.Errorf("code %d did not come up", code)
		}
	}
}
