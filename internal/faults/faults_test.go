package faults

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// which names the rows to play, as a regular expression; "quick" are those of them that run with all other tests.
var which = flag.String("faults", "quick", "regular expression of the faults to play; `quick` or a part of a name")

// TestFaults plays the rows, one after the other, and prints a table of them.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("90 s of real time, or minutes")
	}
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
		t.Run(r.name, func(t *testing.T) {
			s := &stage{T: t, row: r}
			s.play()
			for _, j := range s.judged {
				f := s.judge(j)
				table = append(table, f.line(r.name, j.Policy))
				for _, complaint := range f.complaints {
					t.Errorf("%s: %s", j.Policy, complaint)
				}
				s.judgeTheJudge(j)
			}
			if s.check != nil {
				s.check(s)
			}
			if s.note != "" {
				t.Log(s.note)
			}
			if t.Failed() { // of the row as a whole
				for i := range s.judged {
					table[len(table)-1-i][len(columns)-1] = "MISS"
				}
			}
		})
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
