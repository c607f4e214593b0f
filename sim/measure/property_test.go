package measure_test

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// stream is requests of any kind, in the order of time, for a scenario with two limits and windows
// anywhere.
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
	x.Limits[0].Limit.Burst = rapid.Int64Range(1, 20).Draw(t, "burst")
	if rapid.Bool().Draw(t, "several limits") {
		x.Limits[0].Limit = x.Limits[0].Limit.And(tiered.Per(rapid.Int64Range(1, 99).Draw(t, "tokens"), 9*s))
	}
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

// buckets are the ideal ones of the limits of a policy.
type buckets []*ideal.Bucket

func bucketsOf(x scenario.Limit) (all buckets) {
	for _, l := range x.Limit.Each() {
		all = append(all, ideal.NewBucket(l.Tokens, l.Per, cmp.Or(l.Burst, l.Tokens)))
	}
	return all
}

// take takes from all of them, or from none.
func (all buckets) take(at time.Duration, n int64) bool {
	if slices.ContainsFunc(all, func(b *ideal.Bucket) bool { return !b.Has(int64(at), n) }) {
		return false
	}
	for _, b := range all {
		b.Take(int64(at), n)
	}
	return true
}

// play has a meter see the stream as a limiter decides it.
func (st stream) play(m *measure.Meter, allows func(i int, r request) bool) {
	for i, r := range st.requests {
		d := limited
		if allows(i, r) {
			d = granted
		}
		m.Forget(r.at) // a key that is at rest is as if it were new
		m.Decided(r.at, m.Asked(r.at, r.process, r.limit, r.key, r.cost, common), d)
	}
}

// ideally decides as one limiter per key.
func (st stream) ideally() func(i int, r request) bool {
	keys := map[request]buckets{}
	return func(_ int, r request) bool {
		id := request{limit: r.limit, key: r.key}
		if keys[id] == nil {
			keys[id] = bucketsOf(st.scenario.Limits[r.limit])
		}
		return keys[id].take(r.at, r.cost)
	}
}

// An ideal limiter is over by nothing and short of nothing, in any part.
func TestIdealLimiter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := drawStream(t)
		m := measure.New(st.scenario)
		st.play(m, st.ideally())
		r := m.Report()
		check := func(where string, x measure.Metrics) {
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

// Any stream of admissions is measured as by counting each interval anew, window by window and key
// by key: intervals within a window, and for those that begin with the warm-up all that end in
// them.
func TestOverAdmissionAgainstWorst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := drawStream(t)
		x := st.scenario
		admits := make([]bool, len(st.requests))
		for i := range admits {
			admits[i] = rapid.Bool().Draw(t, "admitted")
		}
		m := measure.New(x)
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
					for _, limit := range x.Limits[l].Limit.Each() {
						for n, last := range as {
							if last.After < int64(from) {
								continue
							}
							var tokens int64
							for i := n; i >= 0; i-- {
								tokens += as[i].Tokens
								refill := float64(last.After-as[i].Before) / float64(limit.Per) * float64(limit.Tokens)
								over = max(over, float64(tokens-cmp.Or(limit.Burst, limit.Tokens))-refill)
							}
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

// The longest decision is exact, and the quantile within 1 %, or exact below 128 ns.
func TestHowLong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 200), rapid.Int64Range(0, int64(time.Second)),
			rapid.Int64Range(0, 1<<41-1)), 1, 300).Draw(t, "times")
		m := measure.New(made())
		for i, d := range times { // in all phases
			at := time.Duration(i)*100*ms + 1
			m.Decided(at+time.Duration(d), m.Asked(at, 0, 0, name(i), 1, common), granted)
		}
		slices.Sort(times)
		r := m.Report()
		exact := float64(times[int(math.Ceil(0.99*float64(len(times))))-1])
		got := r.Metrics.DecideP99 * 1e9
		if math.Abs(got-exact) > 0.005*exact+1e-6 || exact < 128 && math.Abs(got-exact) > 1e-6 {
			t.Fatalf("p99: %v ns, exactly %v", got, exact)
		}
		near(t, "longest", r.Metrics.DecideMax, time.Duration(times[len(times)-1]).Seconds())
	})
	m := measure.New(made())
	near(t, "of none", m.Report().Metrics.DecideP99, -1)
	m.Decided(200*time.Hour+1, m.Asked(1, 0, 0, "k", 1, common), granted)
	r := m.Report()
	if p := r.Metrics.DecideP99 * 1e9; p < 1<<41/100*99 || r.Metrics.DecideMax != (200*time.Hour).Seconds() {
		t.Errorf("longer than the longest: %v, %v", p, r.Metrics.DecideMax)
	}
}
