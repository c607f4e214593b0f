package local

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Of a limit whose tokens come back late a process holds a third of its even part of what is left at most, but what comes
// back within two periods, and what those need who wait.
func TestAProcessHoldsASmallPartOfASlowLimit(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		name      string
		algorithm lua.Algorithm
		tokens    int64
		per       time.Duration
		fleet     int64
		left      int64 // in Redis
		held      int64 // here
		most      int64
	}{
		{"fixed window", lua.FixedWindow, 1200, hour, 4, 1200, 0, 100},
		{"with what is held", lua.FixedWindow, 1200, hour, 4, 540, 60, 50},
		{"more processes", lua.FixedWindow, 1200, hour, 12, 1200, 0, 33},
		{"nearly used", lua.FixedWindow, 1200, hour, 4, 7, 4, 0},
		{"used, and owed", lua.FixedWindow, 1200, hour, 4, -900, 24, 2},
		{"one process", lua.FixedWindow, 1200, hour, 1, 1200, 0, unlimited},
		{"of a minute", lua.FixedWindow, 1200, time.Minute, 4, 1200, 0, 100},
		{"shorter", lua.FixedWindow, 1200, time.Minute - 1, 4, 1200, 0, unlimited},
		{"sliding window", lua.SlidingWindow, 1200, hour, 4, 1200, 0, 100},
		{"nearly used, and 10 come back in half a second", lua.SlidingWindow, 1200, time.Minute, 4, 7, 4, 10},
		{"bucket", lua.TokenBucket, 1200, hour, 4, 1200, 0, 100},
		{"several buckets", lua.TokenBuckets, 1200, hour, 4, 1200, 0, 100},
		{"a bucket that refills in a minute", lua.TokenBucket, 1200, time.Minute, 4, 1200, 0, unlimited},
		{"slower", lua.TokenBucket, 1200, time.Minute + 1, 4, 1200, 0, 100},
	} {
		r := newRig(t, Policy{Cap: c.tokens, Tokens: c.tokens, Per: c.per, Call: lua.Call{Algorithm: c.algorithm}})
		r.b.view.fleet = int32(c.fleet)
		r.b.view.level.Store(c.left)
		r.b.view.at = r.now
		if w := r.b.denied.windows(); w != nil {
			w.clearAt.Store(int64(r.now + c.per))
		}
		r.b.needLease().pot.refill(r.now, c.held, r.now+time.Second)
		if got := r.b.size(r.now, ms).most; got != c.most {
			t.Errorf("%s: may hold %d, want %d", c.name, got, c.most)
		}
	}
}

// The part is a bound on what a call asks for, with what is held already. It cuts neither a request nor those who wait.
func TestWhatAProcessMayHoldBoundsWhatItAsksFor(t *testing.T) {
	p := &Policy{Cap: 1200, Tokens: 1200, Per: time.Hour, Period: 250 * ms}
	s := size(p, &demand{rate: 4000}, 250*ms, ms, 1, 0, 60)
	if s.low != 10 || s.need != 1000 || s.small { // λτ = 4: ⌈4 + 3·2⌉
		t.Fatalf("%+v, want low 10 and need 1000", s)
	}
	for _, c := range []struct{ pot, waiting, least, want int64 }{
		{0, 0, 1, 60},
		{0, 5, 5, 60},
		{10, 0, 1, 50}, // with these it holds 60
		{60, 0, 1, 1},
		{0, 90, 1, 90}, // those who wait
		{30, 90, 1, 60},
		{0, 90, 90, 90}, // one request
		{0, 400, 400, 400},
		{0, 400, 1, 300}, // a quarter of the burst, as ever
	} {
		if got := s.want(p, c.pot, c.waiting, c.least); got != c.want {
			t.Errorf("%+v: want %d", c, got)
		}
	}
	for _, c := range []struct {
		most, cost, low int64
		small           bool
	}{
		{39, 1, 9, false}, // a quarter of what it may hold
		{8, 1, 2, false},
		{2, 1, 0, false},
		{1, 1, 0, true}, // a lease of one request saves no call
		{8, 8, 2, false},
		{7, 8, 1, true},
	} {
		if s := size(p, &demand{rate: 4000}, 250*ms, ms, c.cost, 0, c.most); s.low != c.low || s.small != c.small {
			t.Errorf("%+v: low %d, small %t", c, s.low, s.small)
		}
	}
}

// A lease of a slow limit that nobody uses goes back three periods after its last use at the latest, whether it was
// prolonged since or not, and when it would have to be prolonged if it was not used lately.
func TestAnIdleLeaseOfASlowLimitGoesBackSoon(t *testing.T) {
	for _, use := range []time.Duration{0, 100 * ms, 249 * ms, 251 * ms, 400 * ms, 499 * ms, 501 * ms, 700 * ms} {
		r := newRig(t, Policy{Cap: 1200, Tokens: 1200, Per: time.Hour, Call: lua.Call{Algorithm: lua.FixedWindow}})
		r.lease(100)
		r.b.demand.rate = 4000 // until a moment ago it was in use
		leased := r.now
		e := r.b.next(r.now)
		used := leased
		for i := 0; ; i++ {
			if i == 20 || e.Check == 0 && !e.Send {
				t.Fatalf("used after %v: %v after the last use it has not gone back: %+v", use, r.now-used, e)
			}
			if e.Send {
				c := r.begin()
				if c.Ret > 0 {
					break
				}
				e, _ = r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second), Level: 800, Reset: us(time.Hour)})
				continue
			}
			if at := leased + use; used < at && at <= e.Check {
				r.now = at
				if _, ok, _ := r.b.Take(r.now, 1); !ok {
					t.Fatal("nothing to use")
				}
				used = at
			}
			r.now = e.Check
			e = r.b.Check(r.now)
		}
		if idle := r.now - used; idle > 750*ms || idle < 240*ms || use < 500*ms && r.now-leased > 750*ms {
			t.Errorf("used after %v: it went back after %v, %v after the last use", use, r.now-leased, idle)
		}
	}
}
