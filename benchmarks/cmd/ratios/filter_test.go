package main

import (
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
		"e\t241\tno bound\tok\n" +
		"f\t3\t>= 2\tok"
	want := "a ÷ b\t0.5\t<= 0.7\tok\nc ÷ d\t0.9\t<= 0.7\tMISS\ne\t241\tno bound\tok\nf\t3\t>= 2\tok\n"
	var out strings.Builder
	got := filter(strings.NewReader(text), &out)
	if out.String() != want || got.claims != 4 || got.misses != 1 {
		t.Errorf("%d claims, %d missed, %q", got.claims, got.misses, out.String())
	}
	if rest := got.rest.String(); !strings.Contains(rest, "--- FAIL") || !strings.Contains(rest, "misses its bound") {
		t.Errorf("the rest is %q", rest)
	}
}
