package standing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestSplit(t *testing.T) {
	for _, row := range []struct {
		in, rest Rate
		size     int64
		err      string
	}{
		{in: Rate{200, 100, time.Second}, rest: Rate{175, 700, 8 * time.Second}, size: 25},
		{in: Rate{16, 8, time.Second}, rest: Rate{14, 7, time.Second}, size: 2},
		{in: Rate{23, 1, time.Hour}, rest: Rate{21, 7, 8 * time.Hour}, size: 2},
		{in: Rate{15, 100, time.Second}, err: "its burst is 15: must be at least 16"},
		{in: Rate{1 << 40, 1 << 40, time.Second}, rest: Rate{7 << 37, 7 << 37, time.Second}, size: 1 << 37},
		{in: Rate{1 << 40, 1<<40 - 1, time.Second}, rest: Rate{7 << 37, 7 * (1<<37 - 1), time.Second}, size: 1 << 37},
		{in: Rate{16, 1, 10 * year}, err: "it takes more than 73 years to refill"},
		{in: Rate{16, 9, 20 * year}, err: "it refills 9 tokens per 175200h0m0s: a period above 156374h59m13.421312s needs a " +
			"multiple of 8 tokens"},
	} {
		l, rest, err := Split(row.in)
		if err != nil || row.err != "" {
			if fmt.Sprint(err) != row.err {
				t.Errorf("%v: error %v, want %s", row.in, err, row.err)
			}
			continue
		}
		if rest != row.rest || l.Size() != row.size {
			t.Errorf("%v: rest %v and %d, want %v and %d", row.in, rest, l.Size(), row.rest, row.size)
		}
	}
}

const year = 365 * 24 * time.Hour

// The two parts of a split limit are never more than the limit.
func TestSplitIsAtMostTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rate{
			rapid.Int64Range(MinBurst, 1<<40).Draw(t, "burst"), rapid.Int64Range(1, 1<<40).Draw(t, "tokens"),
			time.Duration(rapid.Int64Range(1, int64(year/time.Microsecond)).Draw(t, "per")) * time.Microsecond,
		}
		l, rest, err := Split(r)
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

// fleet is some processes whose fractions sum to at most 1, and an ideal bucket of what they have together.
type fleet struct {
	t         *testing.T
	seed      uint64
	now       time.Duration
	processes []*Shares
	limits    []*Limit
	ends      []time.Duration // of their rights
	fractions []int64
	full      *ideal.Bucket
	count     int   // of admissions
	given     int64 // tokens that were put back and may be admitted again

	last struct { // the last take
		process int
		use     Use
		before  ideal.Bucket
		given   int64
		at      time.Duration
		count   int // of admissions
	}
}

const key = 0x123456789abcdef

func newFleet(t *testing.T, seed uint64, r Rate, n int) *fleet {
	f := &fleet{t: t, seed: seed, now: time.Hour}
	l, _, err := Split(r)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		s := new(Shares)
		s.Open(2)
		f.processes = append(f.processes, s)
		f.limits = append(f.limits, s.Begin(f.now, l))
	}
	f.ends, f.fractions = make([]time.Duration, n), make([]int64, n)
	f.full = ideal.NewBucket(1, l.token, l.size)
	f.full.Take(int64(f.now), l.size)
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

// Processes whose fractions change, end and go on together never admit more than one bucket with the standing part of the
// limit, which is empty at first. This also holds if shares are emptied, limits begin anew, and tokens are put back.
func TestSharesAreTogetherOneBucket(t *testing.T) {
	seeds := uint64(20_000)
	if testing.Short() {
		seeds = 4000
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 20))
		f := newFleet(t, seed, Rate{MinBurst + r.Int64N(100), 1 + r.Int64N(1000), time.Second}, 1+r.IntN(3))
		token := f.limits[0].token
		for range 150 {
			f.step(r, r.IntN(len(f.processes)), token)
		}
	}
}

// step does something at random.
func (f *fleet) step(r *rand.Rand, i int, token time.Duration) {
	s, l := f.processes[i], f.limits[i]
	switch r.IntN(12) {
	case 0, 1:
		f.now += time.Duration(r.Int64N(int64(token)*(1+r.Int64N(2*l.size)) + 1))
	case 2, 3, 4:
		fraction := f.free(i)
		if r.IntN(2) == 0 {
			fraction = r.Int64N(fraction + 1)
		}
		end := f.now + time.Duration(r.Int64N(int64(token)*4*l.size))
		if r.IntN(2) == 0 { // a renewal
			fraction = min(fraction, f.fractions[i])
		}
		s.set(f.now, fraction, end)
		f.fractions[i], f.ends[i] = fraction, end
	case 5, 6:
		f.take(i, 1+r.Int64N(l.size))
	case 7:
		f.drain(i)
	case 8:
		for j := range f.processes {
			f.drain(j)
		}
	case 9:
		f.back(1 + r.Int64N(l.size))
	case 10:
		s.Clear(f.now)
	case 11:
		f.limits[i] = s.Begin(f.now, *l)
	}
}

// take takes n tokens, or waits for them in the mind.
func (f *fleet) take(i int, n int64) {
	s, l := f.processes[i], f.limits[i]
	level := s.Level(f.now, key, l)
	left, u, ok := s.Take(f.now, key, l, n)
	if ok != (level >= n) || ok && left != level-n {
		f.t.Fatalf("seed %d: took %d of %d: %v, %d left", f.seed, n, level, ok, left)
	}
	if ok {
		f.last.before, f.last.given, f.last.at = *f.full, f.given, f.now
		f.admit(n)
		f.last.process, f.last.use, f.last.count = i, u, f.count
		return
	}
	if w := s.Wait(f.now, key, l, n); w < math.MaxInt64 && f.now+w < f.ends[i] && s.Level(f.now+w, key, l) < n {
		f.t.Fatalf("seed %d: after %v there are %d, not %d", f.seed, w, s.Level(f.now+w, key, l), n)
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
		f.given += n
		return
	}
	*f.full, f.given = f.last.before, f.last.given
	if kept := u.tokens - n; kept > 0 && !f.full.Take(int64(f.last.at), kept) {
		f.given -= kept
	}
}

// admit counts n tokens.
func (f *fleet) admit(n int64) {
	f.count++
	if f.full.Take(int64(f.now), n) {
		return
	}
	// What was put back while others took tokens may be admitted once more.
	if f.given -= n; f.given < 0 {
		f.t.Fatalf("seed %d: %d tokens too many at %v", f.seed, n, f.now)
	}
}

// drain takes all that a process has.
func (f *fleet) drain(i int) {
	for {
		if _, _, ok := f.processes[i].Take(f.now, key, f.limits[i], 1); !ok {
			return
		}
		f.admit(1)
	}
}

// A share begins empty under another limit, and after all shares were emptied.
func TestSharesBeginEmpty(t *testing.T) {
	slow, _, err := Split(Rate{160, 16, time.Hour})
	fast, _, err2 := Split(Rate{160, 160, time.Second})
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	s, now := new(Shares), time.Hour
	s.Open(2)
	a := s.Begin(now, slow)
	s.set(now, lua.Pool, now+1000*time.Hour)
	now += 100 * time.Hour
	if n := s.Level(now, key, a); n != 20 {
		t.Fatalf("a share that filled for long has %d tokens, want 20", n)
	}
	b := s.Begin(now, fast)
	if n := s.Level(now, key, b); n != 0 {
		t.Errorf("a new limit begins with %d tokens", n)
	}
	if now += 500 * time.Millisecond; s.Level(now, key, b) != 9 {
		t.Errorf("after half of the refill it has %d tokens, want 9", s.Level(now, key, b))
	}
	now += time.Second
	s.Clear(now)
	if x, y := s.Level(now, key, a), s.Level(now, key, b); x != 0 || y != 0 {
		t.Errorf("emptied, the shares have %d and %d tokens", x, y)
	}
	now += time.Second
	s.Empty(now, key)
	if n := s.Level(now, key, b); n != 0 {
		t.Errorf("emptied, the key's share has %d tokens", n)
	}
}

// Of many changes the oldest are folded, and a share is never larger than without that.
func TestChangesAreFolded(t *testing.T) {
	l, _, err := Split(Rate{1 << 20, 1 << 10, time.Second})
	if err != nil {
		t.Fatal(err)
	}
	l.since = math.MinInt64 // the changes alone
	c, now, all := new(stretch), time.Duration(0), []change(nil)
	for i := range int64(3 * mostChanges) {
		least := min(c.fraction, i*1000)
		c = c.next(now, i*1000, time.Hour)
		all = append(all, change{c.virtual, least})
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
