package faults_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// rows are all faults.
var rows = slices.Concat(redisRows, pauseRows, networkRows, fleetRows, topologyRows)

// which names the rows to play, as a regular expression; "quick" are those of them that run with
// all other tests.
var which = flag.String("faults", "quick", "regular expression of the faults to play; `quick` or a part of a name")

// TestFaults plays the rows, one after the other, and prints a table of them.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute of real time, or several")
	}
	t.Parallel() // with the test of standing shares, whose processes wait nearly all the time
	wanted, err := regexp.Compile(*which)
	if err != nil {
		t.Fatalf("-faults %q: %v", *which, err)
	}
	var table [][]string
	began := time.Now()
	for _, r := range rows {
		if *which == "quick" && !r.quick || *which != "quick" && !wanted.MatchString(r.name) {
			continue
		}
		lines, wrong, held := play(t, r.name, r)
		if len(wrong) > 0 && held > busy { // perhaps the machine's doing
			t.Logf("%s: once more, because the machine held processes up for %v: %s", r.name, held, strings.Join(wrong, "; "))
			lines, wrong, _ = play(t, r.name+" again", r)
		}
		for _, w := range wrong {
			t.Errorf("%s: %s", r.name, w)
		}
		table = append(table, lines...)
	}
	if len(table) == 0 {
		t.Fatalf("-faults %q: there is no such fault", *which)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, line := range append([][]string{columns}, table...) {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush()
	fmt.Printf("%d lines in %v\n", len(table), time.Since(began).Round(time.Second))
}

// play plays a row once, and reports its lines of the table, what is wrong, and by how much the
// machine held processes up.
func play(t *testing.T, name string, r row) (lines [][]string, wrong []string, held time.Duration) {
	t.Run(name, func(t *testing.T) {
		s := &faultRun{T: t, row: r}
		s.play()
		var all []*figures
		for _, j := range s.judged {
			f := s.judge(j)
			for _, complaint := range f.complaints {
				wrong = append(wrong, j.Name+": "+complaint)
			}
			s.judgeTheJudge(j)
			all = append(all, f)
		}
		if s.check != nil {
			s.check(s)
		}
		if s.note != "" {
			t.Log(s.note)
		}
		wrong, held = append(wrong, s.wrong...), s.lag
		for i, f := range all {
			f.complaints = append(f.complaints, s.wrong...) // a row is ok as a whole
			lines = append(lines, f.line(r.name, s.judged[i].Name))
		}
	})
	return lines, wrong, held
}
