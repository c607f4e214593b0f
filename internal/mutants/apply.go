package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// apply makes the mutant's changes to the files of a module, read by read, and returns those that changed. A change whose
// lines do not occur exactly once is an error: the file has changed, and what the entry says is no longer true.
func (m *mutant) apply(read func(file string) (string, error)) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range m.edits {
		text, ok := changed[e.file]
		if !ok {
			var err error
			if text, err = read(e.file); err != nil {
				return nil, fmt.Errorf("%s: %w", e.at, err)
			}
		}
		text, err := e.apply(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.at, err)
		}
		changed[e.file] = text
	}
	return changed, nil
}

func (e *edit) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	found := -1
	for i := 0; i+len(e.old) <= len(lines); i++ {
		if !slices.EqualFunc(lines[i:i+len(e.old)], e.old, func(line, old string) bool { return strings.TrimSpace(line) == old }) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("%s has this twice, in lines %d and %d: %s", e.file, found+1, i+1, strings.Join(e.old, " / "))
		}
		found = i
	}
	if found < 0 {
		return "", fmt.Errorf("%s has no such lines any more: %s", e.file, strings.Join(e.old, " / "))
	}
	return strings.Join(slices.Replace(lines, found, found+len(e.old), e.new...), "\n"), nil
}

// overlay writes the changed files into dir, and what go build -overlay wants to read. It returns the path of that, and
// those of the copies.
func overlay(root, dir string, changed map[string]string) (list string, copies map[string]string, err error) {
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
