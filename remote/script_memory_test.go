package remote_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Redis refuses a command that needs memory only while the script has written nothing. A script
// that deletes first would be served by a full Redis, close the breaker, and decide until the next
// call fails.
func TestFullRedisExecutesNothing(t *testing.T) {
	t.Run("token bucket", func(t *testing.T) {
		e := realEngine(t)
		c := lua.Call{Bucket: "{k}tb2", Cap: 10, Tokens: 1, Period: 1_000_000, TTL: 1_000_000, Fleet: 1, Want: 2}
		for i, id := range []string{"A", "B"} { // the second call sweeps the first one's lease
			c.Lease, c.Seq, c.Now = id, 1, scriptStart+int64(i)*3_000_000
			e.refusesWithoutMemory(t, c)
			if a := e.call(t, c); a.err != "" || a.reply.Grant != 2 {
				t.Fatal(a)
			}
		}
		if fields := e.look(t, c.Bucket).fields; fields["pA"] != "" || fields["pB"] == "" {
			t.Fatalf("nothing was swept: %v", fields)
		}
	})
	eachKind(t, func(t *testing.T, k windowKind) {
		real, played, deletes := realEngine(t), 0, 0
		rapid.Check(t, func(t *rapid.T) {
			played++
			h := newWindowHistory(k, fmt.Sprintf("{full/%d}%s", played, k.algorithm),
				func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") })
			memory := &engine{name: "memory", memory: remote.NewMemory()}
			for range 20 {
				h.pass()
				memory.memory.StopClock(h.now)
				before := memory.memory.Fields(h.bucket)
				if before == nil { // its time to live is over
					memory.memory.Del(h.bucket)
					real.client.Del(t.Context(), h.bucket)
				}
				c := h.next()
				want := memory.call(t, c)
				if after := memory.memory.Fields(h.bucket); !maps.Equal(before, after) {
					real.refusesWithoutMemory(t, c)
					for name := range before {
						if _, ok := after[name]; !ok {
							deletes++
							break
						}
					}
				}
				if got := real.call(t, c); got != want {
					t.Fatalf("%+v\n%v, want\n%v", c, got, want)
				}
				h.learn(c, want)
			}
		})
		if deletes == 0 {
			t.Error("no call deleted anything")
		}
	})
}

// refusesWithoutMemory fails the test unless a full server refuses the call and leaves its key as
// it is.
func (e *engine) refusesWithoutMemory(t tester, c lua.Call) {
	t.Helper()
	limit := func(bytes string) {
		if err := e.client.ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatalf("CONFIG SET: %v", err)
		}
	}
	before := e.lookAt(t, c.Algorithm, c.Bucket).fields
	limit("1")
	a := e.call(t, c)
	limit("0")
	if !strings.HasPrefix(a.err, "OOM") {
		t.Fatalf("a full server executed %+v: %v", c, a)
	}
	if after := e.lookAt(t, c.Algorithm, c.Bucket).fields; !maps.Equal(before, after) {
		t.Fatalf("a full server refused %+v and changed the key from\n%v to\n%v", c, before, after)
	}
}
