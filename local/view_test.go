package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A bucket that must be there still is told from one that may have been full and expired.
func TestOutlives(t *testing.T) {
	direct := func(r *rig, reply lua.Reply) {
		r.ask(1)
		c := r.beginWith(false)
		reply.Epoch = 7
		r.b.Accept(r.now+ms, c.Seq, reply)
	}
	for _, c := range []struct {
		name    string
		p       local.Policy
		happens func(*rig)
		until   time.Duration // from the sending of the last call on: it is there a moment before, and may not be then
	}{
		{
			"the level is a whole number",
			local.Policy{Cap: 10, Tokens: 1},
			func(r *rig) { direct(r, lua.Reply{Grant: 1, Level: 9}) }, time.Second,
		},
		{
			"the level is up to a token higher",
			local.Policy{Cap: 10, Tokens: 1},
			func(r *rig) { direct(r, lua.Reply{Grant: 1, Level: 7}) }, 2 * time.Second,
		},
		{"nothing is left", local.Policy{Cap: 1, Tokens: 1}, func(r *rig) { direct(r, lua.Reply{Grant: 1}) }, time.Second},
		{
			"denied, with a part of a token",
			local.Policy{Cap: 1, Tokens: 1},
			func(r *rig) { direct(r, lua.Reply{Retry: us(500 * ms)}) }, 0,
		},
		{
			"others hold leases",
			local.Policy{Cap: 10, Tokens: 1},
			func(r *rig) { direct(r, lua.Reply{Grant: 1, Level: 2, Active: 1}) }, 0,
		},
		{
			"the machine stood still",
			local.Policy{Cap: 10, Tokens: 1},
			func(r *rig) { direct(r, lua.Reply{Grant: 1, Level: 2}); r.b.Expire(r.now) }, 0,
		},
		{"another limit", local.Policy{Cap: 10, Tokens: 1}, func(r *rig) {
			direct(r, lua.Reply{Grant: 1, Level: 2})
			p := *r.p
			p.Tokens = 100
			r.b.SetPolicy(r.now, nil, &p)
		}, 0},
		{"a return without an answer", local.Policy{Cap: 100, Tokens: 1}, func(r *rig) {
			r.lease(20)
			r.b.Retire(r.now)
			r.b.Fail(r.now, r.begin().Seq)
		}, 0},
		{"closed", local.Policy{Cap: 10, Tokens: 1}, func(r *rig) {
			direct(r,
				lua.Reply{Grant: 1, Level: 2})
			r.b.Burn(r.now)
		}, 0},
		{
			"a window: what was granted",
			local.Policy{Cap: 10, Tokens: 10, Call: lua.Call{Algorithm: lua.FixedWindow}},
			func(r *rig) {
				direct(r, lua.Reply{Grant: 1, Level: 9, Reset: us(3 * time.Second)})
			}, 3 * time.Second,
		},
		{
			"a window: refused, for a while",
			local.Policy{Cap: 10, Tokens: 10, Call: lua.Call{Algorithm: lua.FixedWindow}},
			func(r *rig) {
				r.lease(1)
				r.b.Take(r.now, 1)
				r.ask(1)
				r.b.Accept(r.now+ms, r.begin().Seq,
					lua.Reply{Reset: us(3 * time.Second), Retry: us(time.Second), TTLLeft: us(time.Second)})
			}, time.Second,
		},
		{
			"a window: refused, and nothing written",
			local.Policy{Cap: 10, Tokens: 10, Call: lua.Call{Algorithm: lua.FixedWindow}},
			func(r *rig) {
				direct(r, lua.Reply{Reset: us(3 * time.Second), Retry: us(time.Second)})
			}, 0,
		},
		{"a window of others", local.Policy{Cap: 10, Tokens: 10, Call: lua.Call{Algorithm: lua.FixedWindow}}, func(r *rig) {
			direct(r, lua.Reply{Grant: 1, Level: 5, Reset: us(3 * time.Second), Active: 2})
		}, 0},
	} {
		r := newRig(t, c.p)
		sent := r.now
		c.happens(r)
		last := time.Duration(float64(c.until) / (1 + local.Drift))
		outlives := func(now time.Duration, epoch int64) bool {
			surely, _ := r.b.Lives(now, epoch)
			return surely
		}
		if c.until > 0 && !outlives(sent+last-ms, r.b.Epoch()) {
			t.Errorf("%s: it is not said to be there", c.name)
		}
		if outlives(sent+last+ms, r.b.Epoch()) || outlives(sent+last-ms, r.b.Epoch()+1) {
			t.Errorf("%s: it is said to be there, and may have expired", c.name)
		}
	}
}
