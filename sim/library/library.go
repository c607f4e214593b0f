// Package library holds the scenarios that come with the simulator, as YAML for package scenario. Each has a title
// and says what it teaches; its expectations are what the limiter promises, and its sometimes keeps it from showing nothing.
package library

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.yaml
var files embed.FS

const suffix = ".yaml"

// Names are the names of all scenarios, as Text takes them, sorted.
func Names() []string {
	entries, _ := files.ReadDir(".") // embedded: it is there
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), suffix)
	}
	slices.Sort(names)
	return names
}

// Text is the text of a scenario, with its comments.
func Text(name string) (string, error) {
	names := Names()
	if !slices.Contains(names, name) {
		return "", fmt.Errorf("scenario is %q: must be one of %s", cut(name), strings.Join(names, ", "))
	}
	text, err := files.ReadFile(name + suffix)
	return string(text), err
}

// cut keeps a long name out of an error.
func cut(name string) string {
	if r := []rune(name); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return name
}
