package legal

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// told is a book of a history.
func told(p tiered.Policy, tell func(b *history)) *history {
	b := newHistory(time.Unix(0, 0), 0, 0, p, 50*ms, true)
	b.inForce(0, 0, p.Limit)
	tell(b)
	return b
}

// take is an admission of n tokens that takes a millisecond.
func (b *history) take(at time.Duration, n int64) { b.admitted(at, at+ms, n, true) }

// change has process 0 go on by another limit, and say so to the store at once.
func (b *history) change(at time.Duration, l tiered.Limit) {
	b.inForce(0, at, l)
	for i := range b.terms {
		if b.terms[i].closed == at {
			b.terms[i].until = at + ms
		}
	}
}

// asked has the store execute a call.
func (b *history) asked(at time.Duration, c *lua.Call) { b.executed(0, at, at, c, 0) }

func TestBooksAccuse(t *testing.T) {
	bucket := tiered.Policy{Limit: tiered.PerDay(10)}
	hour := tiered.Policy{Limit: tiered.PerHour(3600).WithBurst(10)}
	several := tiered.Policy{Limit: tiered.PerDay(10).WithBurst(80).And(tiered.PerMinute(1000)), Standing: 1.0 / 8}
	fixed := tiered.Policy{Algorithm: tiered.FixedWindow, Limit: tiered.PerMinute(10)}
	sliding := tiered.Policy{Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10)}
	log := tiered.Policy{Algorithm: tiered.SlidingLog, Limit: tiered.PerMinute(10)}
	for _, c := range []struct {
		name   string
		policy tiered.Policy
		tell   func(b *history, more int64)
	}{
		{"a burst", bucket, func(b *history, more int64) { b.take(0, 4); b.take(second, 6+more) }},
		{"a refill", hour, func(b *history, more int64) { b.take(0, 10); b.take(5*second, 5+more) }},
		{"what came back", bucket, func(b *history, more int64) {
			b.take(0, 10)
			b.settled(second, 0, 10, 7)
			b.take(2*second, 3+more)
		}},
		{"came back too long ago", bucket, func(b *history, more int64) {
			b.settled(0, 0, 10, 1)
			b.take(time.Minute, 10+more)
		}},
		{"raised at noon", bucket, func(b *history, more int64) {
			b.take(0, 10)
			b.change(12*time.Hour, tiered.PerDay(1000).WithBurst(10))
			b.take(12*time.Hour+second, 5+more)
		}},
		{"lowered, and its leases are over", bucket, func(b *history, more int64) {
			b.change(second, tiered.PerDay(2))
			b.take(10*second, 2+more)
		}},
		{"lowered, and its leases live", bucket, func(b *history, more int64) {
			b.change(second, tiered.PerDay(2))
			b.take(1500*ms, 10+more)
		}},
		{"lowered, and then the clock was set back", bucket, func(b *history, more int64) {
			b.inForce(0, second, tiered.PerDay(2))
			b.asked(2*second, &lua.Call{Lease: "a", Cap: 10, Tokens: 10, Period: day.Microseconds(), TTL: (4 * second).Microseconds()})
			b.moved(20*second, -time.Hour)
			for _, at := range []time.Duration{20 * second, 34 * second, 36 * second} { // held until 6 + 10 s, and that from 20 s on, and 1 s
				b.asked(at, &lua.Call{Cap: 2, Tokens: 2, Period: day.Microseconds()})
			}
			b.take(35500*ms, 8)
			b.take(38*second, 2+more)
		}},
		{"lowered, several limits with shares", several, func(b *history, more int64) {
			b.inForce(0, second, tiered.PerDay(10).WithBurst(16).And(tiered.PerMinute(1000)))
			also := []lua.Limit{{Cap: 875, Tokens: 875, Period: time.Minute.Microseconds()}}
			c := &lua.Call{Algorithm: lua.TokenBuckets, Cap: 70, Tokens: 9, Period: day.Microseconds(), Also: also}
			b.asked(5*second, c)
			c = &lua.Call{Algorithm: lua.TokenBuckets, Cap: 14, Tokens: 9, Period: day.Microseconds(), Also: also}
			b.asked(14*second, c)
			b.asked(15*second, c)
			b.take(15500*ms, 64)
			b.take(17*second, 16+more)
		}},
		{"reset", bucket, func(b *history, more int64) {
			b.take(0, 10)
			b.reset(second, second)
			b.take(2*second, 10+more)
		}},
		{"unlimited, and back", bucket, func(b *history, more int64) {
			b.take(0, 10)
			b.inForce(0, second, tiered.Unlimited())
			b.inForce(0, 2*second, tiered.PerDay(10))
			b.take(3*second, more)
		}},
		{"a window", fixed, func(b *history, more int64) { b.take(0, 4); b.take(50*second, 6+more) }},
		{"the next window", fixed, func(b *history, more int64) { b.take(59*second, 10); b.take(61*second, 10+more) }},
		{"an interval", sliding, func(b *history, more int64) { b.take(30*second, 4); b.take(89*second, 6+more) }},
		{"the next interval", log, func(b *history, more int64) { b.take(30*second, 10); b.take(91*second, 10+more) }},
		{"another span", sliding, func(b *history, more int64) {
			b.take(second, 10)
			b.change(2*second, tiered.Limit{Tokens: 10, Per: 61 * second})
			b.take(3*second, more)
		}},
	} {
		for more := range int64(2) {
			b := told(c.policy, func(b *history) { c.tell(b, more) })
			if over, where := b.over(b.terms); (over > 0) != (more > 0) {
				t.Errorf("%s, and %d more: %v over in %s", c.name, more, over, where)
			}
		}
	}
}

func TestBooksMissTokens(t *testing.T) {
	day := tiered.Policy{Algorithm: tiered.FixedWindow, Limit: tiered.PerDay(10)}
	short := tiered.Policy{Algorithm: tiered.FixedWindow, Limit: tiered.PerSecond(10)}
	for _, c := range []struct {
		name   string
		policy tiered.Policy
		tell   func(b *history)
		left   int64
	}{
		{"taken", tiered.Policy{Limit: tiered.PerDay(10)}, func(b *history) { b.take(0, 4) }, 6},
		{"taken and given back", tiered.Policy{Limit: tiered.PerDay(10)}, func(b *history) {
			b.take(0, 4)
			b.settled(second, 0, 4, 1)
		}, 9},
		{
			"refilled",
			tiered.Policy{Limit: tiered.PerMinute(60).WithBurst(100)},
			func(b *history) { b.take(0, 100) },
			59,
		},
		{"refilled, then lowered", tiered.Policy{Limit: tiered.PerMinute(60).WithBurst(100)}, func(b *history) {
			b.take(0, 100)
			b.change(50*second, tiered.PerDay(1).WithBurst(100))
		}, 49},
		{"lowered, then raised", tiered.Policy{Limit: tiered.PerDay(100)}, func(b *history) {
			b.change(second, tiered.PerDay(10))
			b.change(2*second, tiered.PerDay(100))
		}, 10},
		{"a window", day, func(b *history) { b.take(0, 4) }, 6},
		{"a window that is over", short, func(b *history) { b.take(0, 4) }, 10},
	} {
		b := told(c.policy, c.tell)
		if n := b.left(time.Minute, 0); n != c.left {
			t.Errorf("%s: %d must be left, want %d", c.name, n, c.left)
		}
	}
}

// A lease that the store knew longer than a window counts in it, though its process never says what
// was spent. A process that leases for longer holds tokens for longer.
func TestBooksKnowLeases(t *testing.T) {
	hour := tiered.Policy{Algorithm: tiered.SlidingWindow, Limit: tiered.PerHour(100)}
	b := told(hour, func(b *history) {
		for at, n := range map[time.Duration]int64{0: 5, 3 * time.Minute: 7} {
			c := asked{at: at, Call: lua.Call{Lease: "a", TTL: (4 * time.Minute).Microseconds()}}
			c.Code, c.Grant = lua.Granted, n
			b.calls = append(b.calls, c)
		}
		slices.SortFunc(b.calls, func(x, y asked) int { return int(x.at - y.at) })
	})
	for from, want := range map[time.Duration]int64{0: 12, 3 * time.Minute: 12, 5 * time.Minute: 7, 7 * time.Minute: 0} {
		if n := b.counts(from, 0); n != want {
			t.Errorf("a window from %v counts %d, want %d", from, n, want)
		}
	}
	if b.leases(tiered.Lease{Period: time.Minute}); b.life != 4*time.Minute {
		t.Errorf("a lease lives for %v", b.life)
	}
}

// What is refilled while leases hold a whole burst waits nowhere.
func TestBooksKnowWhatWaits(t *testing.T) {
	b := told(tiered.Policy{Limit: tiered.PerSecond(200).WithBurst(400)}, func(b *history) {
		c := asked{Call: lua.Call{Lease: "a", TTL: second.Microseconds()}}
		c.Code, c.Grant = lua.Granted, 300
		b.calls = append(b.calls, c)
	})
	for now, want := range map[time.Duration]int64{100 * ms: 20, second: 100, 1500 * ms: 200, 5 * second: 400} {
		if n := b.waits(now, 200, 400); n != want {
			t.Errorf("after %v %d wait, want %d", now, n, want)
		}
	}
}

// A call that states the default blocks of a sliding window is a call under that limit. The store's
// executed calls end a limit that they do not state.
func TestDefaultBlocksAreThoseOfTheLimit(t *testing.T) {
	for _, per := range []time.Duration{second, 59 * second, time.Minute, time.Hour} {
		p := tiered.Policy{Name: "p", Algorithm: tiered.SlidingWindow, Limit: tiered.Limit{Tokens: 10, Per: per}}
		store := &recorder{Memory: remote.NewMemory()}
		l, err := tiered.New(store, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := l.Allow(t.Context(), "k"); d.Tier != tiered.Remote {
			t.Fatalf("%+v, want a decision by the store", d)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := newHistory(time.Unix(0, 0), 0, 0, p, 50*ms, true)
		if c := store.first(); !b.by(&term{Limit: p.Limit}, &c) {
			t.Errorf("per %v: the limit does not have the blocks of %d µs that its call states", per, c.Period)
		}
	}
}

// recorder is a store that keeps the first call.
type recorder struct {
	*remote.Memory
	mu    sync.Mutex
	calls []lua.Call
}

func (r *recorder) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	r.mu.Lock()
	r.calls = append(r.calls, calls...)
	r.mu.Unlock()
	r.Memory.Run(ctx, timeout, calls, results)
}

func (r *recorder) first() lua.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[0]
}
