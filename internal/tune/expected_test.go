package tune

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// within is the factor that sums on a napkin and runs agree within; sim/tuning.md names it.
const maxFactor = 3

// agree holds the sums beside a search against what was measured, and returns the worst factor between them.
func agree(t *testing.T, a *Answer) (worst float64) {
	t.Helper()
	for _, e := range a.expected() {
		if e.Value == 0 || e.Measured == 0 {
			if least := float64(a.Question.Limit.Burst) / 10; e.Value > least || e.Measured > least {
				t.Errorf("%s: %s, measured %s: %s", e.Name, e.Text, e.MeasuredText, e.What)
			}
			continue
		}
		factor := max(e.Value/e.Measured, e.Measured/e.Value)
		worst = max(worst, factor)
		if factor > maxFactor || e.AtMost && e.Measured > e.Value+slack {
			t.Errorf("%s: %s, measured %s: %s", e.Name, e.Text, e.MeasuredText, e.What)
		}
	}
	return worst
}

// The sums for a search that is quick, and for choices that lease and do not.
func TestExpected(t *testing.T) {
	q := little()
	q.Faults, q.Outage, q.Over, q.Shortfall = []string{"blackhole", "none"}, 6*second, 1000, 0.5
	a, err := Search(q, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := a.expected()
	if len(all) < 4 {
		t.Fatalf("only %+v", all)
	}
	t.Logf("within a factor of %.2f", agree(t, a))

	if err := q.Check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                               string
		change                             func(*Question)
		choice                             Choice
		lease, between, requestsOfAProcess float64
	}{
		{"direct, for demand is too little to lease", func(*Question) {}, Choice{Period: second / 100}, 0, 1. / 40, 15},
		{"follows demand: 15/s for 250 ms and a quarter", func(*Question) {}, Choice{}, 1.25 * 15 / 4, 0.25, 15},
		{"of a size, beyond the limit", func(*Question) {}, Choice{Size: 3}, 3, 0.25, 15},
		{"of a size, within the limit", func(q *Question) { q.Demand = 0.5 }, Choice{Size: 3}, 3, 0.6, 5},
		{"a quarter of the burst at most", func(*Question) {}, Choice{Size: 300}, 10, 0.25, 15},
		{"no leases, within the limit", func(q *Question) { q.Demand = 0.5 }, Choice{Size: -1}, 0, 0, 5},
		{
			"a denial is believed for 5 s", func(q *Question) { q.Limit.Per = 600 * second },
			Choice{Size: -1},
			0, 5,
			0.025,
		},
	} {
		q := little()
		c.change(&q)
		if err := q.Check(); err != nil {
			t.Fatal(err)
		}
		k := q.perKey(c.choice)
		if near := func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }; !near(k.lease, c.lease) ||
			!near(k.between, c.between) || !near(k.requests, c.requestsOfAProcess) {
			t.Errorf("%s: %+v", c.name, k)
		}
	}
}

// A sum whose fault or mode there was not is left out, and the rest of the answer is there.
func TestExpectedWithout(t *testing.T) {
	q := little()
	if err := q.Check(); err != nil {
		t.Fatal(err)
	}
	r := Result{Choice: Choice{Mode: "closed", Size: -1}, byFault: map[string]measure.Metrics{"partition": {}}}
	a := &Answer{Question: q, Advised: r, Last: []Result{r}}
	if all := a.expected(); len(all) > 0 {
		t.Errorf("%+v", all)
	}
	if p := q.policy(r.Choice); p.FailMode != "closed" || p.LeaseSize != -1 ||
		time.Duration(p.Period) != 250*time.Millisecond || p.Limit != q.Limit {
		t.Errorf("%+v", p)
	}
}
