package remote_test

import (
	"fmt"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// What processes wanted that have crashed since is wanted no more once their leases have ended:
// however long the window is, those who live share what is left of it among themselves.
func TestWantsOfTheDeadEndWithTheirLeases(t *testing.T) {
	const hour = 3600 * sec
	for _, a := range without(lua.OneLevel) {
		if !a.Has(lua.Leased) {
			continue
		}
		for _, e := range engines(t) {
			c := of(a, fmt.Sprint("wants", a), 1000, hour, hour)
			if a == lua.TokenBuckets {
				c.Tokens = 1
			}
			now := (scriptStart/hour + 1) * hour
			lease := func(id string, seq, want int64) lua.Reply {
				t.Helper()
				r := e.at(t, now, settling(c, seq,
					func(c *lua.Call) { c.Lease, c.Ack, c.Want, c.Min = id, seq-1, want, want/20 }))
				if r.err != "" {
					t.Fatalf("%s, algorithm %d: %v", e.name, a, r)
				}
				return r.reply
			}
			for i := range 20 {
				lease(fmt.Sprint("dead", i), 1, 40)
			}
			refused := settling(c, 1, func(c *lua.Call) { c.Lease, c.Want, c.Min = "empty-handed", 900, 900 })
			if r := e.at(t, now, refused).reply; r.Code != lua.Denied {
				t.Fatalf("%s, algorithm %d: %+v", e.name, a, r)
			}
			if r := lease("alive", 1, 60); r.Grant >= 60 {
				t.Fatalf("%s, algorithm %d: %+v: this shows nothing", e.name, a, r)
			}
			now += 10 * sec
			left := lease("alive", 2, 0).Level
			want := min(60, left)
			if r := lease("alive", 3, 60); r.Grant != want {
				t.Errorf("%s, algorithm %d: %d granted of %d, and nobody else wants any: %+v", e.name, a, r.Grant,
					left, r)
			}
			if a != lua.FixedWindow {
				continue
			}
			// What the dead had comes back if they were only asleep, once, and they want again.
			before := lease("alive", 4, 0).Level
			r := e.at(t, now, settling(c, 3, func(c *lua.Call) { c.Lease, c.Ack, c.Ret = "dead1", 1, 5 })).reply
			if r.Level != before+5 {
				t.Errorf("%s: %+v, want 5 more than %d", e.name, r, before)
			}
			now += 10 * sec
			if r := e.at(t, now, take(c, 1)); r.reply.Code != lua.Granted { // sweeps as well
				t.Errorf("%s: %v", e.name, r)
			}
			if f := e.lookAt(t, a, c.Bucket).fields; f["w"] != "0" || f["g"] != "0" {
				t.Errorf("%s: after all have ended: w %s, g %s", e.name, f["w"], f["g"])
			}
		}
	}
}
