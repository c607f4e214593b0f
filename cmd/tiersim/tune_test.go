package main

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// A figure is compared as it is printed. A newcomer once read "at most 75, measured 75.75" beside a
// setting that was advised.
func TestTunePrintsAsItCompares(t *testing.T) {
	for figure, want := range map[float64]string{75.75: "75.75", 75.01: "75.01", 75.001: "75", 4216120: "4216000"} {
		w := wish{most: [3]float64{0, 75, 0}, results: []result{{figures: [3]float64{0, figure, 0}, in: [3]string{"", "a fault", ""}}}}
		kept := w.choose()
		if text := w.answer(); kept != (want == "75") || !strings.Contains(text, " "+want+"% (a fault)") {
			t.Errorf("%v: kept %v\n%s", figure, kept, text)
		}
	}
}

func TestTuneRule(t *testing.T) {
	of := func(mode string, over, short, calls, perRequest float64) result {
		return result{fleet: scenario.Fleet{Mode: mode}, figures: [3]float64{over, short, calls}, perRequest: perRequest}
	}
	for _, c := range []struct {
		name string
		all  []result
		take int
		kept bool
	}{
		{"the fewest calls", []result{of("local", 0, 0, 9, 0.9), of("local", 0, 0, 9, 0.5)}, 1, true},
		{"the plainest of a few more", []result{of("local", 0, 0, 9, 0.55), of("local", 0, 0, 9, 0.5)}, 0, true},
		{"not a miss", []result{of("local", 100.1, 0, 9, 0.1), of("local", 100, 10, 50, 0.5)}, 1, true},
		{"not fail-open", []result{of("closed", 0, 10, 9, 1), of("open", 0, 0, 9, 0)}, 0, true},
		{"fail-open", []result{of("closed", 0, 11, 9, 1), of("open", 0, 0, 9, 1)}, 1, true},
		{"the nearest", []result{of("local", 300, 0, 0, 0), of("closed", 0, 11, 0, 1), of("open", 900, 0, 0, 0)}, 1, false},
		{"the nearest by calls", []result{of("local", 0, 21, 0, 0), of("local", 0, 0, 100, 0)}, 0, false},
	} {
		w := wish{burst: 100, most: [3]float64{100, 10, 50}, results: c.all}
		if kept := w.choose(); w.take != c.take || kept != c.kept {
			t.Errorf("%s: takes %d, kept %v", c.name, w.take, kept)
		}
	}
}

// The policy in Go compiles with every setting.
func TestTuneGo(t *testing.T) {
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n\"time\"\n\n\"github.com/tiered-limiter/tiered-limiter/tiered\"\n)\n\n")
	b.WriteString("func main() {\n_ = time.Second\n")
	for _, s := range settings {
		w := wish{processes: 3, results: []result{{code: s.code, fleet: s.fleet}}}
		_, code, _ := strings.Cut(w.answer(), "\npolicy :=")
		code, _, _ = strings.Cut(code, "\n\n")
		b.WriteString("{\npolicy :=" + code + "\n_, _ = policy, options\n}\n")
	}
	path := filepath.Join(t.TempDir(), "main.go")
	fatal.If(t, os.WriteFile(path, []byte(b.String()+"}\n"), 0o600))
	cmd := exec.Command("go", "build", "-o", os.DevNull, path)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Where no bar can move, a line says from time to time how far long work is.
func TestProgressWithoutATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		progress, done := (&app{problems: &b}).bar("tuning")
		for i := range 24 {
			time.Sleep(time.Second)
			progress(time.Duration(i+1), 24)
		}
		done()
		if want := "tiersim: tuning, 42 %\ntiersim: tuning, 83 %\n"; b.String() != want {
			t.Errorf("said %q, want %q", b.String(), want)
		}
	})
}

// The verdict names what is gained, and what is missed.
func TestTuneVerdict(t *testing.T) {
	for mode, c := range map[string]struct {
		perRequest, over float64
		want             string
	}{
		"":       {0.3, 0, "You gain calls, and an outage of Redis is none of yours."},
		"open":   {1, 0, "You gain no calls, but an outage of Redis is none of yours."},
		"closed": {0.3, 7, "NO SETTING KEEPS ALL. The nearest misses over the limit: fail-closed, leases that follow demand."},
	} {
		w := wish{most: [3]float64{5, 100, math.Inf(1)}, burst: 10, results: []result{
			{fleet: scenario.Fleet{Mode: mode}, figures: [3]float64{c.over, 0, 0}, perRequest: c.perRequest},
		}}
		w.choose()
		const later = "A run is too short for keys to use up what they begin with"
		if text := w.verdict(); !strings.Contains(text, c.want) || strings.Contains(text, later) {
			t.Errorf("%s: %s\nwant %s", mode, text, c.want)
		}
		if w.fresh = true; !strings.Contains(w.verdict(), later) {
			t.Errorf("nothing of %q", later)
		}
	}
}
