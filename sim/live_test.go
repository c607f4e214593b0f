//go:build unix

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// liveFleet is a fleet that six real processes are enough for, and that a second shows something of.
const liveFleet = `name "live"
limit api rate=1000/s burst=400
limit users rate=100/min
fleet n=6 processes=6
traffic poisson limit=api rate=1500/s
traffic poisson limit=users rate=40/s keys=40
`

// runLive runs scenarios on the engine Live, four at one time. Nothing of them may be left.
func runLive(t *testing.T, texts ...string) []*measure.Report {
	t.Helper()
	var all []*scenario.Scenario
	for _, text := range texts {
		all = append(all, parse(t, text))
	}
	reports, err := RunAll(all, &Options{Engine: Live})
	if err != nil {
		t.Fatal(err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	return reports
}

// children are the processes that this one started, by number and name.
func children(t *testing.T) (all []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Log("no /proc here: nobody looks for processes that are left")
	}
	for _, path := range stats {
		text, _ := os.ReadFile(path) // it may have ended
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			name, _, _ := strings.Cut(string(text), ")")
			all = append(all, strings.Replace(name, " (", " ", 1))
		}
	}
	return all
}

// A redis-server and real processes do what the model of both does, through a kill in each mode, a crash and a partition.
func TestLiveAgrees(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time")
	}
	const length = "run 12s warmup=2s\n"
	var texts []string
	for _, mode := range []string{"local", "open", "closed"} {
		texts = append(texts, strings.Replace(liveFleet, "fleet n=6", "fleet n=6 mode="+mode, 1)+"at 4s kill for=3s\n"+length)
	}
	for _, fault := range []string{"at 5s crash procs=50% restart=1s", "at 4s blackhole procs=50% for=4s"} {
		texts = append(texts, liveFleet+fault+"\n"+length)
	}
	reports := runLive(t, texts...)
	for i, live := range reports {
		fault := live.Faults[0].Text + ", " + live.Scenario.Fleet.Mode
		model := rehearse(t, texts[i], nil)
		t.Logf("%s: over-admission %.0f and %.0f, shortfall %.3f and %.3f, alone %d and %d, lag %.0f ms", fault,
			model.Metrics.OverAdmission, live.Metrics.OverAdmission, model.Metrics.Shortfall, live.Metrics.Shortfall,
			model.Metrics.Alone, live.Metrics.Alone, live.LagMs)
		if live.LagMs > tooLate {
			t.Logf("%s: not compared: the machine held a process up for %.0f ms", fault, live.LagMs)
		} else {
			for _, d := range liveDifferences(model, live) {
				t.Errorf("%s: %v", fault, d)
			}
		}
		if live.Metrics.Duplicated > 0 || live.Metrics.Uncounted > 0 {
			t.Errorf("%s: %d tokens out of nothing, %d not counted", fault, live.Metrics.Duplicated, live.Metrics.Uncounted)
		}
		if live.Engine != Live || live.Unseed != "" {
			t.Errorf("engine %q, unseed %q", live.Engine, live.Unseed)
		}
	}
	if len(liveDifferences(reports[0], reports[1])) == 0 || len(liveDifferences(reports[0], reports[2])) == 0 {
		t.Error("no difference between fail-local and the others: nothing would be seen")
	}
}

// tooLate is the lag, in ms, from which a live run says nothing of the limiter: the calls of a process that stands still for
// a Timeout have failed, and it decides alone.
const tooLate = 50

// liveDifferences are differences, with room for what the machine did: each time that it holds a process up that process
// decides later, and a call that takes longer than its timeout has failed. What is compared is what TestEngines compares
// too: sums over the run. What a single breaker, key or second did (heal, least_key, recovered) differs from one live run to
// the next as much as from the model.
func liveDifferences(a, b *measure.Report) (all []measure.Difference) {
	lag := time.Duration(max(a.LagMs, b.LagMs) * float64(time.Millisecond))
	sums := []string{"offered", "admitted", "ideal", "over_admission", "shortfall", "utilisation", "alone", "duplicated", "uncounted", "redis_calls"}
	for _, d := range measure.Apart.Late(lag, 1000).Diff(a, b) {
		if d.Where == "all" && slices.Contains(sums, d.Metric) {
			all = append(all, d)
		}
	}
	return all
}

// What each fault does to real servers and processes is seen in the report.
func TestLiveFaults(t *testing.T) {
	if !*long { // a minute: make pages PAGE=engines
		t.Skip("a minute of real time")
	}
	opens := func(r *measure.Report) bool {
		return count(r, "breaker_open") >= 6 && mean(r, r.Series.Alone, 3, 4) > 300 && mean(r, r.Series.Alone, 8, 9) < 100
	}
	type check func(r *measure.Report) bool
	var texts []string
	var checks []check
	add := func(fault string, ok check) {
		texts = append(texts, liveFleet+"at 2s "+fault+"\nrun 9s warmup=1s\n")
		checks = append(checks, ok)
	}
	for _, word := range refusable {
		ok := opens
		if word == "WRONGTYPE" {
			ok = func(r *measure.Report) bool {
				return mean(r, r.Series.Alone, 3, 4) > 300 && count(r, "probe_failed") == 0
			}
		}
		add("refuse error="+word+" for=2s", ok)
	}
	add("freeze for=2s", opens)
	add("blackhole only=replies for=2s", opens)
	add("flap up=400ms down=600ms for=2s", func(r *measure.Report) bool { return count(r, "breaker_open") > 0 })
	add("cut chance=30% for=4s", func(r *measure.Report) bool { return r.Metrics.Alone > 0 })
	add("lose chance=30% for=4s", func(r *measure.Report) bool { return r.Metrics.Alone > 0 })
	add("latency delay=15ms for=4s", func(r *measure.Report) bool { return mean(r, r.Series.MaxUs, 3, 5) > 14_000 })
	add("failover lose=1s for=200ms", func(r *measure.Report) bool { return count(r, "state_loss") > 0 })
	add("flush", func(r *measure.Report) bool { return count(r, "state_loss") > 0 })
	add("evict keys=41", func(r *measure.Report) bool { return count(r, "state_loss") > 0 })
	add("scriptflush", func(r *measure.Report) bool { return count(r, "script_sent") >= 4 })
	add("clock by=-1h", func(r *measure.Report) bool {
		return count(r, "clock_step") == 1 && mean(r, r.Series.Admitted, 5, 9) > 800
	})
	add("pause procs=2 for=2s", func(r *measure.Report) bool {
		return mean(r, r.Series.Offered, 3, 3.9) < 1300 && mean(r, r.Series.Offered, 5, 9) > 1400 && count(r, "process_died") == 0
	})
	add("crashloop procs=1 every=500ms for=3s", func(r *measure.Report) bool { return count(r, "process_died") == 6 })
	add("deploy every=300ms", func(r *measure.Report) bool { return count(r, "process_died") == 6 && processes(r) == 6 })
	add("scale n=9", func(r *measure.Report) bool { return processes(r) == 9 })
	add("flood keys=500 for=2s", func(r *measure.Report) bool { return r.Metrics.Keys > 60 })
	calm := rehearse(t, liveFleet+"run 9s warmup=1s\n", nil)
	for i, text := range texts {
		if checks[i](calm) {
			t.Errorf("what is checked is so without the fault too: %s", text)
		}
	}
	for i, r := range runLive(t, texts...) {
		if !checks[i](r) {
			t.Errorf("not as it should be: %s\n%v", r.Faults[0].Text, r)
		}
		if r.Metrics.Duplicated > 0 || r.Metrics.Uncounted > 0 {
			t.Errorf("%s: %d tokens out of nothing, %d not counted", r.Faults[0].Text, r.Metrics.Duplicated, r.Metrics.Uncounted)
		}
	}
}

// A process that ends without having been told to makes the run an error, which says how it ended.
func TestLiveProcessIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("three seconds of real time")
	}
	var once sync.Once
	_, err := Run(parse(t, liveFleet+"run 3s warmup=1s\n"), &Options{Engine: Live, Progress: func(at, _ time.Duration) {
		if at > time.Second {
			once.Do(func() {
				for _, p := range children(t) {
					if pid, name, _ := strings.Cut(p, " "); name != "redis-server" {
						n, _ := strconv.Atoi(pid)
						_ = syscall.Kill(n, syscall.SIGKILL)
						return
					}
				}
			})
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "ended by itself: signal: killed") {
		t.Errorf("error %v", err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// What the engine cannot play is an error before anything is started, which says what, where and what to do.
func TestLiveCannot(t *testing.T) {
	for _, c := range []struct{ change, want string }{
		{"traffic poisson limit=api rate=30000/s", "makes up to 31540 requests per second: must be at most 25000"},
		{"at 1s flood keys=270_000 for=9s", "makes up to 31540 requests"},
		{"traffic closed limit=api clients=300 think=9ms", "makes up to 31540 requests"},
		{"at 1s crashloop procs=2 every=100ms for=9s", "starts 186 processes: must be at most 100"},
		{"at 1s refuse error=CLUSTERDOWN for=1s", `at.1, ` + "`at 1s refuse for=1s error=CLUSTERDOWN`" + `: a redis-server by itself never says "CLUSTERDOWN"`},
		{"traffic poisson limit=users rate=1/s keys=-1\nat 1s refuse error=WRONGTYPE for=1s", "keys that are new each time cannot be poisoned"},
		{"at 1s refuse error=NOAUTH for=1s\nat 3s refuse error=WRONGPASS for=1s", "must have one of them"},
		{"at 1s refuse error=LOADING for=1s\nat 3s refuse error=MISCONF for=1s", "needs a server that can save"},
	} {
		_, err := Run(parse(t, liveFleet+c.change+"\nrun 10s warmup=1s\n"), &Options{Engine: Live})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n%v, want\n%s", c.change, err, c.want)
		}
	}
	hooked.Store(false)
	defer hooked.Store(true)
	_, err := Run(parse(t, liveFleet+"run 5s\n"), &Options{Engine: Live})
	if want := "call sim.Child() first"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err = Run(parse(t, liveFleet+"at 2s clock by=1s\nrun 5s\n"), &Options{Engine: Live}); err == nil ||
		!strings.Contains(fmt.Sprint(err), "redis-server is not in PATH") || !strings.Contains(err.Error(), "no C compiler") {
		t.Errorf("%v", err)
	}
}
