package local

import (
	"math"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestDemandFollowsARiseFasterThanAFall(t *testing.T) {
	var d demand
	offers := int64(0)
	at := time.Duration(0)
	feed := func(rate float64, length time.Duration) {
		for end := at + length; at < end; at += 10 * ms {
			offers += int64(rate / 100)
			d.sample(at, offers, 1<<40, false)
		}
	}
	feed(1000, 300*ms)
	if d.rate < 550 || d.rate > 700 {
		t.Errorf("%.0f/s after 0.3 s of 1000/s, want 1 − 1/e of it", d.rate)
	}
	feed(1000, 3*time.Second)
	if math.Abs(d.rate-1000) > 10 {
		t.Errorf("%.0f/s after 3 s of 1000/s", d.rate)
	}
	feed(0, time.Second)
	if d.rate < 330 || d.rate > 410 {
		t.Errorf("%.0f/s one second after the end, want 1/e of it", d.rate)
	}
}

// While tokens are scarce what a process wanted a second ago counts against those who want it now: it forgets as fast
// as it learns, and both within about a tenth of a second.
func TestDemandFollowsSoonWhileTokensAreScarce(t *testing.T) {
	d := demand{rate: 1000, at: time.Second}
	d.sample(time.Second+100*ms, 0, 1<<40, true)
	if d.rate < 330 || d.rate > 410 {
		t.Errorf("%.0f/s 0.1 s after the end of 1000/s, want 1/e of it", d.rate)
	}
	d = demand{at: time.Second}
	d.sample(time.Second+100*ms, 100, 1<<40, true)
	if d.rate < 590 || d.rate > 670 {
		t.Errorf("%.0f/s after 0.1 s of 1000/s, want 1 − 1/e of it", d.rate)
	}
}

func TestDemandCountsAtMostOneBurstPerSample(t *testing.T) {
	var d demand
	d.sample(time.Second, 0, 100, false) // not at 0, which is never
	d.sample(time.Second+100*ms, 1_000_000, 100, false)
	if d.rate > 1000 || d.rate < 200 {
		t.Errorf("%.0f/s, want at most 100 tokens per 100 ms, and some of that", d.rate)
	}
}

func TestDemandStaysFinite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d demand
		var at time.Duration
		var offers int64
		for range 20 {
			at += time.Duration(rapid.Int64Range(-1e9, 1e15).Draw(t, "step"))
			offers += rapid.Int64Range(0, 1<<45).Draw(t, "offers")
			d.sample(at, offers, 1<<40, false)
			if math.IsNaN(d.rate) || math.IsInf(d.rate, 0) || d.rate < 0 {
				t.Fatalf("rate %v", d.rate)
			}
		}
	})
}

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
	if got := s.want(p, 100, 0, 1); got != 400 {
		t.Errorf("at the mark: want %d, not 400", got)
	}
	if got := s.want(p, 0, 0, 1); got != 500 {
		t.Errorf("from empty: want %d, not 500", got)
	}
	if got := s.want(p, 0, 7000, 1); got != 5000 {
		t.Errorf("with 7000 waited for: want %d, not a quarter of the burst", got)
	}
	if got := s.want(p, 0, 7000, 6000); got != 6000 {
		t.Errorf("for one request of 6000: want %d", got)
	}
	p.Size = 30
	if got := s.want(p, 100, 0, 1); got != 30 {
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

// What lies in processes is missing in the burst: one of few tokens, or of few requests, is not leased from, unless any
// may be.
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

func TestShareIsDebitedAndNeverRefilledByTelling(t *testing.T) {
	p := &Policy{Cap: 100, Tokens: 10, Per: time.Second}
	var s fallback
	s.resize(p, 0, 4, true)
	if s.tokens(0) != 25 {
		t.Fatalf("a new share has %v, want 25", s.tokens(0))
	}
	s.debit(0, 20)
	s.debit(0, 20) // as far as there are whole tokens
	if s.tokens(0) != 0 {
		t.Fatalf("%v left, want 0", s.tokens(0))
	}
	s.resize(p, 0, 2, false)
	if s.tokens(0) != 0 {
		t.Fatalf("a smaller fleet refilled the share to %v", s.tokens(0))
	}
	if got := s.tokens(time.Second); math.Abs(got-5) > 1e-6 {
		t.Fatalf("%v after 1 s, want r/N = 5", got)
	}
	s.resize(p, time.Second, 1000, false)
	if s.limiter.Burst() != 1 {
		t.Errorf("burst %d, want at least 1", s.limiter.Burst())
	}
}

// A share whose clock went back would mint tokens: the same calls on a bare limiter do (golang/go#65508).
func TestShareDoesNotMintWhenNowGoesBack(t *testing.T) {
	p := &Policy{Cap: 100, Tokens: 100, Per: time.Second}
	var s fallback
	s.resize(p, 0, 1, true)
	bare := rate.NewLimiter(100, 100)
	var ours, bares int64
	for i := range 1000 {
		at := time.Hour
		if i%2 == 1 {
			at -= 10 * time.Second
		}
		before := int64(s.tokens(at))
		s.debit(at, 5)
		ours += before - int64(s.tokens(at))
		if bare.AllowN(base.Add(at), 5) {
			bares += 5
		}
	}
	if ours > 100 {
		t.Errorf("%d tokens from a share of 100", ours)
	}
	if bares <= 100 {
		t.Errorf("the bare limiter gave %d: this test no longer shows anything", bares)
	}
}

// A bucket, whatever the sequence of steps, keeps its books, and never lets more be taken than was granted.
func TestBucketKeepsItsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			Cap: rapid.Int64Range(1, 50).Draw(t, "cap"), Tokens: rapid.Int64Range(1, 1000).Draw(t, "tokens"),
			Per: time.Second, Period: 250 * ms, Timeout: 50 * ms,
			NoLease: rapid.Bool().Draw(t, "no lease"),
			Uniform: func() float64 { return 0.5 },
		}
		b := new(Bucket)
		b.Init(&p, "k")
		now, seq := time.Duration(0), int64(0)
		var call Call
		var line []*Waiter
		var admitted int64
		costs := map[*Waiter]int64{}
		collect := func() {
			for i := 0; i < len(line); {
				select {
				case v := <-line[i].C:
					if v.Outcome == Admitted {
						admitted += costs[line[i]]
					}
					line = append(line[:i], line[i+1:]...)
				default:
					i++
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.SampledFrom([]int{0, 0, 1, 5, 30, 300, 3000}).Draw(t, "ms")) * ms
			switch rapid.SampledFrom([]string{
				"take", "ask", "begin", "accept", "fail", "late", "check", "leave",
				"expire", "retire", "revive",
			}).Draw(t, "step") {
			case "take":
				n := rapid.Int64Range(1, p.Cap).Draw(t, "n")
				if _, ok, renew := b.Take(now, n); ok {
					admitted += n
					if renew {
						b.Renew(now)
					}
				}
			case "ask":
				w, n := NewWaiter(), rapid.Int64Range(1, p.Cap).Draw(t, "n")
				costs[w] = n
				switch v, _ := b.Ask(now, n, now+20*ms, w); v.Outcome {
				case Admitted:
					admitted += n
				case Waiting:
					line = append(line, w)
				}
			case "begin":
				if call.Seq == 0 {
					seq++
					call, _ = b.Begin(now, Conditions{
						Seq: seq, Lease: "me", Clock: rapid.Bool().Draw(t, "clock"),
						RoundTrip: ms, Fleet: 3,
					})
					if call.Ret > 0 && call.Hold > 0 {
						t.Fatalf("ret beside a hold: %+v", call)
					}
					if call.Direct && call.Ack+call.Hold+call.Ret+call.Refund > 0 {
						t.Fatalf("a direct take states a lease: %+v", call)
					}
					if call.Min > call.Want || call.Min > p.Cap {
						t.Fatalf("min %d, want %d, cap %d", call.Min, call.Want, p.Cap)
					}
				}
			case "accept":
				if call.Seq != 0 {
					grant := rapid.Int64Range(0, call.Want).Draw(t, "grant")
					if grant < call.Min {
						grant = 0
					}
					b.Accept(now, call.Seq, lua.Reply{
						Grant: grant, Level: rapid.Int64Range(-p.Cap, p.Cap).Draw(t, "level"),
						Retry: us(100 * ms), TTLLeft: call.TTL,
					})
					b.Accept(now, call.Seq, lua.Reply{Grant: grant, TTLLeft: call.TTL}) // a second copy changes nothing
					call = Call{}
				}
			case "fail":
				b.Fail(now, call.Seq)
				call = Call{}
			case "late":
				b.Late(now, call.Seq)
				call = Call{}
			case "check":
				b.Check(now)
			case "leave":
				if len(line) > 0 && b.Leave(line[0]) {
					line = line[1:]
				}
			case "expire":
				b.Expire(now)
				call = Call{}
			case "retire":
				b.retire(now)
			case "revive":
				b.revive()
			}
			collect()
			s := b.Stats()
			if s.Granted != s.Spent+s.Returned+s.Burnt+s.Held || s.Held < 0 || s.Burnt < 0 {
				t.Fatalf("books: %+v", s)
			}
			if s.Spent != admitted {
				t.Fatalf("spent %d by the books, %d admitted", s.Spent, admitted)
			}
			if leaseOf(b).pot.tokens.Load() < 0 {
				t.Fatalf("pot %d", leaseOf(b).pot.tokens.Load())
			}
		}
	})
}
