package local

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// What a window refused is refused here until Redis' retry time, and nothing that might be
// admitted: not what costs less than the refused request did.
func TestWindowDenialKnowsCostAndTime(t *testing.T) {
	p := &Policy{
		Cap: 10, Tokens: 10, Per: time.Minute, Call: lua.Call{Algorithm: lua.FixedWindow, Period: 60e6}, Period: 250e6,
		Uniform: func() float64 { return 0.5 },
	}
	var d denial
	d.refused(p, 5, 3, time.Second, 2*time.Second, 3*time.Second, false) // the reply came at 2 s: until 5 s
	for _, c := range []struct {
		now   time.Duration
		need  int64
		retry time.Duration // 0 for not refused
	}{
		{3 * time.Second, 2, 0},
		{3 * time.Second, 4, 0},
		{3 * time.Second, 5, 2 * time.Second},
		{3 * time.Second, 9, 2 * time.Second},
		{5 * time.Second, 9, 0},
	} {
		retry, refused := d.refuses(c.now, c.need)
		if refused != (c.retry > 0) || refused && retry != c.retry {
			t.Errorf("%v, cost %d: %v, %v", c.now, c.need, retry, refused)
		}
	}
	d.refused(p, 5, 3, time.Second, 2*time.Second, time.Minute, false) // longer than a denial is believed
	if _, refused := d.refuses(30*time.Second, 5); refused {
		t.Error("believed for half a minute")
	}
	if _, refused := d.refuses(6*time.Second, 5); !refused {
		t.Error("not believed for four seconds")
	}
}

// What a lease has out leaves no room for it in Redis, so nothing is known of when more than the
// rest can be there.
func TestNothingIsKnownOfMoreThanThereIsRoomFor(t *testing.T) {
	p := &Policy{Cap: 100, Tokens: 10, Per: time.Second, Period: 250 * ms, Uniform: func() float64 { return 0.5 }}
	for _, c := range []struct {
		what  string
		call  Call
		reply lua.Reply
		room  int64 // beside a hold of 4
	}{
		{"granted to those who wait", Call{forWaiters: true}, lua.Reply{Grant: 6, Level: 1}, 90},
		{"a direct take", Call{forWaiters: true, Direct: true}, lua.Reply{Grant: 6, Level: 1}, 100},
		{"a short grant", Call{}, lua.Reply{Grant: 3, Level: 1}, 93},
		{"a refusal", Call{}, lua.Reply{Level: 6, Retry: 400_000}, 96},
		{"a direct take is refused", Call{Direct: true}, lua.Reply{Level: 6, Retry: 400_000}, 100},
	} {
		var d denial
		d.refused(p, 10, 5, 0, ms, 500*ms, false)
		c.call.Want, c.call.Min, c.call.Hold, c.call.sent = 10, 10, 4, 200*ms
		if c.call.Direct {
			c.call.Hold = 0
		}
		d.replied(p, c.call, c.reply, 201*ms)
		if !d.knows(c.room) || d.knows(c.room+1) {
			t.Errorf("%s: the bound is %v, want %d", c.what, d.bound, c.room)
		}
	}
}
