package sim

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/misspelled"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// library holds the scenarios that come with the simulator. Each has a title and says what it
// teaches; its expectations are what the limiter promises, and its sometimes keeps it from showing
// nothing.
//
//go:embed library/*.yaml
var library embed.FS

// Library returns the names of the scenarios that come with the simulator, sorted, as [Load] takes
// them.
func Library() (names []string) {
	files, _ := library.ReadDir("library") // embedded: it is there
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// Load returns a scenario: one of the [Library], or, when the name ends in .yaml, .yml or .json or
// has a slash in it, that of a file. The scenario is the caller's to change. An error names all
// that is wrong with it.
func Load(name string) (*scenario.Scenario, error) {
	read := os.ReadFile
	if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) && !strings.ContainsAny(name, `/\`) {
		if all := Library(); !slices.Contains(all, name) {
			if near := misspelled.Meant(name, all); near != "" {
				return nil, fmt.Errorf("sim: scenario is %q: did you mean %s?", name, near)
			}
			return nil, fmt.Errorf("sim: scenario is %.40q: must be one of %s; or a file NAME.yaml or ./NAME", name, strings.Join(all, ", "))
		}
		read = func(name string) ([]byte, error) { return library.ReadFile("library/" + name + ".yaml") }
	}
	text, err := read(name)
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		err = e.Err // the name is quoted here, so that none moves a cursor
	}
	if err != nil {
		return nil, fmt.Errorf("sim: scenario %q: %w", name, err)
	}
	return scenario.ParseFile(strconv.Quote(name), string(text))
}

// MustLoad is [Load], and panics where that has an error: for tests, whose scenarios are there.
func MustLoad(name string) *scenario.Scenario {
	s, err := Load(name)
	if err != nil {
		panic(err)
	}
	return s
}
