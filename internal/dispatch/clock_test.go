package dispatch

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ms     = time.Millisecond
	second = time.Second
)

func TestClockTakesTheShortestRoundTripOfLate(t *testing.T) {
	const offset = 1_000_000 // µs that the node is ahead
	var c clock
	if _, known := c.at(0); known {
		t.Fatal("known before any reply")
	}
	// The reply of a slow call says little: the node read its clock somewhere within.
	c.learn(0, 10*ms, offset+9000)
	if got, _ := c.at(0); got != offset+4000 {
		t.Fatalf("%d, want the middle of the round trip", got-offset)
	}
	c.learn(20*ms, 21*ms, offset+20_500)
	if got, _ := c.at(0); got != offset {
		t.Fatalf("%d off after a short round trip", got-offset)
	}
	c.learn(30*ms, 50*ms, offset+49_000)
	if got, _ := c.at(0); got != offset {
		t.Fatalf("%d off: a longer round trip replaced a shorter one", got-offset)
	}
	c.correct(0, ms, 500+7)
	if got, _ := c.at(0); got != 7 {
		t.Fatalf("a correction left %d", got)
	}
}

// What a reply disproves is forgotten at once, whatever its round trip was and whichever way the
// clock was set; what round trips and the rates of clocks explain is not.
func TestClockFollowsAStepAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		between := func(name string, least, most time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(int64(least), int64(most)).Draw(t, name))
		}
		const longest, rest = 20 * ms, 20 * second
		drift := rapid.Float64Range(-0.009, 0.009).Draw(t, "drift")
		ahead := between("ahead", 24*time.Hour, 48*time.Hour)
		node := func(at time.Duration) int64 { // what its clock shows
			return (at + time.Duration(drift*float64(at)) + ahead).Microseconds()
		}
		var c clock
		now, heard := time.Duration(0), time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "replies") {
			now += between("pause", 0, rest)
			set := rapid.IntRange(0, 4).Draw(t, "set") == 0
			if set {
				ahead += between("by", 500*ms, time.Hour) * time.Duration(1-2*rapid.IntRange(0, 1).Draw(t, "back"))
			}
			sent := now
			now += between("trip", 100*time.Microsecond, longest)
			step := c.learn(sent, now, node(sent+between("read", 0, now-sent)))
			if first := heard == 0; (step != 0) != (set && !first) {
				t.Fatalf("the clock was set: %t; told: %v", set, step)
			}
			heard = now
			got, known := c.at(now)
			if off := time.Duration(got-node(now)) * time.Microsecond; !known ||
				off.Abs() > Standstill+2*longest+(2*clockWindow+rest)/100 {
				t.Fatalf("%v off after a reply", off)
			}
		}
	})
}

// Of two calls that were under way at once nobody knows which was answered first: if the clock was
// set between them, the earlier time counts until a later reply tells, for a deadline that is too
// early is found out, and one that is too late is not.
func TestClockDoubtsOverlappingReplies(t *testing.T) {
	const back = -2_000_000 // µs
	for _, beforeFirst := range []bool{true, false} {
		var c clock
		c.learn(0, ms, 500)
		before, after := int64(12_000), int64(back+16_000)
		if beforeFirst { // the reply from before the step comes first
			c.learn(10*ms, 18*ms, before)
			c.learn(11*ms, 20*ms, after)
		} else {
			c.learn(11*ms, 18*ms, after)
			c.learn(10*ms, 20*ms, before)
		}
		if got, _ := c.at(0); got > back+10_000 {
			t.Errorf("before the step first %t: %d µs ahead, want about %d", beforeFirst, got, back)
		}
		c.learn(30*ms, 50*ms, back+40_000)
		if got, _ := c.at(0); got < back-10_000 || got > back+10_000 {
			t.Errorf("before the step first %t: %d µs ahead, want about %d", beforeFirst, got, back)
		}
	}
}

func TestTripIsTheNinetyNinthPercentile(t *testing.T) {
	var c clock
	for range minTrips - 1 {
		c.learn(0, 5*ms, 0)
	}
	if c.roundTrip() != defaultTrip {
		t.Fatalf("%v before there are %d samples", c.roundTrip(), minTrips)
	}
	for i := range 128 {
		d := ms
		if i%64 == 0 {
			d = 9 * ms
		}
		c.learn(0, d, 0)
	}
	if c.roundTrip() != 9*ms {
		t.Fatalf("%v, want 9ms: 2 of 128 took that", c.roundTrip())
	}
}

// The bounds hold what a node shows though its clock is set by a little, and though replies come
// from two nodes by turns, because a slot has moved. Once one of them is heard no more, they are
// narrow again. A clock that is not known is no fault.
func TestBoundsOfAClockInDoubt(t *testing.T) {
	const offset, little, much = int64(1_000_000_000), int64(30_000), int64(60_000)
	var c clock
	learn := func(at time.Duration, back int64) {
		c.learn(at-100*time.Microsecond, at, offset+at.Microseconds()-50-back)
	}
	holds := func(at time.Duration, back int64) {
		t.Helper()
		from, to, ok := c.bounds(at)
		if is := offset + at.Microseconds() - back; ok && (is < from || is > to) {
			t.Errorf("at %v the clock shows %d: %d … %d", at, is, from, to)
		}
	}
	for at := time.Second; at < 30*second; at += 700 * ms {
		back := int64(0)
		if at > 10*second {
			back = little
		}
		learn(at, back)
		holds(at, back)
		holds(at+300*ms, back)
	}
	c = clock{}
	for at := time.Second; at < 20*second; at += 700 * ms {
		learn(at, much*int64(at/(700*ms)%2))
		if at > 2*second {
			holds(at+300*ms, 0)
			holds(at+300*ms, much)
		}
	}
	for at := 20 * second; at < 45*second; at += 100 * ms {
		learn(at, much)
		holds(at+50*ms, much)
	}
	if from, to, ok := c.bounds(45 * second); !ok || time.Duration(to-from)*time.Microsecond > clockWindow/50 {
		t.Errorf("%d µs between the bounds, %v", to-from, ok)
	}
}
