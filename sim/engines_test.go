package sim

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/library"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// differences are those of the whole run; what is not compared is how often something happened, and the hash.
func differences(a, b *measure.Report) (all []measure.Difference) {
	for _, d := range measure.Apart.Diff(a, b) {
		switch {
		case d.Where != "all" && d.Where != "expectations":
		case d.Metric == "decide_p99" || d.Metric == "decide_max": // by single round trips: the budget bounds them
		case d.Metric == "probes": // of 100 ms
		case d.Metric == "starved_key" && math.Abs(d.A-d.B) <= uneven*between(a.Scenario).Seconds():
		// some hundred leases; see TestLossOpensAsManyBreakers
		case d.Metric == "lost" && math.Abs(d.A-d.B) <= max(d.A, d.B)/2:
		// of 8 seeds of lost-replies it is 1.2 to 2.4 s on both
		case d.Metric == "starved_process" && math.Abs(d.A-d.B) <= opening:
		case d.Metric == "heal" && math.Abs(healed(a)-healed(b)) <= opening:
		case d.Metric == "detect" || d.Metric == "open": // by which single process had three failures in a row
		default:
			all = append(all, d)
		}
	}
	return all
}

// opening is for how much longer a process is without Redis when one probe more fails, in seconds: a breaker is
// open for a second at most, and then somebody has to ask.
const opening = 1.5

// healed is how long the faults of a run took to heal, in seconds: not at all, if no breaker happened to be open.
func healed(r *measure.Report) float64 {
	if r.Metrics.Heal < 0 && count(r, "breaker_open") == count(r, "breaker_closed") {
		return 0
	}
	return r.Metrics.Heal / 1000
}

// uneven is by how many gaps between two requests of a key starved_key may be apart: it is the longest of a few
// runs of refusals, each some gaps long, and a gap is exponential. Of 14 seeds with one reply in 20 lost it was 0
// to 6.6 gaps on virtual, and 0 to 6 on lua, medians 1.7 and 1.2.
const uneven = 7

// between is the mean gap between two requests of a key, of the traffic with the rarest.
func between(s *scenario.Scenario) (most time.Duration) {
	for i := range s.Traffic {
		if t := &s.Traffic[i]; t.Rate > 0 {
			most = max(most, time.Duration(float64(max(t.Keys, 1))/t.Rate*float64(time.Second)))
		}
	}
	return most
}

// With lost replies a process has as often three failures in a row on both engines, and a key that is asked for all
// the time is starved for as long: until the next process is asked, which is none of those whose breaker is open.
// Both are summed over seeds, since each run has few of either.
func TestLossOpensAsManyBreakers(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds")
	}
	const seeds = 6
	var opened, starved, lost [2]float64
	for i, engine := range Engines[:2] {
		for seed := range uint64(seeds) {
			r := rehearse(t, dense, &Options{Engine: engine, Seed: 1 + seed})
			opened[i] += float64(count(r, "breaker_open"))
			starved[i] += r.Metrics.StarvedKey / seeds
			lost[i] += float64(r.Ledger.Lost)
		}
	}
	t.Logf("breakers opened %v times, %v tokens lost, and a key starved for %.0f ms in the mean of %d seeds", opened,
		lost, starved, seeds)
	// Four standard deviations, of counts of independent events. Where nothing of a new connection were lost it
	// would be a seventh: 10 % three times in a row, and not 10 %, 27 %, 27 %.
	if math.Abs(opened[0]-opened[1]) > 4*math.Sqrt(opened[0]+opened[1]) {
		t.Errorf("breakers opened %v times", opened)
	}
	// Of one seed of lost-replies it is 1324 ± 151 and 1349 ± 178 tokens (14 seeds): here a third of that noise.
	if math.Abs(lost[0]-lost[1]) > 0.2*lost[0] {
		t.Errorf("%v tokens were lost", lost)
	}
	// A run of refusals by process after process: as long as some gaps of 125 ms, in the worst of a few seeds as 14
	// of them.
	if math.Abs(starved[0]-starved[1]) > 600 || max(starved[0], starved[1]) > 1500 {
		t.Errorf("a key was starved for %.0f ms", starved)
	}
}

// dense is lost replies, and keys that are asked for each 125 ms.
const dense = `name "lost replies"
limit     users rate=1000/min
fleet     n=20 mode=closed
traffic   poisson rate=80/s keys=10
at 5s     lose chance=10% for=25s
run       32s warmup=5s
`

// A new connection takes as many round trips on both: to dial, for what go-redis says first, and for the call,
// which Redis does not know the first time. What each can lose of it is counted by that.
func TestNewConnection(t *testing.T) {
	const trip = 10 * time.Millisecond
	type opener interface {
		engine
		open(number, slot int) (remote.Store, error)
	}
	for engine, newWorld := range map[string]func(n scenario.Net) (opener, error){
		Virtual: func(n scenario.Net) (opener, error) { return newVirtualEngine(deaf{}, 1, n, 1), nil },
		Lua:     func(n scenario.Net) (opener, error) { return newLuaEngine(deaf{}, 1, n) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w, err := newWorld(scenario.Net{RTT: scenario.Duration(trip)})
			if err != nil {
				t.Fatal(err)
			}
			store, err := w.open(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			call := []lua.Call{{
				Bucket: store.Key("p", "k"), Cap: 10, Tokens: 10, Period: 1e6, Want: 1, Min: 1, TTL: 1e6, Fleet: 1,
			}}
			for _, trips := range []int{1 + handshakes + 2, 1} {
				want := time.Duration(trips) * trip
				results, start := make([]remote.Result, 1), time.Now()
				store.Run(t.Context(), time.Second, call, results)
				if took := time.Since(start); results[0].Err != nil || took.Round(time.Millisecond) != want {
					t.Errorf("%s: %v, after %v, want %v", engine, results[0].Err, took, want)
				}
			}
			if err := errors.Join(store.Close(), w.close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// deaf is a run that does not listen.
type deaf struct{}

func (deaf) newSimulatedProcess(*process, func(int, int) (remote.Store, error)) (instance, error) {
	return nil, nil
}
func (deaf) answered(int, lua.Code, int64)                                         {}
func (deaf) happened(string)                                                       {}
func (deaf) execute(_ hashReader, _ int, _ *lua.Call, do func() (lua.Reply, bool)) { do() }

// recovered is how long it took until all was well again, in ms, in the mean of some seeds. After lost replies that
// goes by which breakers happen to be open when no more is lost: of 12 seeds it is 0 to 0.6 s on virtual and 0 to 1
// s on lua, means 0.28 and 0.39. Engines draw other delays, so that one seed of each says nothing.
func recovered(t *testing.T, text, engine string) (mean float64) {
	const seeds = 4
	for seed := range uint64(seeds) {
		r := rehearse(t, text, &Options{Engine: engine, Seed: 1 + seed})
		if r.Metrics.Recovered < 0 {
			t.Errorf("with seed %d not all was well at the end, on %s", 1+seed, engine)
		}
		mean += r.Metrics.Recovered / seeds
	}
	return mean
}

// The engines agree: a Memory for Redis and goroutines for a network give what the scripts and go-redis do.
func TestEnginesAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds each")
	}
	for _, name := range []string{
		"steady", "blackhole-replies", "kill-local", "freeze", "lost-replies",
		"failover-lag", "eviction", "crash", "clock-forward",
	} {
		t.Run(name, func(t *testing.T) {
			text, err := library.Text(name)
			if err != nil {
				t.Fatal(err)
			}
			model, scripts := rehearse(t, text, nil), rehearse(t, text, &Options{Engine: Lua})
			if name == "lost-replies" {
				model.Metrics.Recovered, scripts.Metrics.Recovered = recovered(t, text, Virtual),
					recovered(t, text, Lua)
			}
			for _, d := range differences(model, scripts) {
				t.Errorf("%v", d)
			}
			t.Logf("over-admission %.0f and %.0f, utilisation %.3f and %.3f, shortfall %.3f and %.3f, %.0f and %.0f calls/s",
				model.Metrics.OverAdmission, scripts.Metrics.OverAdmission, model.Metrics.Utilisation,
				scripts.Metrics.Utilisation,
				model.Metrics.Shortfall, scripts.Metrics.Shortfall, model.Metrics.RedisCalls,
				scripts.Metrics.RedisCalls)
		})
	}
	// It can fail: lost replies are not a black hole.
	text, _ := library.Text("blackhole-replies")
	other, _ := library.Text("steady")
	if len(differences(rehearse(t, text, nil), rehearse(t, other, nil))) == 0 {
		t.Error("no difference between an outage and none")
	}
}
