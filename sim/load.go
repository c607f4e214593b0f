package sim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/library"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// maxFile is the most that a scenario's file may have, in bytes: a thousand times a long one.
const maxFile = 1 << 20

// Library returns the names of the scenarios that come with the simulator, sorted, as [Load] takes them.
func Library() []string { return library.Names() }

// Load returns a scenario: one of the [Library], or, when the name ends in .sim or .json or has a slash in it, that
// of a file. A file that ends in .json is JSON, any other is text. The scenario is the caller's to change. An error
// names all that is wrong with it.
func Load(name string) (*scenario.Scenario, error) {
	extension := filepath.Ext(name)
	if extension != ".sim" && extension != ".json" && !strings.ContainsAny(name, `/\`) {
		text, err := library.Text(name)
		if err != nil {
			if near := scenario.Nearest(name, library.Names()); near != "" {
				return nil, fmt.Errorf("sim: scenario is %q: did you mean %s?", name, near)
			}
			return nil, fmt.Errorf("sim: %w; or a file NAME.sim, NAME.json or ./NAME", err)
		}
		return parsed(name, text, scenario.Parse)
	}
	text, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("sim: scenario: %w", err)
	}
	if extension == ".json" {
		return parsed(name, text, func(s string) (*scenario.Scenario, error) { return scenario.ParseJSON([]byte(s)) })
	}
	return parsed(name, text, scenario.Parse)
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
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", quoted(err)
	}
	if len(text) > maxFile {
		return "", fmt.Errorf("%q is longer than %d bytes: no scenario is", name, maxFile)
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

// parsed parses a text. Each line of an error begins with its file.
func parsed(name, text string, parse func(string) (*scenario.Scenario, error)) (*scenario.Scenario, error) {
	s, err := parse(text)
	var all scenario.Errors
	switch {
	case errors.As(err, &all):
		wrong := make([]error, len(all))
		for i, e := range all {
			wrong[i] = fmt.Errorf("%q:%w", name, e)
		}
		return nil, errors.Join(wrong...)
	case err != nil:
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return s, nil
}
