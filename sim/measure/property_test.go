package measure

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// stream is requests of any kind, in the order of time, for a scenario with two limits and windows anywhere.
type stream struct {
	scenario *scenario.Scenario
	requests []request
}

type request struct {
	at             time.Duration
	process, limit int
	key            string
	cost           int64
}

func drawStream(t *rapid.T) stream {
	st := stream{scenario: made(twoLimits)}
	x := st.scenario
	x.WarmUp = scenario.Duration(rapid.Int64Range(1, int64(12*s)).Draw(t, "warm-up"))
	x.Limits[0].Burst = rapid.Int64Range(1, 20).Draw(t, "burst")
	if rapid.Bool().Draw(t, "no faults") {
		x.Faults = nil
	}
	for range rapid.IntRange(0, 4).Draw(t, "windows") {
		after := rapid.Int64Range(0, int64(29*s)).Draw(t, "after")
		before := rapid.Int64Range(after+1, int64(31*s)).Draw(t, "before")
		expecting("over_admission", "<=", 0, time.Duration(after), time.Duration(before))(x)
	}
	var at time.Duration
	for range rapid.IntRange(0, 300).Draw(t, "requests") {
		at += time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, int64(200*ms))).Draw(t, "later"))
		st.requests = append(st.requests, request{
			at: at, process: rapid.IntRange(0, 3).Draw(t, "process"), limit: rapid.IntRange(0, 1).Draw(t, "limit"),
			key: name(rapid.IntRange(0, 2).Draw(t, "key")), cost: rapid.Int64Range(1, 4).Draw(t, "cost"),
		})
	}
	return st
}

// bucketOf is an ideal bucket of a limit.
func bucketOf(l scenario.Limit) *ideal.Bucket {
	burst := l.Burst
	if burst == 0 {
		burst = l.Tokens
	}
	return ideal.NewBucket(l.Tokens, time.Duration(l.Per), burst)
}

// play has a meter see the stream as a limiter decides it.
func (st stream) play(m *Meter, allows func(i int, r request) bool) {
	for i, r := range st.requests {
		d := limited
		if allows(i, r) {
			d = granted
		}
		m.Decided(r.at, m.Asked(r.at, r.process, r.limit, r.key, r.cost), d)
	}
}

// ideally decides as one bucket per key.
func (st stream) ideally() func(i int, r request) bool {
	buckets := map[request]*ideal.Bucket{}
	return func(_ int, r request) bool {
		id := request{limit: r.limit, key: r.key}
		if buckets[id] == nil {
			buckets[id] = bucketOf(st.scenario.Limits[r.limit])
		}
		return buckets[id].Take(int64(r.at), r.cost)
	}
}

// An ideal limiter is over by nothing and short of nothing, in any part.
func TestIdealLimiter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := drawStream(t)
		m := New(st.scenario)
		st.play(m, st.ideally())
		r := m.Report()
		check := func(where string, x Metrics) {
			if x.OverAdmission != 0 || x.Shortfall > 0 || x.DeniedWithin > 0 || x.Admitted != x.Ideal {
				t.Fatalf("%s: an ideal limiter is measured as %+v", where, x)
			}
			if x.Ideal > 0 && (x.Shortfall != 0 || x.Utilisation != 1) {
				t.Fatalf("%s: utilisation %v, shortfall %v", where, x.Utilisation, x.Shortfall)
			}
		}
		check("all", r.Metrics)
		for _, p := range r.Phases {
			check(p.Name, p.Metrics)
		}
		for n, x := range r.Limits {
			check(n, x)
		}
		for _, o := range r.Expectations {
			if !o.Passed {
				t.Fatalf("%v", o)
			}
		}
	})
}

// Any stream of admissions is measured as by counting each interval anew, window by window and key by key:
// intervals within a window, and for those that begin with the warm-up all that end in them.
func TestOverAdmissionAgainstWorst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := drawStream(t)
		x := st.scenario
		admits := make([]bool, len(st.requests))
		for i := range admits {
			admits[i] = rapid.Bool().Draw(t, "admitted")
		}
		m := New(x)
		st.play(m, func(i int, _ request) bool { return admits[i] })
		r := m.Report()
		start := time.Duration(x.WarmUp)
		worst := func(from, to time.Duration, limits ...int) (over float64) {
			since := from
			if from == start {
				since = 0 // and only intervals that end from then on
			}
			for _, l := range limits {
				for k := range 3 {
					var as []ideal.Admission
					for i, q := range st.requests {
						if admits[i] && q.limit == l && q.key == name(k) && q.at >= since && (q.at < to || to >= 30*s) {
							as = append(as, ideal.Admission{Before: int64(q.at), After: int64(q.at), Tokens: q.cost})
						}
					}
					limit := x.Limits[l]
					for n, last := range as {
						if last.After < int64(from) {
							continue
						}
						var tokens int64
						for i := n; i >= 0; i-- {
							tokens += as[i].Tokens
							refill := float64(last.After-as[i].Before) / float64(limit.Per) * float64(limit.Tokens)
							over = max(over, float64(tokens-limit.Burst)-refill)
						}
					}
				}
			}
			return over
		}
		same := func(where string, got, want float64) {
			if math.Abs(got-want) > 1e-9*max(1, want) {
				t.Fatalf("%s: over by %v, want %v", where, got, want)
			}
		}
		same("all", r.Metrics.OverAdmission, worst(start, 30*s, 0, 1))
		same("api", r.Limits["api"].OverAdmission, worst(start, 30*s, 0))
		for _, p := range r.Phases {
			from, to := time.Duration(math.Round(p.FromS*1e9)), time.Duration(math.Round(p.ToS*1e9))
			same(p.Name, p.Metrics.OverAdmission, worst(from, to, 0, 1))
		}
		for i, o := range r.Expectations {
			e := x.Expect[i]
			from := time.Duration(e.After)
			if from == 0 {
				from = start
			}
			same(o.Text, o.Value, worst(from, time.Duration(e.Before), 0))
		}
	})
}

// A quantile is within 1 % of the exact one, or exact below 128 ns.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, int64(time.Second)), rapid.Int64Range(0, 1<<41-1)), 1, 200).Draw(t, "times")
		var h, a, b histogram
		for i, d := range times {
			h.add(time.Duration(d))
			if i%2 == 0 {
				a.add(time.Duration(d))
			} else {
				b.add(time.Duration(d))
			}
		}
		a.merge(&b)
		if a != h {
			t.Fatal("two halves are not the whole")
		}
		slices.Sort(times)
		for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
			exact := float64(times[int(math.Ceil(q*float64(len(times))))-1])
			got := float64(h.quantile(q))
			if math.Abs(got-exact) > 0.005*exact || exact > 0 && exact < 128 && got != exact {
				t.Fatalf("quantile %v: %v, exactly %v", q, got, exact)
			}
		}
		if h.max != time.Duration(times[len(times)-1]) {
			t.Fatal("max")
		}
	})
	var h histogram
	want(t, "of none", h.quantile(0.5), -1)
	h.add(-1)
	h.add(200 * time.Hour)
	want(t, "less than nothing", h.quantile(0.5), 0)
	if q := h.quantile(1); q < 1<<41/100*99 || h.max != 200*time.Hour {
		t.Errorf("longer than the longest: %v, %v", q, h.max)
	}
}
