package mutants

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Edit replaces lines of one file. Lines are compared without the white space around them.
type Edit struct {
	File     string // from the root of the module, with slashes
	At       string // where the edit itself is written, for errors
	Old, New []string
}

// Apply makes the edits to the files of a module, read by read, and returns those that changed. An
// edit whose lines do not occur exactly once is an error: the file has changed, and what the edit
// says is no longer true.
func Apply(edits []Edit, read func(file string) (string, error)) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range edits {
		text, ok := changed[e.File]
		if !ok {
			var err error
			if text, err = read(e.File); err != nil {
				return nil, fmt.Errorf("%s: %w", e.At, err)
			}
		}
		text, err := e.apply(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.At, err)
		}
		changed[e.File] = text
	}
	return changed, nil
}

func (e *Edit) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	found := -1
	for i := 0; i+len(e.Old) <= len(lines); i++ {
		if !slices.EqualFunc(lines[i:i+len(e.Old)], e.Old, func(line, old string) bool { return strings.TrimSpace(line) == old }) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("%s has this twice, in lines %d and %d: %s", e.File, found+1, i+1, strings.Join(e.Old, " / "))
		}
		found = i
	}
	if found < 0 {
		return "", fmt.Errorf("%s has no such lines any more: %s", e.File, strings.Join(e.Old, " / "))
	}
	return strings.Join(slices.Replace(lines, found, found+len(e.Old), e.New...), "\n"), nil
}

// Write writes the changed files into dir, and what go build -overlay wants to read. It returns the
// path of that, and those of the copies.
func Write(root, dir string, changed map[string]string) (list string, copies map[string]string, err error) {
	copies = map[string]string{}
	replace := map[string]string{}
	for file, text := range changed {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		err = errors.Join(err, os.WriteFile(to, []byte(text), 0o600))
		copies[file] = to
		replace[filepath.Join(root, filepath.FromSlash(file))] = to
	}
	b, jsonErr := json.Marshal(map[string]any{"Replace": replace})
	list = filepath.Join(dir, "overlay.json")
	return list, copies, errors.Join(err, jsonErr, os.WriteFile(list, b, 0o600))
}
