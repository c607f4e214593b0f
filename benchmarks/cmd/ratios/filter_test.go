package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	text := "=== RUN   TestRatiosHotKey\n" +
		"a ÷ b\t0.5\t<= 0.7\tok\n" +
		"c ÷ d\t0.9\t<= 0.7\tMISS\n" +
		"    ratios_test.go:54: c ÷ d is 0.9, which misses its bound\n" +
		"--- FAIL: TestRatiosHotKey (7.61s)\n" +
		"ok  \tsome/package\t0.1s\n" +
		"e\t3\t>= 2\tok"
	want := "a ÷ b\t0.5\t<= 0.7\tok\nc ÷ d\t0.9\t<= 0.7\tMISS\ne\t3\t>= 2\tok\n"
	for _, piece := range []int{1, 5, 1000} {
		var out bytes.Buffer
		f := &filter{lines: &out}
		for rest := []byte(text); len(rest) > 0; {
			n := min(piece, len(rest))
			if _, err := f.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		f.flush()
		if out.String() != want || f.found != 3 || f.misses != 1 {
			t.Errorf("in pieces of %d: %d found, %d missed, %q", piece, f.found, f.misses, out.String())
		}
		if rest := f.rest.String(); !strings.Contains(rest, "--- FAIL") || !strings.Contains(rest, "misses its bound") {
			t.Errorf("in pieces of %d the rest is %q", piece, rest)
		}
	}
}
