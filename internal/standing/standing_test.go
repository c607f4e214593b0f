package standing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestSplit(t *testing.T) {
	for _, row := range []struct {
		in, rest Rate
		size     int64
		parts    int64 // 0 is 1
		err      string
	}{
		{in: Rate{200, 100, time.Second}, rest: Rate{175, 700, 8 * time.Second}, size: 25},
		{in: Rate{16, 8, time.Second}, rest: Rate{14, 7, time.Second}, size: 2},
		{in: Rate{23, 1, time.Hour}, rest: Rate{21, 7, 8 * time.Hour}, size: 2},
		{in: Rate{15, 8, time.Second}, rest: Rate{14, 7, time.Second}, size: 1},
		{in: Rate{7, 8, time.Second}, rest: Rate{7, 7, time.Second}},
		{in: Rate{200, 100, time.Second}, rest: Rate{100, 50, time.Second}, size: 100, parts: 4},
		{in: Rate{200, 100, time.Second}, rest: Rate{150, 75, time.Second}, size: 50, parts: 2},
		{in: Rate{5, 1, time.Second}, rest: Rate{2, 1, 4 * time.Second}, size: 3, parts: 6},
		{in: Rate{5, 1, time.Second}, rest: Rate{4, 5, 8 * time.Second}, size: 1, parts: 3},
		{in: Rate{1, 1, time.Second}, rest: Rate{1, 7, 8 * time.Second}},
		{in: Rate{1 << 40, 1 << 40, time.Second}, rest: Rate{7 << 37, 7 << 37, time.Second}, size: 1 << 37},
		{in: Rate{1 << 40, 1<<40 - 1, time.Second}, rest: Rate{7 << 37, 7 * (1<<37 - 1), time.Second}, size: 1 << 37},
		{in: Rate{16, 1, 10 * year}, err: "it takes more than a year to refill"},
		{in: Rate{1, 8, 100 * year}, err: "it takes more than a year to refill"},
		{in: Rate{16, 9, 20 * year}, err: "it refills 9 tokens per 175200h0m0s: a period above 156374h59m13.421312s needs a " +
			"multiple of 8 tokens"},
	} {
		l, rest, err := Split(row.in, max(row.parts, 1))
		if err != nil || row.err != "" {
			if fmt.Sprint(err) != row.err {
				t.Errorf("%v: error %v, want %s", row.in, err, row.err)
			}
			continue
		}
		if rest != row.rest || l.size != row.size {
			t.Errorf("%v: rest %v and %d, want %v and %d", row.in, rest, l.size, row.rest, row.size)
		}
	}
}

// Each of several limits keeps its period in Redis, which is its name there.
func TestSplitInPeriod(t *testing.T) {
	for _, row := range []struct {
		in, rest Rate
		token    time.Duration
		parts    int64 // 0 is 1
		err      string
	}{
		{in: Rate{200, 100, time.Second}, rest: Rate{175, 88, time.Second}, token: (time.Second / 12).Truncate(unit) + unit},
		{in: Rate{16, 8, time.Second}, rest: Rate{14, 7, time.Second}, token: time.Second},
		{in: Rate{16, 8, time.Second}, rest: Rate{4, 2, time.Second}, token: inUnits(time.Second / 6), parts: 6},
		{in: Rate{16, 1, time.Second}, err: "it refills 1 tokens per period: must be at least 2 of each of several limits", parts: 4},
		{in: Rate{23, 15, time.Hour}, rest: Rate{21, 14, time.Hour}, token: time.Hour},
		{in: Rate{1 << 40, 1 << 40, time.Second}, rest: Rate{7 << 37, 7 << 37, time.Second}, token: unit},
		{in: Rate{16, 8, 100 * year}, err: "it takes more than a year to refill"},
		{in: Rate{16, 7, time.Second}, err: "it refills 7 tokens per period: must be at least 8 of each of several limits"},
	} {
		l, rest, err := SplitInPeriod(row.in, max(row.parts, 1))
		if err != nil || row.err != "" {
			if fmt.Sprint(err) != row.err {
				t.Errorf("%v: error %v, want %s", row.in, err, row.err)
			}
			continue
		}
		if rest != row.rest || l.token != row.token {
			t.Errorf("%v: rest %v and a token per %v, want %v and %v", row.in, rest, l.token, row.rest, row.token)
		}
	}
}

const year = 365 * 24 * time.Hour

// The two parts of a split limit are never more than the limit.
func TestSplitIsAtMostTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rate{
			rapid.Int64Range(1, 1<<40).Draw(t, "burst"), rapid.Int64Range(1, 1<<40).Draw(t, "tokens"),
			time.Duration(rapid.Int64Range(1, int64(year/time.Microsecond)).Draw(t, "per")) * time.Microsecond,
		}
		parts := rapid.Int64Range(1, lua.MostShared).Draw(t, "parts")
		l, rest, err := Split(r, parts)
		if rapid.Bool().Draw(t, "several") {
			l, rest, err = SplitInPeriod(r, parts)
		}
		if err != nil {
			return
		}
		if l.size+rest.Burst != r.Burst {
			t.Fatalf("%d + %d of a burst of %d", l.size, rest.Burst, r.Burst)
		}
		whole := float64(r.Tokens) / float64(r.Per)
		sum := 1/float64(l.token) + float64(rest.Tokens)/float64(rest.Per)
		if sum > whole*(1+1e-12) {
			t.Fatalf("%v: the rates sum to %g, not %g", r, sum, whole)
		}
		if rest.Tokens < 1 || rest.Tokens > lua.MostTokens || rest.Per.Microseconds() > lua.LongestPeriod {
			t.Fatalf("%v: rest %v", r, rest)
		}
	})
}

// fleet is some processes whose fractions sum to at most 1, and an ideal bucket for each limit of
// what they have of it together.
type fleet struct {
	t         *testing.T
	seed      uint64
	now       time.Duration
	processes []*Shares
	limits    []Limits
	ends      []time.Duration // of their rights
	fractions []int64
	full      []whole
	count     int // of admissions

	last struct { // the last take
		process int
		use     Use
		before  []whole
		at      time.Duration
		count   int // of admissions
	}
}

// whole is what the processes have of one limit together.
type whole struct {
	ideal.Bucket
	given int64 // tokens that were put back and may be admitted again
}

const key = 0x123456789abcdef

func newFleet(t *testing.T, seed uint64, rates []Rate, n int) *fleet {
	f := &fleet{t: t, seed: seed, now: time.Hour}
	split, parts := Split, []Limit(nil)
	if len(rates) > 1 {
		split = SplitInPeriod
	}
	for _, r := range rates {
		l, _, err := split(r, 1)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, l)
		b := ideal.NewBucket(1, l.token, l.size)
		b.Take(int64(f.now), l.size)
		f.full = append(f.full, whole{Bucket: *b})
	}
	for range n {
		s := new(Shares)
		s.Open(2)
		f.processes = append(f.processes, s)
		f.limits = append(f.limits, s.Begin(f.now, parts...))
	}
	f.ends, f.fractions = make([]time.Duration, n), make([]int64, n)
	return f
}

// free returns what nobody but process i has a right to.
func (f *fleet) free(i int) int64 {
	free := int64(lua.Pool)
	for j := range f.processes {
		if j != i && f.now < f.ends[j] {
			free -= f.fractions[j]
		}
	}
	return free
}

// Processes whose fractions change, end and go on together never admit more than one bucket with
// the standing part of the limit, which is empty at first. With several limits this holds for each
// of them. It also holds if limits begin anew, and tokens are put back.
func TestSharesAreTogetherOneBucket(t *testing.T) {
	seeds := uint64(20_000)
	if testing.Short() {
		seeds = 4000
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 20))
		var rates []Rate
		for range 1 + r.IntN(2)*r.IntN(3) {
			rates = append(rates, Rate{MinBurst(1) + r.Int64N(100), eighths + r.Int64N(1000), time.Second})
		}
		if len(rates) == 1 {
			rates[0].Tokens -= r.Int64N(eighths)
		}
		f := newFleet(t, seed, rates, 1+r.IntN(3))
		for range 150 {
			f.step(r, r.IntN(len(f.processes)))
		}
	}
}

// step does something at random.
func (f *fleet) step(r *rand.Rand, i int) {
	s, l := f.processes[i], f.limits[i]
	size, token := l.Size(), l[r.IntN(len(l))].token
	switch r.IntN(12) {
	case 0, 1:
		f.now += time.Duration(r.Int64N(int64(token)*(1+r.Int64N(2*size)) + 1))
	case 2, 3, 4:
		fraction := f.free(i)
		if r.IntN(2) == 0 {
			fraction = r.Int64N(fraction + 1)
		}
		end := f.now + time.Duration(r.Int64N(int64(token)*4*size))
		if r.IntN(2) == 0 { // a renewal
			fraction = min(fraction, f.fractions[i])
		}
		s.set(f.now, fraction, end)
		f.fractions[i], f.ends[i] = fraction, end
	case 5, 6:
		f.take(i, 1+r.Int64N(size))
	case 7:
		f.drain(i)
	case 8:
		for j := range f.processes {
			f.drain(j)
		}
	case 9:
		f.back(1 + r.Int64N(size))
	case 10:
		s.Clear(f.now)
	case 11:
		f.limits[i] = s.Begin(f.now, l...)
	}
}

// take takes n tokens, or waits for them in the mind.
func (f *fleet) take(i int, n int64) {
	s, l := f.processes[i], f.limits[i]
	level := s.Level(At{Now: f.now}, key, l)
	var u Use
	left, ok := s.Take(At{Now: f.now}, key, l, n, &u)
	if ok != (level >= n) || ok && left != level-n {
		f.t.Fatalf("seed %d: took %d of %d: %v, %d left", f.seed, n, level, ok, left)
	}
	if ok {
		f.last.before, f.last.at = append(f.last.before[:0], f.full...), f.now
		f.admit(n)
		f.last.process, f.last.use, f.last.count = i, u, f.count
		return
	}
	if w := s.Wait(At{Now: f.now}, key, l, n); w < math.MaxInt64 && f.now+w < f.ends[i] && s.Level(At{Now: f.now + w}, key, l) < n {
		f.t.Fatalf("seed %d: after %v there are %d, not %d", f.seed, w, s.Level(At{Now: f.now + w}, key, l), n)
	}
}

// back puts up to n tokens of the last take back.
func (f *fleet) back(n int64) {
	u := f.last.use
	n = min(n, u.tokens)
	if n == 0 || !f.processes[f.last.process].Return(key, u, n) {
		return
	}
	f.last.use = Use{}
	if f.last.count != f.count { // what others took since is admitted all the same
		for i := range f.full {
			f.full[i].given += n
		}
		return
	}
	copy(f.full, f.last.before)
	for i := range f.full {
		if kept := u.tokens - n; kept > 0 && !f.full[i].Take(int64(f.last.at), kept) {
			f.full[i].given -= kept
		}
	}
}

// admit counts n tokens.
func (f *fleet) admit(n int64) {
	f.count++
	for i := range f.full {
		w := &f.full[i]
		if w.Take(int64(f.now), n) {
			continue
		}
		// What was put back while others took tokens may be admitted once more.
		if w.given -= n; w.given < 0 {
			f.t.Fatalf("seed %d: %d tokens too many of limit %d at %v", f.seed, n, i+1, f.now)
		}
	}
}

// drain takes all that a process has.
func (f *fleet) drain(i int) {
	for {
		if _, ok := f.processes[i].Take(At{Now: f.now}, key, f.limits[i], 1, nil); !ok {
			return
		}
		f.admit(1)
	}
}

// Of several limits the one that is strictest counts.
func TestSharesOfSeveralLimits(t *testing.T) {
	fast, _, err := SplitInPeriod(Rate{80 * eighths, 10 * eighths, time.Second}, 1)
	slow, _, err2 := SplitInPeriod(Rate{20 * eighths, eighths, time.Minute}, 1)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	s, now := new(Shares), time.Hour
	s.Open(2)
	both := s.Begin(now, fast, slow)
	s.set(now, lua.Pool/2, now+10*time.Hour)
	now += 5 * time.Hour
	about := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want || got > want+want/50 { // the clocks of process and Redis may differ by 1 %
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	take := func(n, left int64) (u Use) {
		t.Helper()
		got, ok := s.Take(At{Now: now}, key, both, n, &u)
		if !ok || got != left || s.Level(At{Now: now}, key, both) != left {
			t.Fatalf("%v, %d left, and the level is %d, want %d", ok, got, s.Level(At{Now: now}, key, both), left)
		}
		return u
	}
	// A half has 40 tokens of the fast limit, 5/s, and 10 of the slow one, one in two minutes.
	about("full", s.Full(At{Now: now}, key, both), 0)
	u := take(8, 2)
	about("until there are 3", s.Wait(At{Now: now}, key, both, 3), 2*time.Minute)
	about("until it is full", s.Full(At{Now: now}, key, both), 16*time.Minute)
	if s.Wait(At{Now: now}, key, both, 11) != math.MaxInt64 {
		t.Error("the slow limit never has 11 tokens")
	}
	if _, ok := s.Take(At{Now: now}, key, both, 3, &u); ok || s.Level(At{Now: now}, key, both[:1]) != 32 {
		t.Errorf("a refused take leaves %d of 32 of the first limit", s.Level(At{Now: now}, key, both[:1]))
	}
	if !s.Return(key, u, 8) || s.Level(At{Now: now}, key, both) != 10 || s.Level(At{Now: now}, key, both[:1]) != 40 {
		t.Errorf("put back, there are %d and %d", s.Level(At{Now: now}, key, both[:1]), s.Level(At{Now: now}, key, both))
	}
	u = take(1, 9)
	r, _ := s.room(s.stretch(), At{Now: now}, key, &both[1])
	r.take(1) // another key meets this one in a place
	if s.Return(key, u, 1) || s.Level(At{Now: now}, key, both) != 8 {
		t.Error("tokens were put back into a place that was used since")
	}
}

// Callers that take and put back at the same time never get more than a share has of any limit.
func TestTakesAtTheSameTime(t *testing.T) {
	s, now := new(Shares), time.Hour
	s.Open(4)
	var parts []Limit
	for _, burst := range []int64{8000, 4000, 6000} {
		l, _, err := SplitInPeriod(Rate{burst, 8, time.Hour}, 1)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, l)
	}
	limits := s.Begin(now, parts...)
	s.set(now, lua.Pool, now+5000*time.Hour)
	now += 2000 * time.Hour
	if n := s.Level(At{Now: now}, key, limits); n != 500 {
		t.Fatalf("a share of %d tokens, want 500", n)
	}
	var taken atomic.Int64
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(20, uint64(i)))
			for {
				n := 1 + r.Int64N(3)
				var u Use
				if _, ok := s.Take(At{Now: now}, key, limits, n, &u); !ok {
					return
				}
				taken.Add(n)
				if r.IntN(2) == 0 && s.Return(key, u, n) {
					taken.Add(-n)
				}
			}
		})
	}
	all.Wait()
	if n := taken.Load() + s.Level(At{Now: now}, key, limits); n > 500 {
		t.Errorf("%d tokens of a share of 500", n)
	}
}

// A share begins empty under a new limit, and after all shares were emptied.
func TestSharesBeginEmpty(t *testing.T) {
	slow, _, err := Split(Rate{160, 16, time.Hour}, 1)
	fast, _, err2 := Split(Rate{160, 160, time.Second}, 1)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	s, now := new(Shares), time.Hour
	s.Open(2)
	a := s.Begin(now, slow)
	s.set(now, lua.Pool, now+1000*time.Hour)
	now += 100 * time.Hour
	if n := s.Level(At{Now: now}, key, a); n != 20 {
		t.Fatalf("a share that filled for long has %d tokens, want 20", n)
	}
	b := s.Begin(now, fast)
	if n := s.Level(At{Now: now}, key, b); n != 0 {
		t.Errorf("a new limit begins with %d tokens", n)
	}
	if now += 500 * time.Millisecond; s.Level(At{Now: now}, key, b) != 9 {
		t.Errorf("after half of the refill it has %d tokens, want 9", s.Level(At{Now: now}, key, b))
	}
	now += time.Second
	s.Clear(now)
	if x, y := s.Level(At{Now: now}, key, a), s.Level(At{Now: now}, key, b); x != 0 || y != 0 {
		t.Errorf("emptied, the shares have %d and %d tokens", x, y)
	}
}

// A place serves one limit at a time. Another one finds nothing in it, takes it over once it was
// not used for as long as its own share takes to fill, and begins with an empty share.
func TestPlaceOfTwoLimits(t *testing.T) {
	slow, _, err := Split(Rate{160, 160, 10 * time.Second}, 1)
	fast, _, err2 := Split(Rate{160, 160, time.Second}, 1)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	s, now := new(Shares), time.Hour
	s.Open(2)
	a, b := s.Begin(now, slow), s.Begin(now, fast)
	s.set(now, lua.Pool, now+1000*time.Hour)
	levels := func(after time.Duration, ofA, ofB int64) {
		t.Helper()
		now += after
		if x, y := s.Level(At{Now: now}, key, a), s.Level(At{Now: now}, key, b); x != ofA || y != ofB {
			t.Errorf("there are %d and %d tokens, want %d and %d", x, y, ofA, ofB)
		}
	}
	take := func(l Limits, want bool) {
		t.Helper()
		if _, ok := s.Take(At{Now: now}, key, l, 1, nil); ok != want {
			t.Errorf("took a token: %v, want %v", ok, want)
		}
	}
	levels(20*time.Second, 20, 20) // nobody has used the place
	for range 20 {
		take(a, true)
	}
	levels(0, 0, 0)
	take(b, false)                     // and does not take the place over
	levels(600*time.Millisecond, 1, 0) // half a second is a token of the slow limit
	take(a, true)
	levels(1500*time.Millisecond, 3, 0)
	take(b, false) // takes it over, because it was empty a second ago
	levels(520*time.Millisecond, 0, 10)
	take(b, true)
	take(a, false)
	if n := s.Refund(At{Now: now}, key, a, 5); n != 0 {
		t.Errorf("the share of other limits got %d tokens", n)
	}
	if n := s.Charge(At{Now: now}, key, a, 5); n != 0 {
		t.Errorf("the share of other limits was charged %d tokens", n)
	}
	if w := s.Wait(At{Now: now}, key, a, 1); w != math.MaxInt64 {
		t.Errorf("a token of another limit comes in %v", w)
	}
	levels(15*time.Second, 0, 20)
	take(a, false)
	levels(600*time.Millisecond, 1, 0)
}

// Of many changes the oldest are folded, and a share is never larger than without that.
func TestChangesAreFolded(t *testing.T) {
	l, _, err := Split(Rate{1 << 20, 1 << 10, time.Second}, 1)
	if err != nil {
		t.Fatal(err)
	}
	l.since = math.MinInt64 // the changes alone
	c, now, all := new(stretch), time.Duration(0), []change(nil)
	for i := range int64(3 * mostChanges) {
		least := min(c.fraction, i*1000)
		c = c.next(now, i*1000, time.Hour)
		all = append(all, change{now, c.virtual, least})
		now += time.Second
		v := c.at(now)
		exact := v - scale(l.fill, c.fraction)
		for _, one := range all {
			exact = max(exact, one.virtual-scale(l.fill, one.least))
		}
		if got := c.empty(v, &l); got < exact {
			t.Fatalf("after %d changes a full share was empty at %v, want %v or later", i+1, got, exact)
		}
		if len(c.changes) > mostChanges {
			t.Fatalf("%d changes are kept", len(c.changes))
		}
	}
}
