package measure

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// BenchmarkRequest is a request and its decision, with a fault and so with two policers: of one key and one limit,
// with an expectation's windows besides, and of many keys. It is to be 400 ns or less with one key.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct {
		name    string
		keys    int
		windows int
	}{{"one key", 1, 0}, {"one key and 3 windows", 1, 3}, {"1000 keys", 1000, 0}, {"100000 keys", 100_000, 0}} {
		b.Run(c.name, func(b *testing.B) {
			names := make([]string, c.keys)
			for i := range names {
				names[i] = name(i)
			}
			m := New(made(func(x *scenario.Scenario) {
				x.Limits[0] = scenario.Limit{Name: "api", Tokens: 1000, Per: scenario.Duration(s)}
				x.Fleet.N = 50
				x.Length = scenario.Duration(24 * time.Hour) // all windows are open as long as it runs
				for i := range c.windows {
					expecting("over_admission", "<=", 0, time.Duration(i+1)*ms, 24*time.Hour-time.Duration(i)*time.Minute)(x)
				}
			}))
			b.ReportAllocs()
			var at time.Duration
			i := 0
			for b.Loop() {
				at += 700 * time.Microsecond // 1430 requests per second
				r := m.Asked(at, i%50, 0, names[i%len(names)], 1)
				d := limited
				if r.within {
					d = granted
				}
				m.Decided(at, r, d)
				i++
			}
			x := m.Report(at).Metrics
			if x.Offered == 0 || x.Admitted != x.Ideal {
				b.Fatalf("offered %d, admitted %d of %d", x.Offered, x.Admitted, x.Ideal)
			}
			b.ReportMetric(float64(len(m.keys[0].all)), "keys")
		})
	}
}
