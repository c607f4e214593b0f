package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/tiered-limiter/tiered-limiter/internal/ratio"
)

// filter tells the lines that are claims from the rest of what tests print.
type filter struct {
	lines io.Writer    // gets the claims, as soon as each is whole
	rest  bytes.Buffer // keeps everything else

	found, misses int
	part          []byte // of a line that is not whole yet
}

func (f *filter) Write(b []byte) (int, error) {
	f.part = append(f.part, b...)
	for {
		line, after, whole := bytes.Cut(f.part, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		f.take(string(line))
		f.part = after
	}
}

// flush takes the last line, if nothing ended it.
func (f *filter) flush() {
	if len(f.part) > 0 {
		f.take(string(f.part))
		f.part = nil
	}
}

func (f *filter) take(text string) {
	l, ok := ratio.Parse(text)
	if !ok {
		fmt.Fprintln(&f.rest, text)
		return
	}
	fmt.Fprintln(f.lines, text)
	f.found++
	if !l.Holds() {
		f.misses++
	}
}
