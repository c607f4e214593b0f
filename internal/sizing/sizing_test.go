package main

import (
	"path/filepath"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/overlay"
)

// The table says what is so of the source as it is now: each line is there, once, and one value is the shipped one.
func TestConstantsAreThere(t *testing.T) {
	r := runner{root: filepath.Join("..", "..")}
	for _, c := range constants {
		shipped := 0
		for _, v := range c.values {
			if v.line == "" {
				shipped++
			} else if _, err := overlay.Apply([]overlay.Edit{c.edit(v)}, r.read); err != nil {
				t.Error(err)
			}
		}
		if shipped != 1 {
			t.Errorf("%s: %d values are the shipped one", c.name, shipped)
		}
	}
}

func TestParse(t *testing.T) {
	got := parse("=== RUN x\na load\ta figure\t1.5\nnoise\ta\tb\nb\tc\t2\n")
	if len(got) != 2 || got["a load|a figure"] != 1.5 || got["b|c"] != 2 {
		t.Errorf("%v", got)
	}
}
