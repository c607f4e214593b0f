package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// jsonFlag is that of a command that writes JSON.
func jsonFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "json", "",
		"write the report as JSON to `FILE`, or - for stdout (sim/report.md says what is in it)")
}

// writable reports before a long run whether files can be written, and that no two of them are one. "" is no file, and
// "-" is stdout, which then gets nothing else.
func writable(paths ...string) error {
	var all []error
	taken := map[string]string{}
	for _, path := range paths {
		if path == "" {
			continue
		}
		file := path
		if path != "-" {
			if absolute, err := filepath.Abs(path); err == nil {
				file = absolute
			}
			directory := filepath.Dir(path)
			if info, err := os.Stat(directory); err != nil || !info.IsDir() {
				all = append(all, fmt.Errorf("%q cannot be written: %q is no directory", path, directory))
			} else if info, err := os.Stat(path); err == nil && info.IsDir() {
				all = append(all, fmt.Errorf("%q cannot be written: it is a directory", path))
			}
		}
		if other, ok := taken[file]; ok {
			all = append(all, fmt.Errorf("%q and %q are one file: must differ", other, path))
		}
		taken[file] = path
	}
	return errors.Join(all...)
}

// write writes a file if its name is not empty: completely or not at all.
func (a *app) write(path string, render func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	var b bytes.Buffer
	if err := render(&b); err != nil {
		return err
	}
	if path == "-" {
		_, err := a.out.Write(b.Bytes())
		return err
	}
	return quoted(os.WriteFile(path, b.Bytes(), 0o644))
}

// quoted returns an error about a file with its path in quotes.
func quoted(err error) error {
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s %q: %w", e.Op, e.Path, e.Err)
	}
	return err
}
