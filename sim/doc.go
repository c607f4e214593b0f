// Package sim rehearses failures: it runs the shipped limiter, as many processes on one Redis, through an outage in virtual
// time, and measures what was admitted, refused and waited for.
//
// Nothing of the limiter is a model. Each process is a tiered.Group over a go-redis client; the scripts run in miniredis, a
// Redis in Go; between them is a network that delays and, on command, swallows. All of it lives in a testing/synctest
// bubble, whose clock goes on when nobody has anything left to do: a minute takes seconds, and a timeout of 50 ms is 50 ms.
//
// A program starts with [Main]. In a test of your own service, with your own limit:
//
//	func TestOutage(t *testing.T) {
//		s := sim.Outage()
//		s.Hot.Policy = myPolicy
//		r, err := sim.Run(t, s)
//		if err != nil || !r.Passed() {
//			t.Fatalf("%v\n%v", err, r)
//		}
//	}
//
// # The same seed, the same run
//
// Arrivals, delays on the network and the limiters' own jitter come from the scenario's seed. Each process has streams of
// its own, and all times are random to the nanosecond, so that hardly ever two processes do something at one instant,
// which the processors would put in any order. What remains random does not show: the ids under which processes lease.
// [Report.Trace] is a sum over all decisions, equal for equal runs.
//
// # What it does not show
//
// Decisions and scripts take no virtual time, so there is no overload of processors here. miniredis neither evicts nor
// replicates. The scripts' answers are compared with those of a real Redis elsewhere, in the tests of package remote.
package sim
