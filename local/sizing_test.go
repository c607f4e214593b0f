package local

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

const ms = time.Millisecond

func TestPeriodFollowsPolicyBurstAndRoundTrips(t *testing.T) {
	for _, c := range []struct {
		cap, tokens int64
		period      time.Duration
		trip        time.Duration
		want        time.Duration
		window      time.Duration
	}{
		{20000, 20000, 250 * ms, ms, 250 * ms, 0},
		{4000, 20000, 250 * ms, ms, 50 * ms, 0}, // C/4r
		{20000, 20000, 40 * ms, ms, 40 * ms, 0},
		{20000, 20000, 40 * ms, 11 * ms, 80 * ms, 0},
		{20000, 20000, 40 * ms, time.Second, 160 * ms, 0}, // four times at most
		{20000, 200000, 20 * ms, time.Second, 25 * ms, 0}, // never beyond C/4r
		{1, 1_000_000_000, 250 * ms, ms, 1, 0},
		{20000, 20000, 250 * ms, ms, 125 * ms, time.Second}, // an eighth of a sliding window
		{20000, 20000, 250 * ms, ms, 250 * ms, 2 * time.Second},
	} {
		p := Policy{Cap: c.cap, Tokens: c.tokens, Per: time.Second, Period: c.period, Window: c.window}
		if got := p.period(c.trip); got != c.want {
			t.Errorf("%+v: T = %v", c, got)
		}
	}
}

func TestSizeWantsADemandAndAQuarterAtMost(t *testing.T) {
	p := &Policy{Cap: 20000, Tokens: 20000, Per: time.Second, Period: 250 * ms}
	d := &demand{rate: 1600}
	s := size(p, d, p.period(ms), ms, 0, 400, unlimited)
	// λτ = 1.6: ⌈1.6 + 3·1.26⌉ = 6, less than a quarter of the grant.
	if s.low != 100 || s.need != 400 {
		t.Fatalf("%+v, want low 100 and need 400", s)
	}
	if got := s.want(100, 0, 1); got != 400 {
		t.Errorf("at the mark: want %d, not 400", got)
	}
	if got := s.want(0, 0, 1); got != 500 {
		t.Errorf("from empty: want %d, not 500", got)
	}
	if got := s.want(0, 7000, 1); got != 5000 {
		t.Errorf("with 7000 waited for: want %d, not a quarter of the burst", got)
	}
	if got := s.want(0, 7000, 6000); got != 6000 {
		t.Errorf("for one request of 6000: want %d", got)
	}
	p.Size = 30
	if got := s.want(100, 0, 1); got != 30 {
		t.Errorf("Size 30 at the mark: want %d", got)
	}
	if s := size(p, d, p.period(ms), ms, 50, 0, unlimited); s.low != 50 {
		t.Errorf("low %d, want the largest cost", s.low)
	}
}

func TestLowWaterMarkCoversARoundTrip(t *testing.T) {
	p := &Policy{Cap: 20000, Tokens: 20000, Per: time.Second, Period: 250 * ms}
	for _, c := range []struct {
		rate        float64
		trip        time.Duration
		cost, grant int64
		want        int64
	}{
		{1000, 100 * ms, 1, 0, 130}, // 100 in flight, and three times its root
		{1000, 100 * ms, 1, 400, 130},
		{1000, 100 * ms, 1, 800, 200}, // a quarter of the grant
		{1000, 100 * ms, 500, 800, 500},
		{1e6, 100 * ms, 1, 0, 5000}, // a quarter of the burst at most
		{0, 100 * ms, 1, 0, 0},
	} {
		if got := size(p, &demand{rate: c.rate}, p.period(c.trip), c.trip, c.cost, c.grant, unlimited).low; got != c.want {
			t.Errorf("%+v: low-water mark %d", c, got)
		}
	}
}

func TestLeasePaysWithHysteresis(t *testing.T) {
	for _, c := range []struct {
		need    float64
		leasing bool
		cost    int64 // the largest
		want    bool
	}{
		{1.9, false, 0, false},
		{2, false, 0, true},
		{1, true, 0, true},
		{0.9, true, 0, false},
		{7.9, false, 8, false},
		{8, false, 8, true},
		{4, true, 8, true},
		{3.9, true, 8, false}, // by requests of 4, about
	} {
		p := &Policy{Cap: 1000, Tokens: 1000, Per: time.Second, Period: time.Second}
		t250 := p.period(ms) // 250 ms
		if got := size(p, &demand{rate: 4 * c.need}, t250, ms, c.cost, 0, unlimited).pays(c.leasing); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// What lies in processes is missing in the burst: one of few tokens, or of few requests, is not
// leased from, unless any may be.
func TestASmallBurstIsNotLeased(t *testing.T) {
	for _, c := range []struct {
		cap, cost, least int64
		want             bool
	}{
		{49, 0, 50, false},
		{50, 0, 50, true},
		{50, 8, 50, true},
		{50, 9, 50, false},
		{119, 20, 50, false},
		{120, 20, 50, true},
		{8, 2, 0, true},
	} {
		p := &Policy{Cap: c.cap, Tokens: c.cap, Per: time.Second, Period: 250 * ms, MinBurst: c.least}
		if got := size(p, &demand{rate: 1e6}, p.period(ms), ms, c.cost, 0, unlimited).pays(false); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Of a limit whose tokens come back late a process holds a third of its even part of what is left
// at most, but what comes back within two periods, and what those need who wait.
func TestAProcessHoldsASmallPartOfASlowLimit(t *testing.T) {
	const hour, now = time.Hour, time.Second
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
		p := Policy{Cap: c.tokens, Tokens: c.tokens, Per: c.per, Period: 250 * ms, Call: lua.Call{Algorithm: c.algorithm}}
		var b Bucket
		b.Init(&p, "k")
		b.hot.view.fleet = int32(c.fleet)
		b.hot.view.level.Store(c.left)
		b.hot.view.at = now
		if w := b.hot.denied.windows(); w != nil {
			w.clearAt.Store(int64(now + c.per))
		}
		b.needLease().pot.refill(now, c.held, now+time.Second)
		if got := b.size(now, ms).most; got != c.most {
			t.Errorf("%s: may hold %d, want %d", c.name, got, c.most)
		}
	}
}

// The part is a bound on what a call asks for, with what is held already. It cuts neither a request
// nor those who wait.
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
		if got := s.want(c.pot, c.waiting, c.least); got != c.want {
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

// A key over a slow limit is leased until there are two tokens for each process.
func TestPeriodOfAKeyOverASlowLimit(t *testing.T) {
	usual := 250 * ms
	minute := Policy{Cap: 100, Tokens: 100, Per: time.Minute}
	hour := Policy{Cap: 1000, Tokens: 1000, Per: time.Hour}
	second := Policy{Cap: 200, Tokens: 100, Per: time.Second}
	split := func(p Policy) Policy {
		p.Parent = new(Policy)
		return p
	}
	sized := minute
	sized.Size = 5
	several := minute
	several.Each = []Numbers{{100, 100, time.Minute}}
	for _, c := range []struct {
		name   string
		policy Policy
		fleet  int32
		rate   float64 // tokens/s of this process
		scarce bool
		want   time.Duration
	}{
		{"over a slow limit: 4 s at most", minute, 4, 1, true, 4 * time.Second},
		{"over it, fewer processes: 4 tokens", minute, 2, 3, true, 2400 * ms},
		{"over it, with standing shares", split(minute), 2, 3, true, 2400 * ms},
		{"over it, with too little demand for a lease", hour, 4, 0.49, true, usual},
		{"less than one and a half times its part", minute, 1, 2.4, true, usual},
		{"more than that", minute, 1, 2.6, true, 1200 * ms},
		{"over a slow limit, but Redis has tokens", minute, 2, 3, false, usual},
		{"over a fast limit", second, 4, 1000, true, usual},
		{"a lease of a fixed size", sized, 2, 3, true, usual},
		{"several limits", several, 2, 3, true, usual},
	} {
		p := c.policy
		p.Period = usual
		var b Bucket
		b.Init(&p, "k")
		b.hot.view.fleet, b.demand.rate = c.fleet, c.rate
		if c.scarce {
			b.hot.denied.Store(&denial{at: 1})
		}
		if got := b.size(0, ms).period; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
