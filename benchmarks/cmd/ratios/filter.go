package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/ratio"
)

// counts is what was seen in the output of tests.
type counts struct {
	lines    int
	misses   int
	failures int // messages of tests that failed
}

// filter passes on the lines that are claims, as soon as they are whole.
type filter struct {
	lines io.Writer
	rest  []byte // of a line that is not whole yet
	counts
}

func (f *filter) Write(b []byte) (int, error) {
	f.rest = append(f.rest, b...)
	for {
		line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		f.take(string(line))
		f.rest = rest
	}
}

// flush takes the last line, if nothing ended it.
func (f *filter) flush() {
	f.take(string(f.rest))
	f.rest = nil
}

func (f *filter) take(text string) {
	l, ok := ratio.Parse(text)
	switch {
	case ok:
		f.counts.lines++
		if !l.Holds() {
			f.misses++
		}
		fmt.Fprintln(f.lines, text)
	case strings.Contains(text, "_test.go:"):
		f.failures++
	}
}
