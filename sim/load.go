package sim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/library"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Library returns the names of the scenarios that come with the simulator, sorted, as [Load] takes them.
func Library() []string { return library.Names() }

// Load returns a scenario: one of the [Library], or, when the name ends in .yaml, .yml or .json or has a slash in it,
// that of a file. The scenario is the caller's to change. An error names all that is wrong with it.
func Load(name string) (*scenario.Scenario, error) {
	isFile := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || strings.ContainsAny(name, `/\`)
	if !isFile {
		text, err := library.Text(name)
		if err == nil {
			return scenario.ParseFile(strconv.Quote(name), text)
		}
		if near := scenario.Nearest(name, library.Names()); near != "" {
			return nil, fmt.Errorf("sim: scenario is %q: did you mean %s?", name, near)
		}
		return nil, fmt.Errorf("sim: %w; or a file NAME.yaml or ./NAME", err)
	}
	text, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("sim: scenario: %w", err)
	}
	return scenario.ParseFile(strconv.Quote(name), text)
}

// MustLoad is [Load], and panics where that has an error: for tests, whose scenarios are there.
func MustLoad(name string) *scenario.Scenario {
	s, err := Load(name)
	if err != nil {
		panic(err)
	}
	return s
}

// read returns the text of a file.
func read(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", quoted(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, scenario.MaxBytes+1))
	if err != nil {
		return "", quoted(err)
	}
	return string(text), nil
}

// quoted quotes the path of an error: no name moves a cursor.
func quoted(err error) error {
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", e.Op, e.Path, e.Err)
	}
	return err
}
