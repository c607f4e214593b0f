package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

// said is what the tests of a module have printed.
type said struct {
	claims, misses int
	values         map[string]float64 // by the names of claims
	rest           strings.Builder    // all but the claims
}

// filter reads what tests print, and copies the lines that are claims, each as it comes.
func filter(r io.Reader, claims io.Writer) *said {
	s := &said{values: map[string]float64{}}
	for in := bufio.NewReader(r); ; {
		text, err := in.ReadString('\n')
		line := strings.TrimSuffix(text, "\n")
		if l, ok := ratio.Parse(line); ok {
			fmt.Fprintln(claims, line)
			s.claims++
			s.values[l.Name] = l.Value
			if !l.Holds() {
				s.misses++
			}
		} else {
			s.rest.WriteString(text)
		}
		if err != nil {
			return s
		}
	}
}
